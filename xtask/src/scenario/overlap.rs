//! Whether the engine's scheduler works ahead while the GPU computes, and with which drafts.

use kvplan::{Model, Version};
use spec_decode::HeadKind;

use super::model::Draft;
use super::{EngineChoice, EngineKind, Notes, Ran, Scenario};
use crate::step_time::{Engine, Overhead, Server, waited_step_ms};

/// Which steps hide host time behind the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overlap {
    /// Plain steps and cycles alike, as far as the release does so at all.
    Alike,
    /// Plain steps alone: the draft switches it off.
    PlainOnly,
    /// None.
    Off,
}

/// vLLM's flag that switches it off; the same without `no-` switches it on.
const OFF: &str = "--no-async-scheduling";
const ON: &str = "--async-scheduling";

/// First release of SGLang whose `NGRAM` leaves the overlap scheduler on. Source: `_handle_ngram` of its
/// server arguments, 0.5.4 to 0.5.23.
const SGLANG_NGRAM_OVERLAPS: ((u32, u32, u32), (u32, u32)) = ((0, 5, 14), (2026, 7));

impl Scenario {
    /// Which of its steps hide host time.
    fn overlap(&self) -> Overlap {
        resolved(&self.engine, self.draft.as_ref(), &self.ran).0
    }

    /// The engine's host costs, as this server runs it.
    pub(crate) fn host_costs(&self, overhead: Overhead) -> Overhead {
        match self.overlap() {
            Overlap::Off => overhead.not_overlapped(),
            Overlap::Alike | Overlap::PlainOnly => overhead,
        }
    }

    /// The engine's server with what its cycles wait for on the host.
    pub(crate) fn waiting<'a>(&self, server: Server<'a>) -> Server<'a> {
        server
            .with_waiting_cycles(self.overlap() == Overlap::PlainOnly)
            .with_draft_host(self.draft_host_ms())
            .with_verify_host(self.verify_host_ms())
    }
}

/// What the log's server was told or says, else the release's own rule; and why.
fn resolved(engine: &EngineChoice, draft: Option<&Draft>, ran: &Ran) -> (Overlap, String) {
    match engine.kind == EngineKind::Vllm && hidden(engine).0 > 0.0 {
        true => of_vllm(
            engine.version.as_deref(),
            draft.map(|draft| draft.head),
            ran,
        ),
        false => (Overlap::Alike, String::new()),
    }
}

/// Host time that vLLM hides: ms a step and us a sequence.
fn hidden(engine: &EngineChoice) -> (f64, f64) {
    Overhead::of(Engine::Vllm, engine.version.as_deref()).hidden_by_overlap()
}

/// Says what is assumed of it.
pub(super) fn note(
    (target, engine): (&Model, &EngineChoice),
    draft: Option<&Draft>,
    ran: &Ran,
    notes: &mut Notes,
) {
    if engine.kind == EngineKind::Sglang {
        let head = draft.map(|draft| draft.head);
        return note_sglang(engine.version.as_deref(), head, notes);
    }
    let (step_ms, sequence_us) = hidden(engine);
    let (found, why) = resolved(engine, draft, ran);
    let paid = |step_ms: f64, source: &str| {
        format!("{step_ms:.1} ms and {sequence_us:.0} us a user more ({source})")
    };
    match found {
        Overlap::Alike => {}
        Overlap::PlainOnly => notes.assume(
            format!(
                "vLLM's scheduler overlaps plain steps, not those with this draft ({why}): a cycle pays {}",
                paid(
                    waited_step_ms(step_ms, target.layers.len()),
                    "measured with n-gram on one H200, by layers of the target, docs/HARDWARE.md"
                )
            ),
            "a run with the draft",
        ),
        Overlap::Off => notes.assume(
            format!("vLLM's scheduler overlaps no step ({why}): each pays {}",
                paid(step_ms, "fitted on servers without it, docs/step-time.md")
            ),
            "",
        ),
    }
}

/// What vLLM does, and why.
fn of_vllm(version: Option<&str>, head: Option<HeadKind>, ran: &Ran) -> (Overlap, String) {
    let told = |flag: &str| {
        let mut words = ran.carried.flags.iter().filter_map(|words| words.first());
        words.any(|word| word == flag)
    };
    if told(OFF) {
        return (Overlap::Off, format!("{OFF}, as the log's server"));
    }
    let drafted = head.is_some_and(|head| ran.speculates && ran.drafted_with(head));
    let logged = ran.method.as_deref().filter(|_| drafted);
    let method = head.map(|head| logged.unwrap_or(method(head)));
    let keeps = told(ON) || method.is_none_or(|method| keeps(version, method));
    let said = ran.overlap.filter(|_| drafted || !ran.speculates);
    match said {
        Some(said) if !said.on => {
            let place = format!("{}:{}", ran.file, said.line);
            // A log that names no release may be of one that the draft keeps from it.
            let unknown = version.is_none() && method.is_some_and(|method| !every_release(method));
            // Without a draft, or with one that does not, something else switched it off.
            match drafted && (said.by_draft || !keeps || unknown) {
                true => (Overlap::PlainOnly, place),
                false => (Overlap::Off, place),
            }
        }
        Some(_) if drafted && method != Some("ngram_gpu") => (Overlap::Alike, String::new()),
        _ if keeps => (Overlap::Alike, String::new()),
        _ => (
            Overlap::PlainOnly,
            by_rule(version, method.unwrap_or_default()),
        ),
    }
}

/// The method that the paste names.
fn method(head: HeadKind) -> &'static str {
    match head {
        HeadKind::NGram => "ngram",
        HeadKind::DraftModel => "draft_model",
        _ => head.name(),
    }
}

/// Whether vLLM goes on overlapping with a draft where nobody says so. Source: `config/vllm.py`
/// (`async_scheduling` left at None) of 0.14.0 to 0.33.0: EAGLE, MTP and block drafts from the first;
/// n-gram on its second runner, which searches on the GPU.
fn keeps(version: Option<&str>, method: &str) -> bool {
    let since = |number, date| {
        let version = version.and_then(Version::find);
        version.is_none_or(|version| version.since(number, date))
    };
    match method {
        // `ngram_gpu` overlaps from 0.18.0 on the first runner, and its cycles last as long as those of
        // `ngram` there (0.24.0 on one H200, docs/HARDWARE.md).
        "ngram" | "ngram_gpu" => since((0, 33, 0), (2026, 11)),
        "draft_model" => since((0, 28, 0), (2026, 9)),
        "suffix" | "medusa" | "mlp_speculator" | "custom_class" => false,
        _ => true,
    }
}

/// Whether every release keeps it on with a method, from the first that has it on by itself.
fn every_release(method: &str) -> bool {
    keeps(Some("0.14.0"), method)
}

/// The rule, and what keeps it on.
fn by_rule(version: Option<&str>, method: &str) -> String {
    let of = version.map_or_else(String::new, |version| format!(" of {version}"));
    let instead = match method {
        "ngram" => "; 0.33.0 overlaps these too",
        "ngram_gpu" => {
            "; it overlaps, and was no faster than `ngram` on one H200, docs/HARDWARE.md"
        }
        "draft_model" => "; 0.28.0 overlaps these too, before that with --async-scheduling",
        _ => "",
    };
    format!("config/vllm.py{of} for `{method}`{instead}")
}

/// SGLang's host time was fitted without telling the two apart.
fn note_sglang(version: Option<&str>, head: Option<HeadKind>, notes: &mut Notes) {
    let (number, date) = SGLANG_NGRAM_OVERLAPS;
    let before = version.and_then(Version::find);
    let before = before.is_some_and(|version| !version.since(number, date));
    if head == Some(HeadKind::NGram) && before {
        notes.assume(
            "SGLang before 0.5.14 switches its overlap scheduler off for NGRAM (server_args.py): what that costs \
             a cycle is not counted",
            "a run with the draft",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_keeps_its_overlap_by_release_and_method() {
        let kept = |version: &str, method: &str| keeps(Some(version), method);
        for version in ["0.20.0", "0.24.0", "0.33.0"] {
            assert!(kept(version, "eagle3") && kept(version, "mtp"));
            assert!(!kept(version, "suffix"));
        }
        assert!(!kept("0.32.0", "ngram") && kept("0.33.0", "ngram") && keeps(None, "ngram"));
        assert!(!kept("0.27.1", "draft_model") && kept("0.28.0", "draft_model"));
        assert!(!kept("0.24.0", "ngram_gpu") && kept("0.33.0", "ngram_gpu"));
    }
}
