//! The calibrated prediction: the cycle law on this machine's plain steps. It never sees a
//! speculative run.

use spec_decode::HeadKind;
use spec_decode::cycle::Speculation;

use super::scratch::Scratch;
use super::standin::run::Found;
use crate::scenario::Scenario;
use crate::step_time::cycle::graph_ladder;
use crate::step_time::sweep::{Attention, BySequence, Constants, SweepLaw, growth, steps_ms};

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

/// The cycle law on a plain sweep of this server, as `predict` reads the same sweep.
pub(crate) struct Calibrated<'a> {
    law: SweepLaw,
    scratch: Option<&'a Scratch<'a>>,
    held_tokens: f64,
    head: HeadKind,
    pub(crate) assumed: Vec<String>,
}

impl<'a> Calibrated<'a> {
    /// From a sweep of (concurrency, tok/s of all) of a serving engine. With a scratch model,
    /// draft steps and what lies beyond the sweep are the model's, moved to the sweep.
    ///
    /// # Errors
    /// The sweep has no usable points.
    pub(crate) fn of_engine(
        sweep: &[(f64, f64)],
        engine: &str,
        held_tokens: f64,
        known: Option<(&Scenario, &'a Scratch<'a>)>,
    ) -> anyhow::Result<Self> {
        let scratch = known.map(|(_, scratch)| scratch);
        let assumed = if known.is_some() {
            Vec::new()
        } else {
            vec![
                "a dense model, its cache not told apart, 0.12 ms and 2 % of a plain step for a \
                 draft step (--model and --gpu would settle them)"
                    .to_string(),
            ]
        };
        let law = SweepLaw::of_engine(
            &steps_ms(sweep),
            known.map_or_else(
                || graph_ladder(engine, None, false),
                |(_, scratch)| scratch.server().ladder(),
            ),
            known.map_or(Constants::UNKNOWN, |(_, scratch)| {
                Constants::of(scratch.server())
            }),
            scratch.map(|s| BySequence::of(s.server(), held_tokens)),
        )
        .map_err(|e| crate::input::error(format!("plain sweep: {e}")))?;
        Ok(Self {
            law,
            scratch,
            held_tokens,
            head: known.map_or(HeadKind::Eagle3, |(s, _)| s.acceptance.head),
            assumed,
        })
    }

    /// From plain steps, ms by sequences, as the stand-in measures them; with the attention of
    /// such steps as probed alone.
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
        scratch: &'a Scratch<'a>,
        held_tokens: f64,
    ) -> anyhow::Result<Self> {
        let attention = Attention {
            plain_ms: found.attention.clone(),
            of_many_ms: found.attention_of_many.clone(),
        };
        let law = SweepLaw::of_stand_in(&found.plain, attention, growth(&scenario.model))
            .map_err(|e| crate::input::error(format!("plain steps: {e}")))?;
        Ok(Self {
            law,
            scratch: Some(scratch),
            held_tokens,
            head: scenario.acceptance.head,
            assumed: Vec::new(),
        })
    }

    /// The cycle at a point.
    pub(crate) fn at(&self, point: &Point) -> Predicted {
        let passes = f64::from(draft_passes(self.head, point.steps));
        let known = self.scratch.map(|s| s.known(self.held_tokens));
        let law = self.law.cycle(
            known.as_ref(),
            &Speculation {
                concurrency: f64::from(point.concurrency),
                verified_tokens: f64::from(point.steps) + 1.0,
                draft_steps: passes,
            },
        );
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

    /// Another run of the same, its plain sweep to all tokens that are verified.
    const PLAIN_TO_256: [(f64, f64); 9] = [
        (1.0, 204.44),
        (2.0, 406.18),
        (4.0, 808.23),
        (8.0, 1598.39),
        (16.0, 3090.76),
        (32.0, 5762.32),
        (64.0, 10516.06),
        (128.0, 17147.69),
        (256.0, 22595.65),
    ];
    const SPECULATIVE_AGAIN: [(u32, f64, f64); 7] = [
        (1, 437.14, 2.7407),
        (2, 857.15, 2.6768),
        (4, 1693.99, 2.6945),
        (8, 3218.55, 2.6813),
        (16, 6306.37, 2.6920),
        (32, 11673.46, 2.7194),
        (64, 17152.59, 2.7085),
    ];

    /// A third run, both servers on one card, as the program printed it.
    const PLAIN_ON_ONE_CARD: [(f64, f64); 9] = [
        (1.0, 210.70),
        (2.0, 419.12),
        (4.0, 832.67),
        (8.0, 1653.10),
        (16.0, 3216.78),
        (32.0, 5997.62),
        (64.0, 10605.15),
        (128.0, 17345.90),
        (256.0, 22806.85),
    ];
    const SPECULATIVE_ON_ONE_CARD: [(u32, f64, f64); 7] = [
        (1, 435.14, 2.7407),
        (2, 861.51, 2.6768),
        (4, 1698.08, 2.6945),
        (8, 3237.69, 2.6813),
        (16, 6331.34, 2.6920),
        (32, 11498.50, 2.7194),
        (64, 17049.31, 2.7085),
    ];

    #[test]
    fn vllms_speedup_on_an_h200_follows_from_its_plain_sweep() {
        let small = ("llama-3.1-8b", 1, 240.0);
        errors_within(VLLM, small, &PLAIN, &SPECULATIVE, |concurrency| {
            // Beyond the last plain point (128) the model extends the sweep.
            if concurrency * 4 > 128 { 0.09 } else { 0.03 }
        });
        let again = &SPECULATIVE_AGAIN;
        errors_within(VLLM, small, &PLAIN_TO_256, again, |_| 0.06);
        let one_card = &SPECULATIVE_ON_ONE_CARD;
        errors_within(VLLM, small, &PLAIN_ON_ONE_CARD, one_card, |_| 0.02);
    }

    /// Larger models, 2,048 tokens of prompt, 2026-11-30: Qwen3-32B on one card, Llama-3.3-70B on two.
    #[test]
    fn a_draft_step_of_a_large_model_costs_its_own_forward_and_no_share_of_the_target() {
        let plain = [(1.0, 52.7), (8.0, 396.1), (32.0, 1362.6)];
        let speculative = [(1, 127.2, 2.74), (8, 966.0, 2.76), (32, 3047.9, 2.69)];
        let large = ("qwen3-32b", 1, 2500.0);
        errors_within(VLLM, large, &plain, &speculative, |_| LARGE);
        let plain = [(1.0, 47.5), (2.0, 98.0), (4.0, 185.8), (8.0, 363.3)];
        let speculative = [(1, 117.2, 2.74), (4, 457.1, 2.72), (8, 872.3, 2.73)];
        let pair = ("llama-3.1-70b", 2, 2500.0);
        errors_within(VLLM, pair, &plain, &speculative, |_| LARGE);
    }

    /// SGLang 0.5.13 with heads of their own output, 2,048 tokens of prompt, 2026-11-30. A verify of 32
    /// users (128 tokens) lies beyond its sweep; that of one user beside 8B waits for the host.
    #[test]
    fn sglangs_speedup_on_an_h200_follows_from_its_plain_sweep() {
        let within = |concurrency: u32| if concurrency > 8 { 0.18 } else { 0.1 };
        for (case, plain, speculative) in [
            (
                ("llama-3.1-8b", 1, 2300.0),
                [(1.0, 152.4), (8.0, 1163.6), (32.0, 3659.5)],
                [(1, 354.1, 2.99), (8, 3066.1, 2.96), (32, 9073.1, 2.96)],
            ),
            (
                ("qwen3-32b", 1, 2300.0),
                [(1.0, 49.3), (8.0, 374.5), (32.0, 1295.4)],
                [(1, 136.0, 2.99), (8, 1102.0, 2.96), (32, 3467.2, 2.96)],
            ),
            (
                ("llama-3.3-70b", 2, 2300.0),
                [(1.0, 46.3), (8.0, 356.7), (32.0, 1255.0)],
                [(1, 118.7, 2.99), (8, 896.1, 2.96), (32, 2974.4, 2.96)],
            ),
        ] {
            errors_within("sglang@0.5.13", case, &plain, &speculative, within);
        }
    }

    const VLLM: &str = "vllm@0.24.0";

    /// Their largest error, with what plain rates scatter by; 5 % of a plain step each was up to 8 %.
    const LARGE: f64 = 0.035;

    fn errors_within(
        engine: &str,
        (model, gpus, held): (&str, u32, f64),
        plain: &[(f64, f64)],
        speculative: &[(u32, f64, f64)],
        limit: impl Fn(u32) -> f64,
    ) {
        let mut scenario = Scenario::resolve(&ScenarioArgs {
            model: Some(model.into()),
            draft: Some("eagle3".into()),
            gpu: Some("h200-sxm".into()),
            gpus: Some(gpus),
            engine: Some(engine.into()),
            ..ScenarioArgs::default()
        })
        .expect("a scenario");
        // vLLM lends a dummy draft the target's output head; SGLang lets it have its own.
        if engine == VLLM {
            let head = scenario.draft.as_mut().and_then(|d| d.model.as_mut());
            crate::scenario::lend_output_head(head.expect("a head"), &scenario.model);
        }
        let reduce = |_: f64| 0.0;
        let scratch = Scratch::new(&scenario, Runs::Engine, &reduce);
        let name = engine.split('@').next().unwrap_or(engine);
        let law = Calibrated::of_engine(plain, name, held, Some((&scenario, &scratch)));
        let law = law.expect("a sweep");
        for &(concurrency, tok_s, accept_length) in speculative {
            let predicted = law.at(&Point {
                concurrency,
                held_tokens: held,
                steps: 3,
                accept_length,
            });
            let error = predicted.tok_s / tok_s - 1.0;
            println!("{concurrency} users: {error:+.3}");
            assert!(
                error.abs() < limit(concurrency),
                "{concurrency} users: {error:+.3} {predicted:?}"
            );
        }
    }
}
