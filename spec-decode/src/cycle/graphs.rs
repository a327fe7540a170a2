//! Token counts that an engine pads to: a forward pass replays a CUDA graph captured for the next
//! larger batch, and the padded rows cost what real ones cost.

/// The token counts for which graphs are captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GraphLadder {
    /// Every count runs as it is: outside graphs, or an engine whose sizes are not known.
    #[default]
    Exact,
    /// vLLM's default `cudagraph_capture_sizes`: 1, 2, 4, then multiples of 8 to 256, then of 16
    /// to 512, in tokens; above that eager. Source: vLLM `set_cudagraph_sizes`.
    VllmDefault,
    /// The same, and with speculation every size rounded up to a multiple of what one sequence
    /// verifies: vLLM with whole graphs for decoding, since 0.11.1. Source: vLLM
    /// `adjust_cudagraph_sizes_for_spec_decode` (runner V2 rounds decode graphs alike).
    VllmRounded,
    /// SGLang's batches, by sequences: one list without a draft, another where it speculates; a
    /// verify computes as many tokens of each row that pads. Builds before 0.5.4 differ by a few
    /// sizes. Source: SGLang `_generate_cuda_graph_batch_sizes`.
    Sglang,
}

/// Batches that SGLang captures without a draft, and then every 32: first, last, step.
const SGLANG_PLAIN: [(f64, f64, f64); 4] = [
    (1.0, 2.0, 1.0),
    (4.0, 16.0, 4.0),
    (24.0, 256.0, 8.0),
    (272.0, 512.0, 16.0),
];
/// Batches that it captures with one, and then every 16.
const SGLANG_DRAFTED: [(f64, f64, f64); 4] = [
    (1.0, 8.0, 1.0),
    (10.0, 32.0, 2.0),
    (40.0, 64.0, 4.0),
    (72.0, 256.0, 8.0),
];

/// The least size that holds `n`, of those listed and then every `step`.
fn least_size(listed: &[(f64, f64, f64)], step: f64, n: f64) -> f64 {
    let range = listed.iter().find(|(_, last, _)| n <= *last);
    let (first, step) = range.map_or((0.0, step), |(first, _, step)| (*first, *step));
    // Between two ranges the next one's first holds it.
    first + ((n - first).max(0.0) / step).ceil() * step
}

/// Largest token count that vLLM captures by default. Source: vLLM `set_cudagraph_sizes`.
const VLLM_LARGEST: f64 = 512.0;

impl GraphLadder {
    /// The ladder of an engine by name; engines other than vLLM and SGLang run counts as they are.
    /// `rounds`: whether that vLLM rounds its sizes when it speculates.
    pub fn of_engine(engine: &str, rounds: bool) -> Self {
        let engine = engine.trim().to_ascii_lowercase();
        match (engine.starts_with("vllm"), rounds) {
            (true, true) => Self::VllmRounded,
            (true, false) => Self::VllmDefault,
            _ if engine.starts_with("sglang") => Self::Sglang,
            _ => Self::Exact,
        }
    }

    /// Tokens that a plain pass over `tokens` really computes; never fewer.
    pub fn padded(self, tokens: f64) -> f64 {
        if self == Self::Exact || !tokens.is_finite() || tokens <= 1.0 {
            return tokens;
        }
        if self == Self::Sglang {
            return least_size(&SGLANG_PLAIN, 32.0, tokens);
        }
        if tokens > VLLM_LARGEST {
            return tokens;
        }
        match tokens {
            n if n <= 2.0 => 2.0,
            n if n <= 4.0 => 4.0,
            n if n <= 256.0 => (n / 8.0).ceil() * 8.0,
            n => (n / 16.0).ceil() * 16.0,
        }
    }

    /// Tokens that a pass over `tokens` of `sequences`, as many of each, really computes: a verify
    /// where those are more than one. Never fewer.
    pub fn padded_of(self, sequences: f64, tokens: f64) -> f64 {
        let each = (tokens / sequences).round();
        if !each.is_finite() || each <= 1.0 {
            return self.padded(tokens);
        }
        match self {
            Self::VllmRounded => {}
            Self::Sglang if sequences > 1.0 => {
                return tokens / sequences * least_size(&SGLANG_DRAFTED, 16.0, sequences);
            }
            Self::Sglang => return tokens,
            Self::Exact | Self::VllmDefault => return self.padded(tokens),
        }
        // The smallest size whose multiple above it holds all tokens.
        let up = |n: f64| (n / each - 1e-9).ceil() * each;
        let padded = up(self.padded(up(tokens) - each + 1.0));
        if padded > VLLM_LARGEST {
            return tokens;
        }
        padded.max(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn three_verified_tokens_of_four_users_run_as_sixteen() {
        assert_eq!(GraphLadder::VllmDefault.padded(12.0), 16.0);
        assert_eq!(GraphLadder::VllmDefault.padded(3.0), 4.0);
        assert_eq!(GraphLadder::VllmDefault.padded(24.0), 24.0);
        assert_eq!(GraphLadder::VllmDefault.padded(257.0), 272.0);
        assert_eq!(GraphLadder::VllmDefault.padded(600.0), 600.0);
        assert_eq!(
            GraphLadder::of_engine("vLLM@0.10", false),
            GraphLadder::VllmDefault
        );
        let sglang = GraphLadder::of_engine("sglang", true);
        assert_eq!(sglang.padded_of(4.0, 12.0), 12.0);
    }

    #[test]
    fn whole_graphs_are_rounded_to_what_one_sequence_verifies() {
        let of = |users: f64, each: f64| {
            GraphLadder::of_engine("vllm", true).padded_of(users, users * each)
        };
        // 1, 2, 4, 8, 16, 24, 32 by threes: 3, 6, 9, 18, 24, 33.
        assert_eq!(
            [1.0, 3.0, 4.0, 8.0, 9.0].map(|c| of(c, 3.0)),
            [3.0, 9.0, 18.0, 24.0, 33.0]
        );
        // By fives: 5, 10, 20.
        assert_eq!([1.0, 2.0, 3.0].map(|c| of(c, 5.0)), [5.0, 10.0, 20.0]);
        // What is rounded beyond the largest size runs as it is: no size above 510.
        assert_eq!(of(170.0, 3.0), 510.0);
        assert_eq!(of(171.0, 3.0), 513.0);
        assert_eq!(GraphLadder::VllmDefault.padded_of(1.0, 5.0), 8.0);
        // Plain passes keep the sizes.
        assert_eq!(of(3.0, 1.0), 4.0);
    }

    /// 5 plain users ran as 5, and 9 verifies as 9.
    #[test]
    fn sglang_pads_batches_to_the_sizes_of_its_two_lists() {
        let plain = |users: f64| GraphLadder::Sglang.padded(users);
        let expected = [1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 256.0, 272.0, 544.0];
        assert_eq!(
            [1.0, 2.0, 3.0, 5.0, 9.0, 13.0, 17.0, 250.0, 257.0, 513.0].map(plain),
            expected
        );
        let verify = |users: f64| GraphLadder::Sglang.padded_of(users, users * 4.0) / 4.0;
        let expected = [1.0, 5.0, 10.0, 32.0, 40.0, 48.0, 72.0, 272.0];
        assert_eq!(
            [1.0, 5.0, 9.0, 31.0, 33.0, 45.0, 65.0, 257.0].map(verify),
            expected
        );
    }

    proptest! {
        #[test]
        fn padding_never_shrinks_and_keeps_order(a in 0.0f64..2000.0, b in 0.0f64..2000.0) {
            for ladder in [GraphLadder::VllmDefault, GraphLadder::Sglang] {
                prop_assert!(ladder.padded(a) >= a);
                prop_assert!((a <= b) == (ladder.padded(a) <= ladder.padded(b)) || a == b
                    || ladder.padded(a) == ladder.padded(b));
                prop_assert_eq!(ladder.padded(ladder.padded(a)), ladder.padded(a));
            }
        }

        #[test]
        fn a_rounded_size_holds_the_tokens_and_is_a_size(users in 1u32..300, each in 2u32..17) {
            let (sequences, each) = (f64::from(users), f64::from(each));
            let tokens = sequences * each;
            let padded = GraphLadder::VllmRounded.padded_of(sequences, tokens);
            prop_assert!(padded >= tokens && padded % each == 0.0);
            let sizes = [1.0, 2.0, 4.0].into_iter().chain((1..=32).map(|n| 8.0 * f64::from(n)))
                .chain((17..=32).map(|n| 16.0 * f64::from(n)));
            let least = sizes.map(|n: f64| (n / each).ceil() * each)
                .filter(|n| *n >= tokens && *n <= 512.0).fold(f64::INFINITY, f64::min);
            prop_assert_eq!(padded, if least.is_finite() { least } else { tokens });
        }
    }
}
