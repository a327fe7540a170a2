//! What drafting costs, from figures given by the caller: weights read a pass over the rate they
//! are read at, but never less than its launches; small all-reduces where the head is sharded.

/// A draft head's traffic, whole (before sharding).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftHead {
    /// Weights read by every pass, vocabulary head left out, GB.
    pub layer_gb: f64,
    /// The vocabulary head, GB (a reduced vocabulary makes it small).
    pub vocabulary_gb: f64,
    /// Read only by the first pass, where the accepted tokens enter (EAGLE-3's fusing layer), GB.
    pub first_pass_gb: f64,
    /// All-reduces of one pass when sharded.
    pub all_reduces: f64,
}

/// What the machine does for a draft.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftRates {
    /// Rate at which one GPU reads weights, GB/s.
    pub read_gb_s: f64,
    /// Launch floor of one pass, ms: 0.3 to 0.5 in graphs on large GPUs (0.43 measured for the
    /// Llama-3.1-8B head on H100, whose bytes take 0.22), 1.0 without.
    pub launch_ms: f64,
    /// One small all-reduce over the target's ranks, ms.
    pub all_reduce_ms: f64,
}

/// The parts of all draft passes of a cycle, ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftCost {
    /// Layers and vocabulary head read, or the launches where those take longer.
    pub passes_ms: f64,
    /// All-reduces.
    pub all_reduce_ms: f64,
    /// True where launches, not bytes, set the time.
    pub launch_bound: bool,
}

impl DraftCost {
    /// All of it, ms.
    pub fn total_ms(&self) -> f64 {
        self.passes_ms + self.all_reduce_ms
    }
}

/// Cost of drafting `depth` tokens with the head on `draft_tp` ranks; `one_pass` for heads that
/// draft all positions at once.
pub fn draft_cost(
    head: &DraftHead,
    rates: &DraftRates,
    draft_tp: u32,
    depth: u32,
    one_pass: bool,
) -> DraftCost {
    let passes = if one_pass { depth.min(1) } else { depth };
    if passes == 0 {
        return DraftCost {
            passes_ms: 0.0,
            all_reduce_ms: 0.0,
            launch_bound: false,
        };
    }
    let tp = f64::from(draft_tp.max(1));
    let read_ms = |gb: f64| 1000.0 * gb / tp / rates.read_gb_s.max(1e-9);
    let each = read_ms(head.layer_gb + head.vocabulary_gb);
    let first = read_ms(head.layer_gb + head.vocabulary_gb + head.first_pass_gb);
    let passes = f64::from(passes);
    DraftCost {
        passes_ms: first.max(rates.launch_ms) + (passes - 1.0) * each.max(rates.launch_ms),
        all_reduce_ms: if draft_tp > 1 {
            passes * head.all_reduces * rates.all_reduce_ms
        } else {
            0.0
        },
        launch_bound: each < rates.launch_ms,
    }
}

/// The head unsharded against sharded like the target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftTpChoice {
    /// 1 or the target's.
    pub draft_tp: u32,
    /// At TP 1.
    pub alone: DraftCost,
    /// At the target's TP.
    pub sharded: DraftCost,
}

/// Compares the two; alone wins ties (it needs no all-reduce to be right).
pub fn choose_draft_tp(
    head: &DraftHead,
    rates: &DraftRates,
    target_tp: u32,
    depth: u32,
    one_pass: bool,
) -> DraftTpChoice {
    let alone = draft_cost(head, rates, 1, depth, one_pass);
    let sharded = draft_cost(head, rates, target_tp, depth, one_pass);
    let better = target_tp > 1 && sharded.total_ms() < alone.total_ms();
    DraftTpChoice {
        draft_tp: if better { target_tp } else { 1 },
        alone,
        sharded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EAGLE-3 head of Llama-3.1-8B: 0.75 GB a pass, 0.10 GB more in the first.
    const HEAD_8B: DraftHead = DraftHead {
        layer_gb: 0.49,
        vocabulary_gb: 0.26,
        first_pass_gb: 0.10,
        all_reduces: 2.0,
    };

    #[test]
    fn the_head_of_an_8b_on_a_fast_gpu_is_launch_bound() {
        let rates = DraftRates {
            read_gb_s: 3350.0,
            launch_ms: 0.43,
            all_reduce_ms: 0.01,
        };
        let cost = draft_cost(&HEAD_8B, &rates, 1, 4, false);
        assert!(cost.launch_bound);
        assert!((cost.total_ms() - 4.0 * 0.43).abs() < 1e-9);
        let parallel = draft_cost(&HEAD_8B, &rates, 1, 4, true);
        assert!((parallel.total_ms() - 0.43).abs() < 1e-9);
    }

    #[test]
    fn slow_links_keep_a_small_head_on_one_gpu_and_a_large_one_is_sharded() {
        let pcie = DraftRates {
            read_gb_s: 1400.0,
            launch_ms: 0.4,
            all_reduce_ms: 0.1,
        };
        assert_eq!(choose_draft_tp(&HEAD_8B, &pcie, 8, 3, false).draft_tp, 1);
        let large = DraftHead {
            layer_gb: 3.0,
            vocabulary_gb: 2.3,
            first_pass_gb: 0.3,
            all_reduces: 3.0,
        };
        assert_eq!(choose_draft_tp(&large, &pcie, 8, 3, false).draft_tp, 8);
        assert_eq!(choose_draft_tp(&large, &pcie, 1, 3, false).draft_tp, 1);
    }

    #[test]
    fn a_reduced_vocabulary_makes_a_byte_bound_pass_cheaper() {
        let rates = DraftRates {
            read_gb_s: 936.0,
            launch_ms: 0.3,
            all_reduce_ms: 0.0,
        };
        let full = DraftHead {
            vocabulary_gb: 1.05,
            ..HEAD_8B
        };
        let saved = draft_cost(&full, &rates, 1, 1, false).total_ms()
            - draft_cost(&HEAD_8B, &rates, 1, 1, false).total_ms();
        assert!((saved - 1000.0 * 0.79 / 936.0).abs() < 1e-9);
    }
}
