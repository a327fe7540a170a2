//! The user's own plain sweep, beside what is computed for the same loads: a sweep of another cut,
//! format or context shows here.

use pcie_sim::box_spec::{Fabric, FabricState};

use super::super::answer::Assumption;
use super::super::costs::{Costs, all_reduces};
use super::super::links::{Choice, Links};
use super::by_log::{NOT_JUDGED, SCRATCH_90, place};
use super::{Observed, Seen};
use crate::explain::speeds::LoadSpeed;
use crate::scenario::Scenario;

/// How many times slower prompts read in between make a time per output token at most: 1.68 times the
/// median time between tokens in the benches at hand (51.12 over 30.35 ms).
const MOST_BY_PROMPTS: f64 = 2.0;

/// The lightest and the heaviest load of the sweep, computed from scratch.
pub(super) fn rows(scenario: &Scenario, links: &Links<'_>) -> anyhow::Result<Vec<Observed>> {
    let Some(points) = scenario
        .baseline
        .as_ref()
        .filter(|points| !points.is_empty())
    else {
        return Ok(Vec::new());
    };
    let mut bare = scenario.clone();
    bare.baseline = None;
    bare.kv_dtype = scenario.swept_kv_dtype;
    let all_reduce = all_reduces(scenario, links, Choice::parse(&scenario.swept_allreduce)?);
    let costs = Costs::new(&bare, &all_reduce, links)?;
    let context = scenario.sweep_context.unwrap_or(scenario.context as f64);
    let mut ends = vec![points[0], points[points.len() - 1]];
    ends.dedup();
    let source = scenario
        .input("baseline")
        .and_then(|input| input.value.as_str());
    let row = |(users, tok_s): (f64, f64)| {
        let load = users.round().clamp(1.0, 65_536.0) as u32;
        let plain_ms = costs.cycle(load, context as u64, 1, 2).plain_ms;
        let computed = f64::from(load) * 1000.0 / plain_ms;
        let (low, high) = (computed * (-SCRATCH_90).exp(), computed * SCRATCH_90.exp());
        let s = if load == 1 { "" } else { "s" };
        let mut swept = scenario.swept.iter().filter(|speed| speed.running == users);
        let by_prompts = (low / MOST_BY_PROMPTS..low).contains(&tok_s);
        let judged = load == 1 || !by_prompts || !swept.any(LoadSpeed::holds_prompts);
        let note = match judged {
            true => format!(
                "{} ({low:.0} to {high:.0}) of a computation from scratch",
                place(tok_s, low, high)
            ),
            false => NOT_JUDGED.to_string(),
        };
        (computed.is_finite() && computed > 0.0).then(|| Observed {
            what: format!("your sweep: plain, {load} user{s}"),
            seen: Seen::Sweep,
            observed: tok_s,
            computed: Some(computed),
            computed_low: judged.then_some(low),
            computed_high: judged.then_some(high),
            unit: "tok/s",
            source: source.unwrap_or_default().to_string(),
            note,
        })
    };
    Ok(ends.into_iter().filter_map(row).collect())
}

/// How many times faster the sweep is than computed, where that is outside the band.
fn worst(rows: &[Observed]) -> Option<f64> {
    rows.iter()
        .filter(|row| row.seen == Seen::Sweep)
        .filter_map(Observed::outside)
        .max_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs()))
}

/// The scenario on a fabric that does not collapse, where the plain sweep rules the box's collapse out:
/// it is faster than that allows, and nearer to what is computed without it.
pub(in crate::predict) fn without_refuted_collapse(scenario: Scenario) -> anyhow::Result<Scenario> {
    let state = scenario.wiring.fabric.as_ref().map(|fabric| fabric.state);
    let collapses = state == Some(FabricState::Collapsed);
    let judged = scenario.baseline.is_some() && scenario.allreduce_table.is_none();
    if !collapses || !judged || scenario.tp < 2 {
        return Ok(scenario);
    }
    let off = |scenario: &Scenario| -> anyhow::Result<Option<f64>> {
        Ok(worst(&rows(scenario, &Links::new(scenario)?)?))
    };
    let Some(faster) = off(&scenario)?.filter(|times| *times > 1.0) else {
        return Ok(scenario);
    };
    let mut healthy = scenario.clone();
    healthy.wiring.fabric = Some(Fabric {
        state: FabricState::Healthy,
        all_pairs_gb_s: None,
        source: None,
    });
    if off(&healthy)?.is_some_and(|times| times.ln().abs() >= faster.ln()) {
        return Ok(scenario);
    }
    for of_box in std::mem::take(&mut healthy.wiring.assumptions) {
        let noted = format!("wiring: {}", of_box.what);
        healthy.assumptions.retain(|told| told.what != noted);
    }
    healthy.assumptions.push(Assumption {
        what: format!(
            "wiring: {} without its collapse under all-to-all load, which the plain sweep, {faster:.2} times \
             faster than computed with it, rules out",
            healthy.wiring.name
        ),
        settled_by: "--topology".to_string(),
    });
    Ok(healthy)
}

/// What may be behind a sweep outside the band, in one line; `None` where it lies within.
pub(in crate::predict) fn outside(scenario: &Scenario, rows: &[Observed]) -> Option<Assumption> {
    let worst = worst(rows)?;
    let (times, way, cut, length) = match worst < 1.0 {
        true => (1.0 / worst, "slower", "fewer", "a longer"),
        false => (worst, "faster", "more", "a shorter"),
    };
    let prefills = match worst < 1.0 {
        true => " with prompts read in between,",
        false => "",
    };
    let (tp, s) = (scenario.tp, if scenario.tp == 1 { "" } else { "s" });
    let length = match scenario.sweep_context {
        Some(_) => String::new(),
        None => format!(" or at {length} context (--baseline-context)"),
    };
    let links = match scenario.tp > 1 && scenario.allreduce_table.is_none() {
        true => ", over other links or by another all-reduce than reckoned with",
        false => "",
    };
    Some(Assumption {
        what: format!(
            "the plain sweep is up to {times:.2} times {way} than computed, outside the band: was it run\
             {prefills} on {cut} GPUs than the {tp} GPU{s} of this answer{length}{links}, in another weight or KV format, \
             or on another card? it is taken as it stands"
        ),
        settled_by: "a plain sweep of this very server".to_string(),
    })
}
