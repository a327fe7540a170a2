//! The walls of the fraction in words, and where it stands beside them.

use kvplan::{EngineKind, GIB, Interval, Plan};

use super::Report;
use crate::table::{at_least, at_most, needed, thousands};

/// The fractions that work.
pub(super) fn walls(report: &Report) -> String {
    let interval = &report.cost.with.interval;
    if report.cost.with.loading.is_some() {
        return "no fraction works: it runs out of memory before any pool is sized".to_string();
    }
    if interval.is_empty() {
        return format!(
            "no fraction works: the pool needs {}, what lies outside leaves {} ({})",
            needed(interval.min),
            at_most(interval.max, 3),
            band(interval)
        );
    }
    let own = at_least(interval.min, 4);
    let context = thousands(report.context as f64);
    let of = |tokens: u64| (thousands(tokens as f64), report.length.whose(tokens));
    let longer = report
        .length
        .wall
        .is_some_and(|(_, wall)| wall > interval.min + ROUNDING);
    let states = super::states::bind(&report.cost.with).filter(|_| !longer);
    let states = states.map(super::states::wall);
    let from = match report.length.wall.map(|(tokens, wall)| (of(tokens), wall)) {
        _ if states.is_some() => format!("{own} (pool wall: {})", states.unwrap_or_default()),
        // Told to serve no more than that, the engine wants room for nothing shorter.
        Some(((tokens, whose), wall)) if (wall - interval.min).abs() < ROUNDING => {
            format!("{own} (pool wall: one request of {tokens} tokens, {whose})")
        }
        Some(((tokens, whose), wall)) if wall < interval.max => format!(
            "{} (pool wall: one request of {tokens} tokens, {whose}; {own} for {context})",
            at_least(wall, 4),
        ),
        Some(((tokens, whose), wall)) => format!(
            "{own} (pool wall: one request of {context} tokens; {tokens}, {whose}, need {})",
            needed(wall),
        ),
        None if report.engine.kind == EngineKind::Vllm => {
            let told = thousands(report.cost.with.context_tokens as f64);
            format!("{own} (pool wall: one request of {told} tokens)")
        }
        None => format!("{own} (pool wall)"),
    };
    // Three digits of a narrow range may lie below its own start.
    let digits = match interval.max - interval.min < 0.002 {
        true => 4,
        false => 3,
    };
    format!(
        "legal from {from} to {} ({}, activation wall)",
        at_most(interval.max, digits),
        band(interval)
    )
}

/// A fraction inside the band of the activation wall, whichever half: the first word is by the middle.
pub(super) fn inside_its_band(plan: &Plan, context: u64) -> Option<String> {
    let i = &plan.interval;
    let inside = plan.fraction > i.max_low + ROUNDING && plan.fraction <= i.max_high;
    if plan.refusal.is_some() || !inside {
        return None;
    }
    let (band, clear) = (band(i), clear(plan, context));
    let middle = at_most(i.max, 3);
    Some(match plan.fraction > i.max {
        true => format!(
            "{:.3} is above the middle of the activation wall, {middle} ({band}): it may start and then run \
             out; {clear}",
            plan.fraction
        ),
        false => format!(
            "{:.3} is inside the band of the activation wall, under its middle {middle} ({band}): should it run \
             out, {clear}",
            plan.fraction
        ),
    })
}

/// A fraction above that band.
pub(super) fn beyond(plan: &Plan, context: u64) -> String {
    format!(
        "{:.3} is above the activation wall {} ({}): it starts and then runs out; {}",
        plan.fraction,
        at_most(plan.interval.max, 3),
        band(&plan.interval),
        clear(plan, context)
    )
}

/// Walls are sums of figures with two decimals of a GiB.
const ROUNDING: f64 = 1e-5;

/// Both ends of the activation wall's band.
pub(super) fn band(interval: &Interval) -> String {
    let end = |wall: f64| at_most(wall, 3);
    format!("{} to {}", end(interval.max_low), end(interval.max_high))
}

/// What helps against running out: the fraction that is clear of the band, where one holds a request.
fn clear(plan: &Plan, context: u64) -> String {
    match clear_fraction(plan, context) {
        Some(fraction) => format!("{fraction:.3} is clear of it"),
        None => "lower the prefill chunk or the graph sizes".to_string(),
    }
}

/// Whether a pool of a lower fraction holds a request, by its share of the card.
fn holds(plan: &Plan, fraction: f64, context: u64) -> bool {
    let less = (plan.fraction - fraction) * plan.ledger.total_gib * GIB / plan.kv_bytes_per_token;
    plan.kv_tokens as f64 - less >= context as f64
}

/// The highest fraction under the whole band of the activation wall, as it is typed, where it holds a
/// request.
pub(super) fn clear_fraction(plan: &Plan, context: u64) -> Option<f64> {
    let fraction = typed(plan.interval.max_low);
    (fraction > plan.interval.min && holds(plan, fraction, context)).then_some(fraction)
}

/// A fraction as it is typed, no higher.
pub(super) fn typed(fraction: f64) -> f64 {
    // One that was itself typed is not lowered by the last digit of a sum.
    ((fraction + 1e-8) * 1000.0).floor() / 1000.0
}
