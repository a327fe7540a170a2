//! Whether vLLM runs a small model that drafts in CUDA graphs, as it runs heads and MTP layers.

use kvplan::Version;
use spec_decode::HeadKind;

use super::model::Draft;
use super::{EngineChoice, EngineKind, Notes, Scenario};

/// Host time of a layer of the draft whose kernels are launched one by one, us. Source: Qwen3-0.6B (28
/// layers) as draft of Qwen3-8B and 32B, vLLM 0.24.0 on one H200: cycles of 3 steps last 44 to 48 ms at 1 to
/// 32 users, whatever the GPU does in them (docs/HARDWARE.md).
const ONE_BY_ONE_LAYER_US: f64 = 500.0;
/// The same where all but attention and the cache's writes are graphs: by a profile of that run these two are
/// a third of the host's time, and the launch of a graph is added.
const IN_PIECES_LAYER_US: f64 = 200.0;

/// Hosts beside that one, to the time that no graph at all would take.
const IN_PIECES_HOSTS: (f64, f64) = (0.4, ONE_BY_ONE_LAYER_US / IN_PIECES_LAYER_US);

/// How a release runs the draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// No graph: its proposer is not told of the sizes (to 0.25.1), or has none (`cudagraph_mode` NONE of
    /// the second runner's, from 0.31.0).
    OneByOne,
    /// Graphs between the layers' attention (0.26.0 to 0.30.0).
    InPieces,
}

impl Runs {
    /// Source: `gpu_model_runner.py` and `gpu/spec_decode` of 0.19.1, 0.21.0, 0.24.0 to 0.26.0, 0.29.0 to 0.33.0.
    fn of(version: Option<&str>) -> Self {
        let version = version.and_then(Version::find);
        let since = |number, date| version.is_none_or(|version| version.since(number, date));
        match since((0, 26, 0), (2026, 8)) && !since((0, 31, 0), (2026, 10)) {
            true => Self::InPieces,
            false => Self::OneByOne,
        }
    }

    /// How sure the time is.
    fn source(self) -> &'static str {
        match self {
            Self::OneByOne => {
                " by one H200's host (docs/HARDWARE.md); hosts of 0.4 to 1.25 of that are in the band"
            }
            Self::InPieces => {
                ", not run there: a third of what 0.24 took on one H200's host, by a profile (docs/HARDWARE.md); hosts \
                 of 0.4 to 2.5 of that, what no graph at all would take, are in the band"
            }
        }
    }

    fn layer_us(self) -> f64 {
        match self {
            Self::OneByOne => ONE_BY_ONE_LAYER_US,
            Self::InPieces => IN_PIECES_LAYER_US,
        }
    }
}

/// The layers of a small model that drafts in vLLM.
fn layers(engine: &EngineChoice, draft: Option<&Draft>) -> Option<usize> {
    let draft = draft.filter(|draft| draft.head == HeadKind::DraftModel)?;
    let model = draft.model.as_ref()?;
    (engine.kind == EngineKind::Vllm).then_some(model.layers.len())
}

impl Scenario {
    /// Host time of one draft step, ms; 0 where it runs as one CUDA graph.
    pub(crate) fn draft_host_ms(&self) -> f64 {
        let layers = layers(&self.engine, self.draft.as_ref());
        let us = Runs::of(self.engine.version.as_deref()).layer_us();
        layers.map_or(0.0, |layers| layers as f64 * us * 1e-3)
    }

    /// Host time of a verify whose graph vLLM cuts at attention, ms: a layer is launched as that of a small model
    /// which drafts in pieces; 0 where it is one graph.
    pub(crate) fn verify_host_ms(&self) -> f64 {
        let vllm = self.engine.kind == EngineKind::Vllm && self.draft.is_some();
        let whole = self.attends().whole(self.ran.verify_graphs.as_ref());
        match vllm && !whole {
            true => self.model.layers.len() as f64 * IN_PIECES_LAYER_US * 1e-3,
            false => 0.0,
        }
    }

    /// Host times that the band holds, as shares of [`Self::draft_host_ms`] and [`Self::verify_host_ms`]. One host was measured; how far others
    /// lie from it is a choice: desktop processors launch some 2.5 times as fast as servers' do. Where the
    /// release itself was not run, to the time without any graph.
    pub(crate) fn launching_hosts(&self) -> (f64, f64) {
        let draft = layers(&self.engine, self.draft.as_ref());
        if draft.is_none() {
            return IN_PIECES_HOSTS;
        }
        match Runs::of(self.engine.version.as_deref()) {
            Runs::OneByOne => (0.4, 1.25),
            Runs::InPieces => IN_PIECES_HOSTS,
        }
    }
}

/// Says what is assumed of it.
pub(super) fn note(engine: &EngineChoice, draft: Option<&Draft>, notes: &mut Notes) {
    let Some(layers) = layers(engine, draft) else {
        return;
    };
    let runs = Runs::of(engine.version.as_deref());
    let how = match runs {
        Runs::OneByOne => "outside CUDA graphs",
        Runs::InPieces => "in one CUDA graph for each layer, attention outside",
    };
    let us = runs.layer_us();
    notes.assume(
        format!(
            "vLLM runs a draft model {how} (its sources; EAGLE heads and MTP are in graphs): {:.1} ms of host \
             time a draft step, {us:.0} us a layer{}; a cycle is the longer of this and of what the GPU does",
            layers as f64 * us * 1e-3,
            runs.source()
        ),
        "a run with the draft",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_has_graphs_for_a_draft_model_from_0_26_to_0_30() {
        for version in ["0.19.1", "0.24.0", "0.25.1", "0.31.0", "0.33.0"] {
            assert_eq!(Runs::of(Some(version)), Runs::OneByOne, "{version}");
        }
        for version in ["0.26.0", "0.30.0"] {
            assert_eq!(Runs::of(Some(version)), Runs::InPieces, "{version}");
        }
        assert_eq!(Runs::of(None), Runs::OneByOne);
    }
}
