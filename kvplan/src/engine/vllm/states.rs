//! vLLM's rule for the states of linear and Mamba layers: with graphs of whole passes it starts only
//! where each request that it may run at once has a block of the pool.

use super::budget::Budget;
use super::max_seqs;
use crate::GIB;
use crate::engine::sglang::first_legal;
use crate::groups::Groups;
use crate::pool::StateBlocks;
use crate::refusal::Refusal;
use crate::setup::{Interval, Setup};

/// Requests at once that vLLM takes by itself on a small card: what a large one is told before fewer.
pub(super) const TOLD_AT_MOST: u64 = 256;

/// Whether a start is refused whose pool has fewer blocks than requests may run at once: 0.20.0 to 0.33.0
/// (`resolve_cudagraph_mode_and_sizes`; 0.19.1 captures smaller graphs instead). Not without graphs, and not
/// of a server that was seen to serve.
fn asked(setup: &Setup<'_>, groups: &Groups) -> bool {
    setup.engine.version.since((0, 20, 0), (2026, 5))
        && groups.keeps_states()
        && setup.graph_max_batch != Some(0)
        && !setup.ran()
}

/// Blocks of a budget's pool beside the requests that each want one; `None` where nobody asks. `fixed_gib`
/// is what the utilisation pays beside the pool.
pub(super) fn blocks(setup: &Setup<'_>, b: &Budget, groups: &Groups) -> Option<StateBlocks> {
    let blocks = |gib: f64| groups.blocks((gib * GIB).max(0.0));
    let seqs = max_seqs(setup);
    let fixed_gib = b.total * b.utilisation - b.rest;
    asked(setup, groups).then(|| StateBlocks {
        requests: seqs,
        blocks: blocks(b.rest),
        surely: blocks(b.low_gib()),
        fraction_min: (fixed_gib + groups.bytes_of(seqs) / GIB) / b.total,
    })
}

/// The refusal of a pool with fewer blocks than requests.
pub(super) fn refusal(
    setup: &Setup<'_>,
    b: &Budget,
    groups: &Groups,
    room: &Interval,
) -> Option<Refusal> {
    let states = blocks(setup, b, groups).filter(|states| states.blocks < states.requests)?;
    let (held, requests) = (states.blocks, states.requests);
    let told = states.advised();
    let least = first_legal(room.min);
    let more = match least > room.max {
        true => String::new(),
        false => format!(", or raise --gpu-memory-utilization to {least:.3}"),
    };
    Some(Refusal {
        short_gib: groups.bytes_of(requests - held) / GIB,
        card_short_gib: 0.0,
        engine_says: format!(
            "max_num_seqs ({requests}) exceeds available Mamba cache blocks ({held}). Each decode sequence \
             requires one Mamba cache block, so CUDA graph capture cannot proceed."
        ),
        remedy: match told {
            0 => format!("raise --gpu-memory-utilization to {least:.3}"),
            _ => format!("start with --max-num-seqs {told}{more}"),
        },
    })
}

/// Requests at once that vLLM must be told for a model with states, where its own default is not sure of its
/// blocks: 256, which it takes by itself on a small card, or the first half of that, and so on, that is; and
/// no fewer than `load`, as far as the pool goes. `None` where the default is sure, or nobody asks.
pub fn vllm_requests_told(setup: &Setup<'_>, load: u64) -> Option<u64> {
    if setup.max_running.is_some() {
        return None;
    }
    let of = |setup: &Setup<'_>| crate::plan(setup).ok();
    let own = of(setup)?.state_blocks?;
    if own.surely >= own.requests {
        return None;
    }
    // Fewer at once leave the pool more room.
    let at = |requests: u64| {
        let mut told = setup.clone();
        told.max_running = Some(requests);
        of(&told)?.state_blocks
    };
    let sure = |requests: &u64| at(*requests).is_some_and(|states| states.surely >= *requests);
    let halves = std::iter::successors(Some(TOLD_AT_MOST), |n| Some(n / 2).filter(|n| *n > 0));
    let told = halves.filter(|n| *n < own.requests).find(sure);
    let load = load.clamp(1, own.requests);
    let more = Some(load).filter(|load| told.is_none_or(|told| *load > told));
    let starts = |load: &u64| at(*load).is_some_and(|states| states.blocks >= *load);
    more.filter(|load| sure(load) || (told.is_none() && starts(load)))
        .or(told)
}
