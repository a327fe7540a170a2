//! The weight format of a head.

use crate::engine::Version;

/// Whether an EAGLE-3 head is laid out in its target's weight format, so that a plain head does not
/// load under packed weights (AWQ, GPTQ): vLLM 0.11.0 alone. Layers of the head got no format up to
/// 0.10.2, the target's in 0.11.0, one of their own (pull request 25883) from 0.11.1 on
/// (llama_eagle3.py of each release).
pub fn vllm_head_in_targets_format(version: Version) -> bool {
    version.since((0, 11, 0), (2025, 10)) && !version.since((0, 11, 1), (2025, 11))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_release_lays_a_head_out_in_its_targets_format() {
        let at = |text: &str| vllm_head_in_targets_format(Version::find(text).expect("a version"));
        assert!(at("0.11.0"));
        assert!(!at("0.10.2") && !at("0.11.1") && !at("0.24.0"));
    }
}
