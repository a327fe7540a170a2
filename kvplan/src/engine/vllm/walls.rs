//! The walls of vLLM's utilisation, and what helps where it does not start.

use super::budget::{Budget, budget};
use super::measured::graphs_off_gib;
use super::{batched_tokens, counts_all_that_is_used, max_seqs, nccl_first, states};
use crate::GIB;
use crate::engine::sglang::first_legal;
use crate::groups::Groups;
use crate::parts;
use crate::plan::{typed_fraction, typed_length, usable};
use crate::proven::{self, Off, SeenBeside};
use crate::refusal::{MORE_ROOM, Refusal};
use crate::setup::{Interval, Setup};

/// Taken of what torch sees when vLLM first looks, one rank, GiB: a CUDA context, 0.51 on an H200
/// (docs/HARDWARE.md); 0.61 in the line "Free memory on device" of vLLM on an H100 (../shared/data).
const BEFORE_GIB: f64 = 0.55;
/// What NCCL takes beside it where it is up by then: 0.45 on two H200 (docs/HARDWARE.md).
const BEFORE_WITH_NCCL_GIB: f64 = BEFORE_GIB + 0.45;
/// How far these may be off, as a share.
const BEFORE_SPREAD: f64 = 0.5;
/// What kernels, samplers and the allocator take beyond what was profiled, of torch's total, and as much
/// either way: eight RTX PRO 6000 ran out of memory at 0.97 or served, by flags (../shared/data);
/// vLLM's own advice (gpu_worker.py) leaves 150 MiB.
const ON_DEMAND_SHARE: f64 = 0.01;

/// What lies on the card beside the utilisation's share and the graphs, GiB.
pub(super) struct Beside {
    /// There before the budget starts, and not counted in it.
    pub(super) before: f64,
    /// How much of that is an estimate: what a log shows is none.
    pub(super) before_spread: f64,
    /// Taken on demand while serving.
    pub(super) on_demand: f64,
}

pub(super) fn beside(setup: &Setup<'_>, b: &Budget) -> Beside {
    let seen = setup.observed.free_before_gib.is_some();
    let before = match (
        counts_all_that_is_used(setup.engine.version),
        nccl_first(setup),
    ) {
        (true, _) => 0.0,
        _ if seen || setup.unified_memory => b.total - parts::free_before_gib(setup).min(b.total),
        (_, true) => BEFORE_WITH_NCCL_GIB,
        (_, false) => BEFORE_GIB,
    };
    Beside {
        before,
        before_spread: if seen { 0.0 } else { BEFORE_SPREAD },
        on_demand: ON_DEMAND_SHARE * b.total,
    }
}

/// What lies on the card outside the utilisation's share. Its parts are off each by itself.
fn outside(setup: &Setup<'_>, b: &Budget) -> proven::Beside {
    let beside = beside(setup, b);
    let graphs_off = match b.outside > 0.0 {
        true => graphs_off_gib(setup),
        false => 0.0,
    };
    let before_off = beside.before * beside.before_spread;
    proven::Beside {
        gib: b.outside + beside.before + beside.on_demand,
        off: graphs_off.hypot(before_off).hypot(beside.on_demand),
        parts_off: graphs_off + before_off + beside.on_demand,
    }
}

/// How far that may be off, beside a server that was seen.
pub(super) fn off(setup: &Setup<'_>, b: &Budget) -> Off {
    let seen = setup.as_seen().map(|(ran, fraction, stayed_up)| {
        // Neither weights nor lengths lie outside.
        let budget = budget(&ran, 0.0, ran.context());
        SeenBeside {
            beside: outside(&ran, &budget),
            room: budget.total * (1.0 - fraction),
            stayed_up,
        }
    });
    Off::of(outside(setup, b), seen)
}

/// Least utilisation that holds one request, and the blocks that states want; most that leaves room for what
/// is not counted. The wall is where the ledger's free memory ends.
pub(super) fn interval(
    setup: &Setup<'_>,
    b: &Budget,
    groups: &Groups,
    request_gib: f64,
) -> Interval {
    let fixed = b.total * b.utilisation - b.rest;
    let (gib, off) = (outside(setup, b).gib, off(setup, b));
    let wall = |off: f64| ((b.total - gib - off) / b.total).clamp(0.0, 1.0);
    let for_states = states::blocks(setup, b, groups).map_or(0.0, |states| states.fraction_min);
    Interval {
        min: ((fixed + request_gib) / b.total).max(for_states).max(0.0),
        max: wall(off.middle),
        max_low: wall(off.high),
        max_high: wall(off.low),
    }
}

/// The longest request that blocks of a pool hold.
fn of_blocks(setup: &Setup<'_>, groups: &Groups, blocks: u64) -> u64 {
    let tokens = groups.longest(blocks, batched_tokens(setup));
    tokens.saturating_mul(setup.sharding.dcp.max(1))
}

/// The longest request that a budget holds also at the low end of its band, as it is typed; 0 where its
/// pool may come out at nothing.
fn surely_held(setup: &Setup<'_>, b: &Budget, groups: &Groups) -> u64 {
    let low = of_blocks(setup, groups, groups.blocks((b.low_gib() * GIB).max(0.0)));
    typed_length(low)
}

/// What to serve with where no fraction holds one request of the length: the highest that is clear of the
/// activation wall and the highest under its middle, each with the length that it holds.
fn shorter(
    setup: &Setup<'_>,
    weights_gib: f64,
    groups: &Groups,
    room: &Interval,
) -> Option<String> {
    let held = |fraction: f64| {
        let mut other = setup.clone();
        other.fraction = Some(fraction);
        let b = budget(&other, weights_gib, other.context());
        // Where it holds the length asked for, that is not what it falls short of.
        let tokens = usable(surely_held(&other, &b, groups));
        if tokens < setup.context() { tokens } else { 0 }
    };
    let (clear, most) = (typed_fraction(room.max_low), typed_fraction(room.max));
    let (at_clear, at_most) = (held(clear), held(most));
    let mut words = match (at_clear, at_most) {
        (_, 0) => return None,
        (0, tokens) => format!(
            "raise --gpu-memory-utilization to {most:.3}, inside the band of the activation wall, and serve with \
             --max-model-len {tokens}"
        ),
        (tokens, _) => format!(
            "raise --gpu-memory-utilization to {clear:.3} and serve with --max-model-len {tokens}"
        ),
    };
    if at_clear > 0 && at_most > at_clear {
        words += &format!(" ({most:.3} and {at_most} inside the band of the activation wall)");
    }
    Some(words)
}

/// The fraction that starts with fewer requests at once, where each wants a block for its state: the most of
/// them, from what vLLM takes on a small card down by halves.
fn fewer_at_once(
    setup: &Setup<'_>,
    weights_gib: f64,
    groups: &Groups,
    need_gib: f64,
) -> Option<String> {
    let seqs = max_seqs(setup);
    let halves = std::iter::successors(Some(states::TOLD_AT_MOST), |n| Some(n / 2));
    let mut fewer = halves.take_while(|n| *n > 0).filter(|n| *n < seqs);
    fewer.find_map(|n| {
        let mut told = setup.clone();
        told.max_running = Some(n);
        let b = budget(&told, weights_gib, told.context());
        states::blocks(&told, &b, groups)?;
        let room = interval(&told, &b, groups, need_gib);
        let least = first_legal(room.min);
        let raise = match least <= b.utilisation {
            true => String::new(),
            false => format!("raise --gpu-memory-utilization to {least:.3} and "),
        };
        (least <= room.max_low).then(|| format!("{raise}start with --max-num-seqs {n}"))
    })
}

/// What helps where nothing is left for the pool, or too little to serve with: each named only where it does.
fn remedy_without_pool(
    setup: &Setup<'_>,
    weights_gib: f64,
    b: &Budget,
    groups: &Groups,
    need_gib: f64,
) -> String {
    let room = interval(setup, b, groups, need_gib);
    let mut ways = Vec::new();
    let least = first_legal(room.min);
    if least <= room.max {
        ways.push(format!("raise --gpu-memory-utilization to {least:.3}"));
    } else if let Some(words) = fewer_at_once(setup, weights_gib, groups, need_gib) {
        ways.push(words);
    } else if let Some(words) = shorter(setup, weights_gib, groups, &room) {
        // Up to the wall the card has this much free.
        let lacking = (room.min - room.max) * b.total;
        ways.push(format!(
            "{words}: {lacking:.2} of the {need_gib:.2} GiB for one request of {} are not on the card",
            setup.context()
        ));
    }
    let at = |change: &dyn Fn(&mut Setup<'_>)| {
        let mut other = setup.clone();
        change(&mut other);
        other.fraction = Some(b.utilisation);
        let b = budget(&other, weights_gib, other.context());
        let states = states::blocks(&other, &b, groups);
        b.rest >= need_gib && states.is_none_or(|states| states.blocks >= states.requests)
    };
    let (tokens, seqs) = (2048.min(batched_tokens(setup)), 64.min(max_seqs(setup)));
    let small = |other: &mut Setup<'_>| {
        other.batched_tokens = Some(tokens);
        other.max_running = Some(seqs);
    };
    if at(&small) {
        ways.push(format!(
            "serve with --max-num-batched-tokens {tokens} --max-num-seqs {seqs}"
        ));
    }
    if setup.speculation.is_some() && at(&|other: &mut Setup<'_>| other.speculation = None) {
        ways.push("drop the draft".to_string());
    }
    if ways.is_empty() {
        return format!(
            "weights, activations and graphs (max_num_seqs {}) fill the card at any utilisation that starts: \
             {MORE_ROOM}",
            max_seqs(setup)
        );
    }
    ways.join(", or ")
}

pub(super) fn refusal(
    setup: &Setup<'_>,
    weights_gib: f64,
    b: &Budget,
    groups: &Groups,
    blocks: u64,
) -> Option<Refusal> {
    let context = setup.context();
    let batched = batched_tokens(setup);
    let need_gib = groups.request_bytes(context, batched) / GIB;
    if b.rest <= 0.0 {
        return Some(Refusal {
            short_gib: need_gib - b.rest,
            card_short_gib: 0.0,
            engine_says: "No available memory for the cache blocks. Try increasing \
                          `gpu_memory_utilization` when initializing the engine."
                .to_string(),
            remedy: remedy_without_pool(setup, weights_gib, b, groups, need_gib),
        });
    }
    let room = interval(setup, b, groups, need_gib);
    if groups.concurrency(blocks, context, batched) >= 1.0 {
        return states::refusal(setup, b, groups, &room);
    }
    let least = first_legal(room.min);
    let longest = of_blocks(setup, groups, blocks);
    // The engine's own figure is the edge of the pool it got, which is an estimate here.
    let sure = surely_held(setup, b, groups);
    let advised = match b.rest_off > 0.0 && sure > 0 {
        true => sure,
        false => longest,
    };
    Some(Refusal {
        short_gib: need_gib - b.rest,
        card_short_gib: 0.0,
        engine_says: format!(
            "To serve at least one request with the model's max seq len ({context}), \
             ({need_gib:.2} GiB KV cache is needed, which is larger than the available KV cache \
             memory ({:.2} GiB)). Based on the available memory, the estimated maximum model \
             length is {longest}.",
            b.rest
        ),
        remedy: if usable(advised) == 0 {
            remedy_without_pool(setup, weights_gib, b, groups, need_gib)
        } else if least > room.max {
            format!(
                "serve with --max-model-len {advised}; no --gpu-memory-utilization holds one request of {context}"
            )
        } else {
            format!(
                "serve with --max-model-len {advised}, or raise --gpu-memory-utilization to {least:.3}"
            )
        },
    })
}
