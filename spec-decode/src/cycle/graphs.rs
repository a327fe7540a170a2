//! Token counts that an engine pads to: a forward pass replays a CUDA graph captured for the next
//! larger batch, and the padded rows cost what real ones cost.

/// The token counts for which graphs are captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GraphLadder {
    /// Every count runs as it is (eager, or an engine that captures by sequences, as SGLang does:
    /// a batch of `c` sequences verifies exactly `c * D` tokens).
    #[default]
    Exact,
    /// vLLM's default `cudagraph_capture_sizes`: 1, 2, 4, then multiples of 8 to 256, then of 16
    /// to 512, in tokens; above that eager. Source: vLLM `set_cudagraph_sizes`.
    VllmDefault,
    /// The same, and with speculation every size rounded up to a multiple of what one sequence
    /// verifies: vLLM with whole graphs for decoding, since 0.11.1. Source: vLLM
    /// `adjust_cudagraph_sizes_for_spec_decode` (runner V2 rounds decode graphs alike).
    VllmRounded,
}

/// Largest token count that vLLM captures by default. Source: vLLM `set_cudagraph_sizes`.
const VLLM_LARGEST: f64 = 512.0;

impl GraphLadder {
    /// The ladder of an engine by name; engines other than vLLM run counts as they are. `rounds`:
    /// whether that vLLM rounds its sizes when it speculates.
    pub fn of_engine(engine: &str, rounds: bool) -> Self {
        match engine.trim().to_ascii_lowercase().starts_with("vllm") {
            false => Self::Exact,
            true if rounds => Self::VllmRounded,
            true => Self::VllmDefault,
        }
    }

    /// Tokens that a plain pass over `tokens` really computes; never fewer.
    pub fn padded(self, tokens: f64) -> f64 {
        if self == Self::Exact || !tokens.is_finite() || tokens > VLLM_LARGEST {
            return tokens;
        }
        match tokens {
            n if n <= 1.0 => n,
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
        if self != Self::VllmRounded || !each.is_finite() || each <= 1.0 {
            return self.padded(tokens);
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

    proptest! {
        #[test]
        fn padding_never_shrinks_and_keeps_order(a in 0.0f64..2000.0, b in 0.0f64..2000.0) {
            let ladder = GraphLadder::VllmDefault;
            prop_assert!(ladder.padded(a) >= a);
            prop_assert!((a <= b) == (ladder.padded(a) <= ladder.padded(b)) || a == b
                || ladder.padded(a) == ladder.padded(b));
            prop_assert_eq!(ladder.padded(ladder.padded(a)), ladder.padded(a));
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
