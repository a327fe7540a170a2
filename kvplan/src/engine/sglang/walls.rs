//! The two walls of SGLang's fraction, and what helps where it does not start. Both walls are those of
//! the fraction itself: states and an unpriced draft's pool grow with it.

use super::reserve::reserve_lines;
use super::state::state_pool;
use super::{Base, Budget, base, budget, budget_at, running};
use crate::GIB;
use crate::ledger::Ledger;
use crate::parts::DraftParts;
use crate::proven::{Off, SeenBeside};
use crate::refusal::{MORE_ROOM, Refusal};
use crate::setup::{Interval, Setup};

/// Steps of the search for a wall: to a millionth of the card.
const STEPS: usize = 20;
/// A fraction is found where it lies no further from the wall that it makes itself: pools are whole
/// pages, so no closer one need exist.
const FOUND: f64 = 4e-6;

/// The fractions that work.
pub(super) fn interval(
    setup: &Setup<'_>,
    weights_gib: f64,
    draft: &DraftParts,
    b: &Budget,
) -> Interval {
    let pool_wall = least(setup, b);
    // The pool of a server that ran is that of its own fraction: a draft's pool grows beyond it.
    let mut other = setup.clone();
    if setup.served_tokens().is_some() {
        other.observed.served = false;
    }
    let seen = seen_beside(setup, weights_gib, draft);
    let setup = &other;
    let base = base(setup, weights_gib, draft);
    let wall = |end: fn(Off) -> f64| {
        // How far a fraction lies below the wall that it makes itself.
        let below = |fraction: f64| {
            let b = budget_at(setup, &base, weights_gib, fraction);
            let (_, running) = running(setup, &b);
            let reserve = reserve_lines(&mut Ledger::unwritten(), setup, &b, draft, running);
            let needed = (reserve.gib + end(Off::of(reserve, seen))).max(0.0);
            (1.0 - needed / b.before).clamp(0.0, 1.0) - fraction
        };
        crossing(b.fraction.clamp(0.0, 1.0), below)
    };
    Interval {
        min: pool_wall,
        max: wall(|off| off.middle),
        max_low: wall(|off| off.high),
        max_high: wall(|off| off.low),
    }
}

/// What lay in the reserve of a server that was seen.
pub(super) fn seen_beside(
    setup: &Setup<'_>,
    weights_gib: f64,
    draft: &DraftParts,
) -> Option<SeenBeside> {
    let (ran, fraction, stayed_up) = setup.as_seen()?;
    let none = DraftParts::default();
    let draft = ran.speculation.map_or(&none, |_| draft);
    let base = base(&ran, weights_gib, draft);
    let b = budget_at(&ran, &base, weights_gib, fraction);
    let (_, running) = running(&ran, &b);
    Some(SeenBeside {
        beside: reserve_lines(&mut Ledger::unwritten(), &ran, &b, draft, running),
        room: b.before * (1.0 - fraction),
        stayed_up,
    })
}

/// Where a falling function of a fraction crosses 0, from a first guess; an end of 0 to 1 where it
/// does not.
fn crossing(guess: f64, below: impl Fn(f64) -> f64) -> f64 {
    // Mostly nothing moves with the fraction, and the first step is the answer; a draft's pool moves
    // with it along a line, and the second step, along that line, is.
    let off_guess = below(guess);
    let first = (guess + off_guess).clamp(0.0, 1.0);
    let off = below(first);
    if off.abs() < FOUND {
        return first;
    }
    let along = first - off * (first - guess) / (off - off_guess);
    if (0.0..=1.0).contains(&along) && below(along).abs() < FOUND {
        return along;
    }
    let (mut low, mut high) = if off > 0.0 {
        (first, 1.0)
    } else {
        (0.0, first)
    };
    for _ in 0..STEPS {
        let middle = f64::midpoint(low, high);
        if below(middle) >= 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The fraction up to which it is refused: less than a page left for the pool, or for the states of
/// one request beside it.
fn least(setup: &Setup<'_>, b: &Budget) -> f64 {
    // Above 1 where the weights alone, or the states beside them, are more than what is free before.
    let wall = |rest: f64| (1.0 - (b.after - rest) / b.before).max(0.0);
    let page_bytes = b.cell * setup.page_tokens.unwrap_or(1).max(1) as f64;
    let starts = |rest: f64| {
        let state = state_pool(setup, rest);
        let slots = state.slots.is_none_or(|slots| slots.requests() > 0);
        slots && (rest - state.reserved_gib) * GIB >= page_bytes
    };
    let stateful = setup.model.state_bytes_per_request(&setup.sharding).total() > 0;
    if setup.served_tokens().is_some() {
        return wall(0.0);
    }
    if !stateful {
        return wall(page_bytes / GIB);
    }
    let (mut low, mut high) = (0.0, b.after.max(1.0));
    while !starts(high) && high < 1e6 {
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..2 * STEPS {
        // A millionth of the card: fractions are printed with four digits.
        if high - low <= 1e-6 * b.before {
            break;
        }
        let middle = f64::midpoint(low, high);
        if starts(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    wall(high)
}

/// The fraction from which this engine starts, rounded up to three digits as it prints it.
pub(crate) fn first_legal(min: f64) -> f64 {
    let rounded = (min * 1000.0).ceil() / 1000.0;
    if rounded > min {
        rounded
    } else {
        rounded + 0.001
    }
}

/// Whether a budget starts: room for the pool, and states of one request.
fn starts(b: &Budget) -> bool {
    let stateless = b.state.slots.is_some_and(|slots| slots.requests() == 0);
    b.rest > 0.0 && b.tokens > 0 && !stateless
}

pub(super) fn refusal(
    setup: &Setup<'_>,
    weights_gib: f64,
    draft: &DraftParts,
    b: &Budget,
    interval: &Interval,
) -> Option<Refusal> {
    if starts(b) {
        return None;
    }
    let stateless = b.state.slots.is_some_and(|slots| slots.requests() == 0);
    let newest = setup.engine.version.since((0, 5, 13), (2026, 6));
    let engine_says = if b.after <= 0.0 {
        // It never comes to sizing a pool.
        "CUDA out of memory, while it loads the weights".to_string()
    } else if newest && b.rest <= 0.0 {
        format!(
            "Loaded weights leave no GPU memory for the KV cache; minimum viable \
             mem_fraction_static is {:.4}",
            (1.0 - b.after / b.before).max(0.0)
        )
    } else if newest && stateless {
        "Hybrid (mamba/linear-attention) state cache is too small to serve any requests".to_string()
    } else {
        "Not enough memory. Please try to increase --mem-fraction-static".to_string()
    };
    let base = base(setup, weights_gib, draft);
    Some(Refusal {
        // Positive rest is necessary, not sufficient: states can eat it, or get too few slots of it.
        short_gib: (-b.rest)
            .max(b.state.reserved_gib - b.rest)
            .max((interval.min - b.fraction) * b.before)
            .max(0.0),
        card_short_gib: 0.0,
        engine_says,
        remedy: remedy(setup, weights_gib, draft, &base, b, interval),
    })
}

/// What to do about a refusal, cheapest first.
fn remedy(
    setup: &Setup<'_>,
    weights_gib: f64,
    draft: &DraftParts,
    base: &Base,
    b: &Budget,
    interval: &Interval,
) -> String {
    let legal = first_legal(interval.min);
    if b.rest > 0.0 && b.state.slots.is_some() {
        return remedy_for_states(setup, weights_gib, base, b, interval);
    }
    if b.after <= 0.0 || legal > 0.99 {
        filled()
    } else if interval.is_empty() {
        format!(
            "no fraction works: the pool needs more than {:.3}, the rest of the engine less than {:.3}; {}",
            interval.min,
            interval.max,
            widened(setup, weights_gib, draft)
        )
    } else {
        format!("raise --mem-fraction-static to at least {legal:.3}")
    }
}

/// Where nothing but fewer bytes of weights on a card helps.
fn filled() -> String {
    format!("the weights fill the card: {MORE_ROOM}")
}

/// What makes room between the walls where there is none, cheapest first.
fn widened(setup: &Setup<'_>, weights_gib: f64, draft: &DraftParts) -> String {
    let opens = |setup: &Setup<'_>, draft: &DraftParts| {
        let b = budget(setup, weights_gib, draft);
        !interval(setup, weights_gib, draft, &b).is_empty()
    };
    // The table of requests has a row of the whole context for each that may run.
    let mut fewer = setup.clone();
    fewer.max_running = Some(setup.max_running.unwrap_or(FEW_REQUESTS).min(FEW_REQUESTS));
    if opens(&fewer, draft) {
        return format!("with --max-running-requests {FEW_REQUESTS} one does");
    }
    let mut other = setup.clone();
    let graphs = other.graph_max_batch.unwrap_or(8).min(8);
    let flag = super::sglang_graph_flag(setup.engine.version);
    other.graph_max_batch = Some(graphs);
    if opens(&other, draft) {
        return format!("with {flag} {graphs} one does");
    }
    let chunk = other.batched_tokens.unwrap_or(1024).min(1024);
    other.batched_tokens = Some(chunk);
    if opens(&other, draft) {
        return format!("with {flag} {graphs} and --chunked-prefill-size {chunk} one does");
    }
    if setup.speculation.is_some() && opens(&setup.plain(), &DraftParts::default()) {
        return "without the draft one does".to_string();
    }
    filled()
}

/// Requests at once that SGLang itself takes where it drafts, and more than a full card holds.
const FEW_REQUESTS: u64 = 48;
/// Tokens of a short request.
const SHORT_REQUEST: u64 = 2048;
/// Shares of the states to try, above the default of 0.9.
const RATIOS: [f64; 6] = [1.5, 2.0, 3.0, 5.0, 10.0, 20.0];

/// The most up to a limit that helps, where the least does.
fn most(least: u64, limit: u64, helps: impl Fn(u64) -> bool) -> Option<u64> {
    if limit < least || !helps(least) {
        return None;
    }
    let (mut low, mut high) = (least, limit);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if helps(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Some(low)
}

/// What lets the states of a hybrid leave a pool: each named only where it does.
fn remedy_for_states(
    setup: &Setup<'_>,
    weights_gib: f64,
    base: &Base,
    b: &Budget,
    interval: &Interval,
) -> String {
    let slots = b.state.slots.unwrap_or_default();
    let why = if slots.requests() > 0 || b.state.reserved_gib >= b.rest {
        format!(
            "the states take {:.2} GiB, the budget has {:.2}",
            b.state.reserved_gib, b.rest
        )
    } else {
        format!(
            "{} state slots, and a request takes {}",
            slots.slots, slots.per_request
        )
    };
    let legal = first_legal(interval.min);
    let mut ways = Vec::new();
    if !interval.is_empty() && legal <= interval.max {
        ways.push(format!("--mem-fraction-static at least {legal:.3}"));
    }
    // A pool of a short request: the very most that starts would leave nothing to serve with.
    let tokens = SHORT_REQUEST.min(setup.context());
    let helps = |change: &dyn Fn(&mut Setup<'_>)| {
        let mut other = setup.clone();
        change(&mut other);
        let b = budget_at(&other, base, weights_gib, b.fraction);
        starts(&b) && b.tokens >= tokens
    };
    let per_request = slots.per_request.max(1);
    let pinned = setup.state_slots.unwrap_or(per_request).max(per_request);
    let pin = |n: u64| helps(&|other: &mut Setup<'_>| other.state_slots = Some(n));
    if let Some(n) = most(per_request, pinned, pin) {
        ways.push(format!("--max-mamba-cache-size {n}"));
    }
    let ratio = |r: &&f64| helps(&|other: &mut Setup<'_>| other.state_ratio = Some(**r));
    let unpinned = setup.state_slots.is_none() && setup.observed.state_gib.is_none();
    if let Some(ratio) = RATIOS.iter().find(ratio).filter(|_| unpinned) {
        ways.push(format!("--mamba-full-memory-ratio {ratio}"));
    }
    let told = setup.max_running.unwrap_or(48).saturating_sub(1);
    let run = |n: u64| helps(&|other: &mut Setup<'_>| other.max_running = Some(n));
    if let Some(n) = most(1, told, run) {
        ways.push(format!("--max-running-requests {n}"));
    }
    match ways.as_slice() {
        [] => format!("{why}; {MORE_ROOM}"),
        ways => format!("{why}; any of these: {}", ways.join("; ")),
    }
}
