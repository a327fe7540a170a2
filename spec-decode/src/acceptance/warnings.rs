//! Signs that an acceptance figure comes from a broken setup rather than from a bad draft.
//! Warnings are data: the caller prints them.

use super::metrics::conditional;
use crate::HeadKind;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Probably wrong.
    Warning,
    /// Certainly wrong.
    Broken,
}

/// One finding.
#[derive(Debug, Clone, PartialEq)]
pub struct Warning {
    /// How bad it is.
    pub severity: Severity,
    /// A stable key, for tests and JSON.
    pub kind: &'static str,
    /// What was seen, with its figures.
    pub what: String,
    /// What it usually means.
    pub why: &'static str,
    /// What to do about it.
    pub mend: &'static str,
}

/// What was observed; `None` and empty where it was not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// Accept length, bonus token included.
    pub accept_length: Option<f64>,
    /// What drafted. Look-up copies the context: it has no head that could be broken.
    pub head: Option<HeadKind>,
    /// Drafted depth (steps).
    pub depth: Option<u32>,
    /// Verify passes behind the accept length.
    pub cycles: Option<f64>,
    /// Cumulative rates by position.
    pub position_rates: Vec<f64>,
    /// Accept lengths in the order of the log.
    pub over_time: Vec<f64>,
    /// Accept length with another all-reduce, everything else equal.
    pub with_other_allreduce: Option<f64>,
    /// SGLang: steps, top-k, draft tokens.
    pub tree_flags: Option<(u32, u32, u32)>,
}

/// Accept length at depth 3 below which a load is suspect: a wrong template gives 2.42 where 5.88
/// is right, a missing language 1.48, but no sound public pair is under 1.3.
const SUSPECT_AT_DEPTH_3: f64 = 1.3;

/// Fewer cycles than this prove nothing: a sound pair (first position at least 0.4) accepts
/// nothing in 20 of them once in 27,000 logs.
const FEW_CYCLES: f64 = 20.0;

/// Every finding, the worst first.
pub fn diagnose(observed: &Observed) -> Vec<Warning> {
    let mut found = Vec::new();
    found.extend(of_length(observed));
    if !observed.copies() {
        found.extend(of_positions(&observed.position_rates));
        found.extend(of_time(&observed.over_time));
    }
    found.extend(of_allreduce(observed));
    found.extend(observed.tree_flags.and_then(of_tree_flags));
    found.sort_by_key(|w| std::cmp::Reverse(w.severity));
    found
}

impl Observed {
    fn copies(&self) -> bool {
        self.head == Some(HeadKind::NGram)
    }
}

/// Look-up that seldom finds something to copy: the requests', not the setup's.
fn little_repeats(length: f64, depth: u32) -> Option<Warning> {
    (depth >= 3 && length < SUSPECT_AT_DEPTH_3).then(|| Warning {
        severity: Severity::Note,
        kind: "little-repeats",
        what: format!("accept length {length:.2} at depth {depth} of look-up"),
        why: "little of the output repeats the prompt, which is normal in chat; look-up has no draft that \
              could be set up wrong",
        mend: "it pays where outputs edit or quote their prompts, and above the break-even that predict names",
    })
}

fn of_length(observed: &Observed) -> Option<Warning> {
    let length = observed.accept_length?;
    let depth = observed.depth.unwrap_or(3);
    if observed.cycles.is_some_and(|n| n < FEW_CYCLES) {
        return Some(Warning {
            severity: Severity::Note,
            kind: "few-cycles",
            what: format!(
                "accept length {length:.2} over only {:.0} cycles",
                observed.cycles?
            ),
            why: "so few say little; the band shows how little",
            mend: "measure over some hundred cycles of real prompts",
        });
    }
    if length < 1.005 && !observed.copies() {
        return Some(Warning {
            severity: Severity::Broken,
            kind: "nothing-accepted",
            what: format!("accept length {length:.2}: no drafted token was ever accepted"),
            why: "the draft does not see the target: wrong or untied embedding, transposed head, \
                  hidden states of the wrong layers, or a vocabulary map that does not match",
            mend: "check that the draft was made for this very target, and the engine's version \
                   against the draft's card; speculation only costs until then",
        });
    }
    if length > f64::from(depth) + 1.005 && observed.tree_flags.is_none_or(|f| f.1 <= 1) {
        return Some(Warning {
            severity: Severity::Broken,
            kind: "more-than-drafted",
            what: format!("accept length {length:.2} at depth {depth}: above depth + 1"),
            why: "the figure and the depth belong to different runs, or the figure is no accept \
                  length",
            mend: "give the depth (steps) that the run had",
        });
    }
    let chain = observed.tree_flags.is_none_or(|f| f.1 <= 1);
    if depth >= 2 && chain && length > f64::from(depth) + 0.995 {
        return Some(Warning {
            severity: Severity::Warning,
            kind: "everything-accepted",
            what: format!("accept length {length:.2} at depth {depth}: no draft was ever refused"),
            why: "acceptance is forced (a simulated or synthetic accept length), or the prompts \
                  repeat one text",
            mend: "switch the forcing off and measure with your own prompts",
        });
    }
    if observed.copies() {
        return little_repeats(length, depth);
    }
    (depth >= 3 && length < SUSPECT_AT_DEPTH_3).then(|| Warning {
        severity: Severity::Warning,
        kind: "suspiciously-low",
        what: format!("accept length {length:.2} at depth {depth}"),
        why: "so low comes from the setup, not from the draft: another chat template than the \
              draft was trained with, a language it never saw, a quantised or rotated target, or \
              a context beyond the draft's trained length",
        mend: "compare template, language and context with the draft's card, then measure again",
    })
}

fn of_positions(rates: &[f64]) -> Option<Warning> {
    let alphas = conditional(rates).ok()?;
    let (first, second) = (*alphas.first()?, *alphas.get(1)?);
    // Separately trained modules rise by a few hundredths; a fault jumps.
    (first < 0.5 && second > first + 0.15).then(|| Warning {
        severity: Severity::Warning,
        kind: "first-position-low",
        what: format!(
            "position 1 is accepted in {first:.2} of cycles, position 2 in {second:.2} of those"
        ),
        why: "the first draft token is made from the target's hidden state: it is stale, of the \
              wrong layer or shifted by one, while the draft's own states are sound",
        mend: "check the captured layers and the engine's version; try without overlap scheduling",
    })
}

fn of_time(over_time: &[f64]) -> Option<Warning> {
    if over_time.len() < 8 {
        return None;
    }
    let quarter = over_time.len() / 4;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let head = mean(&over_time[..quarter]);
    let tail = mean(&over_time[over_time.len() - quarter..]);
    (tail - 1.0 < 0.7 * (head - 1.0) && head > 1.2).then(|| Warning {
        severity: Severity::Warning,
        kind: "falls-over-time",
        what: format!("accept length falls from {head:.2} to {tail:.2} along the log"),
        why: "a draft cache that goes stale, or contexts that grow past the draft's trained length",
        mend: "restart and compare the first minutes; cap the context or switch speculation off",
    })
}

fn of_allreduce(observed: &Observed) -> Option<Warning> {
    let (length, other) = (observed.accept_length?, observed.with_other_allreduce?);
    let gap = (length - other).abs();
    (gap > 0.15 && gap > 0.1 * length.max(other)).then(|| Warning {
        severity: Severity::Broken,
        kind: "allreduce-changes-acceptance",
        what: format!("accept length {length:.2} against {other:.2} with another all-reduce"),
        why: "one of the kernels corrupts hidden states: acceptance does not depend on how sums \
              are made",
        mend: "use the one with the higher accept length and check it with `verify-hw`",
    })
}

fn of_tree_flags((steps, topk, draft_tokens): (u32, u32, u32)) -> Option<Warning> {
    let wasted = crate::trees::wasted_drafts(steps, topk, draft_tokens)?;
    Some(Warning {
        severity: Severity::Warning,
        kind: "wasted-drafts",
        what: format!(
            "steps {steps}, top-k {topk}, draft tokens {draft_tokens}: {}",
            wasted.what
        ),
        why: "draft tokens count the root (the token just sampled), so a chain of S steps needs \
              S + 1",
        mend: wasted.mend,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(observed: &Observed) -> Vec<&'static str> {
        diagnose(observed).iter().map(|w| w.kind).collect()
    }

    fn length(accept_length: f64, depth: u32) -> Observed {
        Observed {
            accept_length: Some(accept_length),
            depth: Some(depth),
            ..Observed::default()
        }
    }

    #[test]
    fn exactly_one_is_a_broken_load() {
        assert_eq!(kinds(&length(1.0, 3)), ["nothing-accepted"]);
        assert_eq!(diagnose(&length(1.0, 3))[0].severity, Severity::Broken);
    }

    #[test]
    fn three_cycles_without_an_accepted_token_prove_nothing() {
        let observed = Observed {
            cycles: Some(3.0),
            ..length(1.0, 3)
        };
        assert_eq!(kinds(&observed), ["few-cycles"]);
        let observed = Observed {
            cycles: Some(300.0),
            ..length(1.0, 3)
        };
        assert_eq!(kinds(&observed), ["nothing-accepted"]);
    }

    #[test]
    fn under_1_3_at_depth_3_is_suspect_and_2_3_is_not() {
        assert_eq!(kinds(&length(1.04, 4)), ["suspiciously-low"]);
        assert!(kinds(&length(2.3, 3)).is_empty());
        // One drafted token can honestly give 1.25.
        assert!(kinds(&length(1.25, 1)).is_empty());
    }

    #[test]
    fn look_up_that_seldom_copies_is_no_fault_of_a_setup() {
        for accept_length in [1.0, 1.04, 1.23] {
            let observed = Observed {
                head: Some(HeadKind::NGram),
                position_rates: vec![0.1, 0.09],
                ..length(accept_length, 5)
            };
            let found = diagnose(&observed);
            assert_eq!(kinds(&observed), ["little-repeats"]);
            assert_eq!(found[0].severity, Severity::Note);
            assert!(!found[0].mend.contains("template"), "{found:?}");
        }
    }

    #[test]
    fn an_engine_that_refuses_nothing_was_told_to() {
        assert_eq!(kinds(&length(4.0, 3)), ["everything-accepted"]);
        assert!(kinds(&length(3.9, 3)).is_empty());
        // One drafted token can be as sure as that for a while.
        assert!(kinds(&length(2.0, 1)).is_empty());
    }

    #[test]
    fn more_tokens_than_drafted_is_named() {
        // A public cookbook row: accept length 3.27 at 2 steps.
        assert_eq!(kinds(&length(3.27, 2)), ["more-than-drafted"]);
    }

    #[test]
    fn a_low_first_position_with_high_later_ones_is_a_shifted_hidden_state() {
        let observed = Observed {
            position_rates: vec![0.3, 0.25, 0.2],
            ..Observed::default()
        };
        assert_eq!(kinds(&observed), ["first-position-low"]);
        // Eight modules, GSM8K: rises gently and is sound.
        let sound = Observed {
            position_rates: vec![0.757, 0.601, 0.498, 0.411, 0.354, 0.298, 0.261, 0.223],
            ..Observed::default()
        };
        assert!(kinds(&sound).is_empty());
    }

    #[test]
    fn a_falling_log_and_a_kernel_that_corrupts_are_named() {
        let falling = Observed {
            over_time: vec![2.4, 2.4, 2.3, 2.3, 2.0, 1.8, 1.5, 1.3],
            ..Observed::default()
        };
        assert_eq!(kinds(&falling), ["falls-over-time"]);
        let corrupt = Observed {
            with_other_allreduce: Some(1.06),
            ..length(2.2, 3)
        };
        assert_eq!(kinds(&corrupt), ["allreduce-changes-acceptance"]);
    }

    #[test]
    fn steps_4_draft_tokens_3_wastes_two_drafts() {
        let observed = Observed {
            tree_flags: Some((4, 1, 3)),
            ..Observed::default()
        };
        assert_eq!(kinds(&observed), ["wasted-drafts"]);
    }
}
