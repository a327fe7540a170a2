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
}

/// Largest token count that vLLM captures by default. Source: vLLM `set_cudagraph_sizes`.
const VLLM_LARGEST: f64 = 512.0;

impl GraphLadder {
    /// The ladder of an engine by name; engines other than vLLM run counts as they are.
    pub fn of_engine(engine: &str) -> Self {
        if engine.trim().to_ascii_lowercase().starts_with("vllm") {
            Self::VllmDefault
        } else {
            Self::Exact
        }
    }

    /// Tokens that a pass over `tokens` really computes; never fewer.
    pub fn padded(self, tokens: f64) -> f64 {
        match self {
            Self::Exact => tokens,
            Self::VllmDefault if !tokens.is_finite() || tokens > VLLM_LARGEST => tokens,
            Self::VllmDefault if tokens <= 1.0 => tokens,
            Self::VllmDefault if tokens <= 2.0 => 2.0,
            Self::VllmDefault if tokens <= 4.0 => 4.0,
            Self::VllmDefault if tokens <= 256.0 => (tokens / 8.0).ceil() * 8.0,
            Self::VllmDefault => (tokens / 16.0).ceil() * 16.0,
        }
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
            GraphLadder::of_engine("vLLM@0.24"),
            GraphLadder::VllmDefault
        );
        assert_eq!(GraphLadder::of_engine("sglang").padded(12.0), 12.0);
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
    }
}
