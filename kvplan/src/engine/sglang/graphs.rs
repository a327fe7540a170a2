//! Which batch sizes SGLang captures as graphs, and what these take. Sources:
//! `_generate_cuda_graph_batch_sizes` of server_args.py (0.5.4 to 2026) and
//! `get_batch_sizes_to_capture` of cuda_graph_runner.py (2025 and 2026). Builds before captured lists
//! that differ by a few sizes.

use super::auto::chunk_and_batch;
use crate::engine::Version;
use crate::ledger::{Added, GRAPHS_OF_BOTH, GRAPHS_OF_TARGET, Ledger};
use crate::setup::{Setup, SpecKind};

/// Graph memory per captured batch size, GiB: 8 sizes 0.11 (0.6B) and 1.66 (GLM DSA tp8), 3 sizes
/// 0.07; the geometric mean, so the band is wide.
const GIB_PER_SIZE: f64 = 0.04;
/// Half width of the band of graphs that are estimated, over the estimate.
pub(super) const SPREAD: f64 = 0.8;

/// Sizes without a draft: first, last, step.
const PLAIN: [(u64, u64, u64); 5] = [
    (1, 2, 1),
    (4, 16, 4),
    (24, 256, 8),
    (272, 496, 16),
    (512, u64::MAX, 32),
];
/// Sizes with one, which pads less.
const DRAFTED: [(u64, u64, u64); 5] = [
    (1, 8, 1),
    (10, 32, 2),
    (40, 64, 4),
    (72, 256, 8),
    (272, u64::MAX, 16),
];

/// Sizes captured up to `largest` by a server that runs `at_once` requests: larger batches never
/// come up and are left out, and the largest that does is captured though no list has it.
fn sizes(setup: &Setup<'_>, drafts: bool, largest: u64, at_once: u64) -> u64 {
    let steps = if drafts { DRAFTED } else { PLAIN };
    let up_to = |cap: u64| {
        let count = |(first, last, step): &(u64, u64, u64)| {
            let last = cap.min(*last);
            last.checked_sub(*first).map_or(0, |span| span / step + 1)
        };
        steps.iter().map(count).sum::<u64>()
    };
    // With attention by data parallelism each rank runs its share of the requests.
    let rows = at_once / setup.sharding.dp_attention.max(1);
    let (all, kept) = (up_to(largest), up_to(largest.min(rows)));
    let listed = rows > 0 && kept > up_to(rows - 1);
    kept + u64::from(all > kept && !listed)
}

/// Largest batch that SGLang captures as a graph where nobody tells it, on this card and this many of
/// them.
pub fn sglang_graph_batch(setup: &Setup<'_>) -> u64 {
    let mut own = setup.clone();
    own.graph_max_batch = None;
    chunk_and_batch(&own).1 as u64
}

/// What a release of SGLang calls the flag of that batch: the older name left with 0.5.20.
pub fn sglang_graph_flag(version: Version) -> &'static str {
    match version.since((0, 5, 14), (2026, 7)) {
        true => "--cuda-graph-max-bs-decode",
        false => "--cuda-graph-max-bs",
    }
}

/// Sizes that this setup captures.
fn captured(setup: &Setup<'_>, running: u64) -> u64 {
    let largest = chunk_and_batch(setup).1 as u64;
    sizes(setup, setup.speculation.is_some(), largest, running)
}

/// Sizes captured over those of the server whose graphs were seen, where other batches are asked for,
/// or one of the two drafts and the other does not.
fn grown(setup: &Setup<'_>, running: u64) -> f64 {
    let seen = setup.observed;
    let drafted = seen.pool_with_draft || seen.graphs_with_draft;
    if !setup.batches_moved() && drafted == setup.speculation.is_some() {
        return 1.0;
    }
    let mut ran = setup.clone();
    ran.graph_max_batch = seen.graph_max_batch;
    let largest = chunk_and_batch(&ran).1 as u64;
    let then = sizes(&ran, drafted, largest, seen.running.unwrap_or(running));
    match then {
        0 => 1.0,
        then => captured(setup, running) as f64 / then as f64,
    }
}

/// A line of graphs that a log shows, as much of them as is captured now; GiB, and of them the
/// estimated: what comes or goes with the other sizes.
fn logged<'a>(ledger: &'a mut Ledger, item: &str, gib: f64, grown: f64) -> (f64, f64, Added<'a>) {
    let now = gib * grown;
    if grown == 1.0 || grown == 0.0 {
        let line = ledger.exact(item, now, "memory usage of the captures in the log");
        return (now, 0.0, line);
    }
    let source = "the captures in the log, by the number of sizes captured";
    let moved = (now - gib).abs().min(now);
    let spread = SPREAD * moved / now.max(f64::MIN_POSITIVE);
    (now, moved, ledger.estimate(item, now, spread, source))
}

/// The graphs, as a log has them where there is one; GiB in all, of them the estimated, and the
/// draft's.
pub(super) fn lines(ledger: &mut Ledger, setup: &Setup<'_>, running: u64) -> (f64, f64, f64) {
    let drafts = setup
        .speculation
        .is_some_and(|spec| spec.kind != SpecKind::Ngram);
    let seen = setup.observed;
    let grown = grown(setup, running);
    if let Some(all) = seen.graph_gib.filter(|_| setup.pool_is_its_own()) {
        let Some(draft) = seen.draft_graph_gib.filter(|_| drafts) else {
            let item = if drafts {
                GRAPHS_OF_BOTH
            } else {
                GRAPHS_OF_TARGET
            };
            let (gib, guessed, _) = logged(ledger, item, all, grown);
            return (gib, guessed, 0.0);
        };
        let target = (all - draft).max(0.0);
        let (target, guessed, _) = logged(ledger, GRAPHS_OF_TARGET, target, grown);
        // What is given back as they are captured does not go by their number.
        let (item, grown) = match draft < 0.0 {
            true => ("draft: given back as its graphs are captured", 1.0),
            false => ("draft: graphs", grown),
        };
        let (draft, guessed_draft, line) = logged(ledger, item, draft, grown);
        line.of_speculation();
        return (target + draft, guessed + guessed_draft, draft);
    }
    // Graphs of a run without the draft are the target's.
    let alone = seen.graph_gib.filter(|_| !seen.pool_with_draft);
    let (graphs, guessed) = match seen.target_graph_gib.or(alone) {
        Some(gib) => {
            let (gib, guessed, _) = logged(ledger, GRAPHS_OF_TARGET, gib, grown);
            (gib, guessed)
        }
        None => {
            let gib = captured(setup, running) as f64 * GIB_PER_SIZE;
            ledger.estimate(GRAPHS_OF_TARGET, gib, SPREAD, "0.04 GiB a captured size");
            (gib, gib)
        }
    };
    let draft = if drafts { graphs } else { 0.0 };
    ledger
        .estimate(
            "draft: graphs",
            draft,
            SPREAD,
            "as many sizes as the target",
        )
        .of_speculation();
    (graphs + draft, guessed + draft, draft)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, EngineKind, Sharding, catalog};

    /// `--max-running 8` left the graphs of 67 sizes in the ledger.
    #[test]
    fn sizes_above_the_requests_at_once_are_not_captured() {
        let model = catalog::find("qwen3-32b").expect("in the catalogue").model;
        let engine = Engine::newest(EngineKind::Sglang);
        let setup = Setup::new(&model, Sharding::tp(8), engine, 140.3);
        // 1, 2, 4, 8, 12, then every 8 to 256, every 16 to 496, 512.
        assert_eq!(sizes(&setup, false, 512, 4096), 52);
        assert_eq!(sizes(&setup, false, 128, 4096), 20);
        assert_eq!(sizes(&setup, false, 512, 8), 4);
        // 1, 2, 4, 8, and 9 for itself.
        assert_eq!(sizes(&setup, false, 512, 9), 5);
        assert_eq!(sizes(&setup, false, 0, 8), 0);
        let mut split = setup.clone();
        split.sharding.dp_attention = 8;
        assert_eq!(sizes(&split, false, 512, 64), 4);
        // Every size to 8, every 2 to 32, every 4 to 64, every 8.
        assert_eq!(sizes(&setup, true, 512, 48), 8 + 12 + 3);
        assert_eq!(sizes(&setup, true, 512, 4096), 67);
    }
}
