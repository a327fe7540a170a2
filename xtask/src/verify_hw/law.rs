//! The calibrated prediction: the cycle law on this machine's plain steps. It never sees a
//! speculative run.

use kvplan::Sharding;
use spec_decode::HeadKind;
use spec_decode::cycle::{DraftStep, GraphLadder, Growth, KvReading, Speculation, Sweep, cycle};

use super::scratch::Scratch;
use super::standin::run::Found;
use crate::scenario::Scenario;
use crate::step_time::sweep::{Held, growth};

/// One speculative operating point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    pub(crate) concurrency: u32,
    /// Cached tokens per sequence in the middle of the run.
    pub(crate) held_tokens: f64,
    /// Draft steps.
    pub(crate) steps: u32,
    pub(crate) accept_length: f64,
}

/// What a prediction says of a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Predicted {
    pub(crate) plain_ms: f64,
    pub(crate) verify_ms: f64,
    pub(crate) draft_step_ms: f64,
    pub(crate) cycle_ms: f64,
    pub(crate) speedup: f64,
    /// Tokens a second over all sequences.
    pub(crate) tok_s: f64,
}

/// Draft passes of a cycle: one for heads that draft all positions at once.
pub(crate) fn draft_passes(head: HeadKind, steps: u32) -> u32 {
    match head {
        HeadKind::NGram => 0,
        HeadKind::Parallel => steps.min(1),
        _ => steps,
    }
}

/// The cycle law on a plain sweep of this server.
#[derive(Debug, Clone)]
pub(crate) struct Calibrated {
    sweep: Sweep,
    draft: DraftStep,
    /// A draft step by concurrency where it was worked out from the architecture, ms.
    draft_ms: Option<Vec<(u32, f64)>>,
    /// Attention of a plain step by concurrency, ms, where it was probed; the sweep is then
    /// without it.
    attention_ms: Vec<(u32, f64)>,
    /// The same over several tokens a sequence: (concurrency, tokens, ms).
    attention_of_many_ms: Vec<(u32, u32, f64)>,
    head: HeadKind,
    pub(crate) assumed: Vec<String>,
}

impl Calibrated {
    /// From a sweep of (concurrency, tok/s of all) of a serving engine. With a scratch model,
    /// draft steps and what lies beyond the sweep are the model's, moved to the sweep.
    ///
    /// # Errors
    /// The sweep has no usable points.
    pub(crate) fn of_engine(
        sweep: &[(f64, f64)],
        engine: &str,
        held_tokens: f64,
        known: Option<(&Scenario, &Scratch<'_>)>,
    ) -> anyhow::Result<Self> {
        let mut steps_ms: Vec<(f64, f64)> = sweep
            .iter()
            .map(|(concurrency, tok_s)| (*concurrency, 1000.0 * concurrency / tok_s))
            .collect();
        let mut assumed = Vec::new();
        let mut draft_ms = None;
        if let Some((_, scratch)) = known {
            draft_ms = Some(drafts(&steps_ms, scratch, held_tokens));
            extend(&mut steps_ms, |n| scratch.plain_ms(n, held_tokens));
        } else {
            assumed.push(
                "a dense model, its cache not told apart, 0.6 ms a draft step (--model and --gpu \
                 would settle them)"
                    .to_string(),
            );
        }
        let growth = known.map_or(Growth::DENSE, |(scenario, _)| growth(&scenario.model));
        let mut sweep = Sweep::from_step_ms(&steps_ms, GraphLadder::of_engine(engine), growth)
            .map_err(|e| crate::input::error(format!("plain sweep: {e}")))?;
        if let Some((scenario, scratch)) = known {
            // Sampling and output are paid by sequence as the cache is, not by verified token.
            let mut by_sequence = kv_reading(scenario, held_tokens);
            by_sequence.ms_per_sequence += scratch.sequence_ms;
            sweep = sweep.with_kv(by_sequence);
        }
        let scenario = known.map(|(scenario, _)| scenario);
        Ok(Self {
            sweep,
            draft: draft_step(scenario),
            draft_ms,
            attention_ms: Vec::new(),
            attention_of_many_ms: Vec::new(),
            head: scenario.map_or(HeadKind::Eagle3, |s| s.acceptance.head),
            assumed,
        })
    }

    /// From plain steps, ms by sequences, as the stand-in measures them; with the attention of
    /// such steps as probed alone, and draft steps by concurrency.
    ///
    /// A verify's attention is the kernel's over several tokens a sequence, probed alone (or that
    /// of a plain step of as many sequences); the rest costs what a plain step of as many tokens
    /// costs.
    ///
    /// # Errors
    /// The sweep has no usable points.
    pub(crate) fn of_steps(
        found: &Found,
        scenario: &Scenario,
        scratch: &Scratch<'_>,
        held_tokens: f64,
    ) -> anyhow::Result<Self> {
        let steps_ms: Vec<(f64, f64)> = found
            .plain
            .iter()
            .map(|(n, ms)| (f64::from(*n), *ms))
            .collect();
        let draft_ms = drafts(&steps_ms, scratch, held_tokens);
        let mut core: Vec<(f64, f64)> = found
            .plain
            .iter()
            .map(|(n, ms)| {
                let attention = looked_up(&found.attention, *n).unwrap_or(0.0);
                (f64::from(*n), ms - attention)
            })
            .collect();
        extend(&mut core, |n| scratch.plain_ms(n, 1.0));
        let sweep = Sweep::from_step_ms(&core, GraphLadder::of_engine(""), growth(&scenario.model))
            .map_err(|e| crate::input::error(format!("plain steps: {e}")))?;
        Ok(Self {
            sweep,
            draft: draft_step(Some(scenario)),
            draft_ms: Some(draft_ms),
            attention_ms: found.attention.clone(),
            attention_of_many_ms: found.attention_of_many.clone(),
            head: scenario.acceptance.head,
            assumed: Vec::new(),
        })
    }

    /// The cycle at a point.
    pub(crate) fn at(&self, point: &Point) -> Predicted {
        let passes = f64::from(draft_passes(self.head, point.steps));
        let mut law = cycle(
            &self.sweep,
            self.draft,
            &Speculation {
                concurrency: f64::from(point.concurrency),
                verified_tokens: f64::from(point.steps) + 1.0,
                draft_steps: passes,
            },
        );
        let attention = looked_up(&self.attention_ms, point.concurrency).unwrap_or(0.0);
        law.plain_ms += attention;
        let many = self.attention_of_many_ms.iter();
        law.verify_ms += many
            .filter(|(c, tokens, _)| *c == point.concurrency && *tokens == point.steps + 1)
            .map(|row| row.2)
            .next()
            .unwrap_or(attention);
        let table = self.draft_ms.as_deref().unwrap_or_default();
        if let Some(ms) = looked_up(table, point.concurrency) {
            law.draft_ms = passes * ms;
        }
        let cycle_ms = law.total_ms();
        Predicted {
            plain_ms: law.plain_ms,
            verify_ms: law.verify_ms,
            draft_step_ms: law.draft_ms / passes.max(1.0),
            cycle_ms,
            speedup: law.speedup(point.accept_length),
            tok_s: 1000.0 * f64::from(point.concurrency) * point.accept_length / cycle_ms,
        }
    }
}

/// Draft steps from the architecture, moved by how the plain step of the same load came out: the
/// draft has the target's kinds of work, on the same GPU.
fn drafts(steps_ms: &[(f64, f64)], scratch: &Scratch<'_>, held_tokens: f64) -> Vec<(u32, f64)> {
    let moved = |&(n, ms): &(f64, f64)| {
        let concurrency = n.round().clamp(1.0, 1e9) as u32;
        let ratio = ms / scratch.plain_ms(concurrency, held_tokens);
        Some((
            concurrency,
            ratio * scratch.draft_step_ms(concurrency, held_tokens)?,
        ))
    };
    steps_ms.iter().filter_map(moved).collect()
}

/// Goes on beyond the last point as the model does: it knows where compute takes over.
fn extend(steps_ms: &mut Vec<(f64, f64)>, model_ms: impl Fn(u32) -> f64) {
    steps_ms.sort_by(|a, b| a.0.total_cmp(&b.0));
    let Some(&(last, last_ms)) = steps_ms.last() else {
        return;
    };
    let count = |n: f64| n.round().clamp(1.0, 1e6) as u32;
    for factor in [1.5, 2.0, 3.0, 4.0, 6.0, 8.0] {
        let more = model_ms(count(last * factor)) - model_ms(count(last));
        steps_ms.push((last * factor, last_ms + more.max(0.0)));
    }
}

fn looked_up(table: &[(u32, f64)], concurrency: u32) -> Option<f64> {
    let same = table.iter().find(|(c, _)| *c == concurrency)?;
    Some(same.1)
}

fn draft_step(scenario: Option<&Scenario>) -> DraftStep {
    match scenario {
        Some(s) if s.tp > 1 && s.gpu.nvlink_gb_s <= 0.0 => DraftStep::PCIE,
        _ => DraftStep::LOCAL,
    }
}

/// Reading one sequence's cache once, from the architecture and the card's bandwidth.
fn kv_reading(scenario: &Scenario, held_tokens: f64) -> KvReading {
    let held = Held {
        model: &scenario.model,
        gpu: scenario.gpu,
        sharding: Sharding {
            dcp: u64::from(scenario.dcp),
            ..Sharding::tp(u64::from(scenario.tp))
        },
        kv_dtype: scenario.kv_dtype,
        tokens: held_tokens,
    };
    held.reading()
}

#[cfg(test)]
mod tests {
    use super::super::scratch::Runs;
    use super::*;
    use crate::cli::ScenarioArgs;

    /// vLLM 0.24.0 on one H200, Llama-3.1-8B with dummy weights, 128 prompt tokens, measured with
    /// `verify-hw --engine-url` (docs/HARDWARE.md): users, tok/s.
    const PLAIN: [(f64, f64); 8] = [
        (1.0, 205.4),
        (2.0, 412.1),
        (4.0, 813.7),
        (8.0, 1602.5),
        (16.0, 3169.9),
        (32.0, 5951.6),
        (64.0, 10698.0),
        (128.0, 17564.7),
    ];
    /// The same with EAGLE-3, 3 steps, forced acceptance: users, tok/s, accept length.
    const SPECULATIVE: [(u32, f64, f64); 7] = [
        (1, 430.8, 2.74),
        (2, 845.6, 2.68),
        (4, 1670.6, 2.69),
        (8, 3255.5, 2.68),
        (16, 6275.5, 2.69),
        (32, 11715.2, 2.72),
        (64, 17465.1, 2.71),
    ];

    #[test]
    fn vllms_speedup_on_an_h200_follows_from_its_plain_sweep() {
        let scenario = Scenario::resolve(&ScenarioArgs {
            model: Some("llama-3.1-8b".into()),
            draft: Some("eagle3".into()),
            gpu: Some("h200-sxm".into()),
            gpus: Some(1),
            engine: Some("vllm@0.24.0".into()),
            ..ScenarioArgs::default()
        })
        .expect("a scenario");
        let reduce = |_: f64| 0.0;
        let scratch = Scratch::new(&scenario, Runs::Engine, &reduce);
        let held = 240.0;
        let law = Calibrated::of_engine(&PLAIN, "vllm", held, Some((&scenario, &scratch)));
        let law = law.expect("a sweep");
        for (concurrency, tok_s, accept_length) in SPECULATIVE {
            let predicted = law.at(&Point {
                concurrency,
                held_tokens: held,
                steps: 3,
                accept_length,
            });
            let error = predicted.tok_s / tok_s - 1.0;
            // Beyond the last plain point (128) the model extends the sweep.
            let limit = if concurrency * 4 > 128 { 0.09 } else { 0.03 };
            assert!(
                error.abs() < limit,
                "{concurrency} users: {error:+.3} {predicted:?}"
            );
        }
    }
}
