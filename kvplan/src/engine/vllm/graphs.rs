//! Memory of CUDA graphs.

use crate::setup::{Setup, SpecKind};

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
    let mut ran = setup.clone();
    ran.graph_max_batch = setup.observed.graph_max_batch;
    let (now, then) = (shapes(setup, max_seqs), shapes(&ran, then));
    if then > 0.0 { now / then } else { 1.0 }
}

/// Captured shapes: 1, 2, 4, every 8; beyond 256 every 16 since 0.11.1 (67 and 51 shapes to 512 in
/// the logs).
fn shapes(setup: &Setup<'_>, max_seqs: u64) -> f64 {
    let version = setup.engine.version;
    // Sizes reach twice the sequences; later builds count the tokens that a sequence verifies (512
    // with 3 steps and 128 sequences, 256 without, in 2026; 16 with 8 sequences in 0.11.0).
    let tokens = match setup.speculation {
        Some(spec) if version.since((0, 12, 0), (2025, 12)) => spec.draft_tokens.max(1),
        _ => 1,
    };
    let default = || max_seqs.saturating_mul(2).saturating_mul(tokens).min(512);
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
