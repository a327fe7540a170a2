//! Memory of CUDA graphs.

use super::seen::as_it_drafted;
use crate::engine::Version;
use crate::setup::{Setup, SpecKind};

/// Most tokens that vLLM captures by itself, on data-centre Blackwell since 0.28 twice as many.
const MOST_BY_ITSELF: u64 = 512;

/// Tokens up to which vLLM captures graphs by itself for so many requests at once, each of which
/// verifies `draft_tokens` (1 without a draft); a pass over more runs outside them. Twice the
/// requests; since 0.13.0 twice what they verify (`_set_cudagraph_sizes` of the released sources,
/// 0.10.0 to 0.33.0).
pub fn vllm_graph_tokens(version: Version, max_seqs: u64, draft_tokens: u64) -> u64 {
    let each = match version.since((0, 13, 0), (2025, 12)) {
        true => draft_tokens.max(1),
        false => 1,
    };
    let all = max_seqs.saturating_mul(2).saturating_mul(each);
    all.min(MOST_BY_ITSELF)
}

/// The flag of the largest size that is captured, since 0.11.1.
pub const VLLM_GRAPH_FLAG: &str = "--max-cudagraph-capture-size";

/// Least size that vLLM captures which holds what so many requests verify at once, tokens, no more
/// than it captures at most by itself: every 8, from 256 on every 16.
pub fn vllm_graph_size(max_seqs: u64, draft_tokens: u64) -> u64 {
    let needed = max_seqs.saturating_mul(draft_tokens).min(MOST_BY_ITSELF);
    let step = if needed > 256 { 16 } else { 8 };
    needed.div_ceil(step) * step
}

/// The flag and its tokens with which the verify of all requests at once runs inside graphs, in the
/// releases that capture fewer by themselves (0.10.0 to 0.12.0; those before captured 512).
pub fn vllm_graph_flag(
    version: Version,
    max_seqs: u64,
    draft_tokens: u64,
) -> Option<(&'static str, u64)> {
    if !version.since((0, 10, 0), (2025, 7)) {
        return None;
    }
    let needed = max_seqs.saturating_mul(draft_tokens).min(MOST_BY_ITSELF);
    if needed <= vllm_graph_tokens(version, max_seqs, draft_tokens) {
        return None;
    }
    let flag = match version.since((0, 11, 1), (2025, 11)) {
        true => VLLM_GRAPH_FLAG,
        false => "--cuda-graph-sizes",
    };
    Some((flag, vllm_graph_size(max_seqs, draft_tokens)))
}

/// Graph memory per captured shape, GiB: median of 2.24, 1.02, 1.12, 0.72 over 67 shapes and 0.41
/// over 35.
const GIB_PER_SHAPE: f64 = 0.0152;
/// Graph memory of a shape with a one-layer draft, over the same without: 1.16 over 49 shapes and
/// 1.14 over 48, against 0.41 over 35 (Llama-8B, EAGLE-3 at 3 and 5 steps and without, on H200). A
/// draft is captured once more in every shape, whatever the layers of the target.
const WITH_DRAFT: f64 = 2.0;

/// Target's and draft's graphs, GiB. What a log shows wins; the estimate then only splits it. A log
/// of a run without the draft shows the target's alone.
pub(super) fn gib(setup: &Setup<'_>, max_seqs: u64) -> (f64, f64) {
    let drafts = setup.speculation.is_some_and(|s| s.kind != SpecKind::Ngram);
    let all_of_target = if drafts { WITH_DRAFT } else { 1.0 };
    let total = match setup.observed.graph_gib {
        // A difference of free memory can come out below nothing.
        Some(seen) if drafts && !setup.observed.pool_with_draft => {
            seen.max(0.0) * WITH_DRAFT * grown(setup, max_seqs)
        }
        Some(seen) => seen.max(0.0) * grown(setup, max_seqs),
        None => GIB_PER_SHAPE * shapes(setup, max_seqs) * all_of_target,
    };
    (total / all_of_target, total - total / all_of_target)
}

/// Captured shapes over those of the server whose graphs were seen, where that ran another number
/// of requests at once or captured up to another batch.
fn grown(setup: &Setup<'_>, max_seqs: u64) -> f64 {
    let then = setup.observed.running.unwrap_or(max_seqs);
    let mut ran = as_it_drafted(setup).unwrap_or_else(|| setup.clone());
    ran.graph_max_batch = setup.observed.graph_max_batch;
    let (now, then) = (shapes(setup, max_seqs), shapes(&ran, then));
    if then > 0.0 { now / then } else { 1.0 }
}

/// Captured shapes: 1, 2, 4, every 8; beyond 256 every 16 since 0.11.1 (67 and 51 shapes to 512 in
/// the logs).
fn shapes(setup: &Setup<'_>, max_seqs: u64) -> f64 {
    let version = setup.engine.version;
    let tokens = setup.speculation.map_or(1, |spec| spec.draft_tokens);
    let default = || vllm_graph_tokens(version, max_seqs, tokens);
    let cap = setup.graph_max_batch.unwrap_or_else(default);
    if cap == 0 {
        return 0.0;
    }
    let wide = if version.since((0, 11, 1), (2025, 11)) {
        0.5
    } else {
        1.0
    };
    let (narrow, beyond) = (cap.min(256) as f64, cap.saturating_sub(256) as f64);
    3.0 + (narrow + wide * beyond) / 8.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0.11.0 printed sizes to 16 for 8 requests, and 5 of them verify 20 tokens at 3 steps.
    #[test]
    fn releases_that_capture_twice_the_requests_are_told_to_capture_what_they_verify() {
        let at = |text: &str| Version::find(text).expect("a version");
        assert_eq!(vllm_graph_tokens(at("0.11.0"), 8, 4), 16);
        assert_eq!(vllm_graph_tokens(at("0.12.0"), 8, 4), 16);
        assert_eq!(vllm_graph_tokens(at("0.13.0"), 8, 4), 64);
        assert_eq!(vllm_graph_tokens(at("0.24.0"), 128, 4), 512);
        let flag = |text: &str, seqs, tokens| vllm_graph_flag(at(text), seqs, tokens);
        assert_eq!(flag("0.11.0", 8, 4), Some(("--cuda-graph-sizes", 32)));
        assert_eq!(
            flag("0.12.0", 9, 6),
            Some(("--max-cudagraph-capture-size", 56))
        );
        assert_eq!(
            flag("0.11.2", 256, 4),
            None,
            "512 by itself, and no more in any release"
        );
        assert_eq!(
            flag("0.11.2", 130, 3),
            Some(("--max-cudagraph-capture-size", 400))
        );
        assert_eq!(flag("0.11.0", 8, 2), None, "twice the requests");
        assert_eq!(flag("0.9.2", 8, 4), None);
        assert_eq!(flag("0.13.0", 8, 4), None);
    }
}
