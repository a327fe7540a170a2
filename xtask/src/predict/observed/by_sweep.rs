//! The user's own plain sweep, beside what is computed for the same loads: a sweep of another cut,
//! format or context shows here.

use pcie_sim::box_spec::{Fabric, FabricState};

use super::super::answer::Assumption;
use super::super::costs::{Costs, all_reduces};
use super::super::links::{Choice, Links};
use super::super::payload_bytes;
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
pub(in crate::predict) fn outside(
    scenario: &Scenario,
    links: &Links<'_>,
    rows: &[Observed],
) -> Option<Assumption> {
    let worst = worst(rows)?;
    let (times, way) = match worst < 1.0 {
        true => (1.0 / worst, "slower"),
        false => (worst, "faster"),
    };
    let causes = match open_causes(scenario, worst < 1.0).as_slice() {
        [] => ";".to_string(),
        [one] => format!(": was it run {one}?"),
        [most @ .., last] => format!(": was it run {}, or {last}?", most.join(", ")),
    };
    Some(Assumption {
        what: format!(
            "the plain sweep is up to {times:.2} times {way} than computed, outside the band{causes} it is taken \
             as it stands"
        ),
        settled_by: settled_by(scenario, links),
    })
}

/// How that sweep may have run otherwise than the answer reckons, as far as its file does not say.
fn open_causes(scenario: &Scenario, slower: bool) -> Vec<String> {
    let ran_on = &scenario.ran.swept_on;
    let mut causes = Vec::new();
    if slower {
        causes.push("with prompts read in between".to_string());
    }
    let (cut, length) = match slower {
        true => ("fewer", "a longer"),
        false => ("more", "a shorter"),
    };
    let (tp, s) = (scenario.tp, if scenario.tp == 1 { "" } else { "s" });
    let cut = ran_on
        .tp
        .is_none()
        .then(|| format!("on {cut} GPUs than the {tp} GPU{s} of this answer"));
    let unsaid = scenario.sweep_context.is_none();
    let length = unsaid.then(|| format!("at {length} context (--baseline-context)"));
    let cut: Vec<String> = cut.into_iter().chain(length).collect();
    if !cut.is_empty() {
        causes.push(cut.join(" or "));
    }
    if reduces_unmeasured(scenario) {
        causes.push("over other links or by another all-reduce than reckoned with".to_string());
    }
    let format = match (is_of_the_checkpoint(scenario), ran_on.kv_dtype.is_some()) {
        (false, false) => Some("in another weight or KV format"),
        (false, true) => Some("in another weight format"),
        (true, false) => Some("in another KV format"),
        (true, true) => None,
    };
    let card = ran_on.gpu.is_none().then_some("on another card");
    causes.extend(format.into_iter().chain(card).map(str::to_string));
    causes
}

/// Whether the sweep's file names the checkpoint that is asked about: its weights are of that format.
fn is_of_the_checkpoint(scenario: &Scenario) -> bool {
    let model = scenario.ran.swept_on.model.as_ref();
    model.is_some_and(|model| *model == scenario.model_given)
}

/// Whether ranks reduce, and nobody measured how long that takes.
fn reduces_unmeasured(scenario: &Scenario) -> bool {
    scenario.tp > 1 && scenario.allreduce_table.is_none()
}

/// What tells which it is: of a sweep whose file says that it is of this server, what is left to measure.
fn settled_by(scenario: &Scenario, links: &Links<'_>) -> String {
    let told = scenario.ran.swept_on.tp.is_some() && is_of_the_checkpoint(scenario);
    let measured = reduces_unmeasured(scenario).then(|| {
        let choice = Choice::parse(&scenario.swept_allreduce).ok();
        let bytes = payload_bytes(scenario, 1, 1);
        let row = choice.and_then(|choice| links.row(choice, bytes, 1));
        let version = match scenario.input("nccl") {
            Some(_) => "",
            None => "--nccl VERSION, ",
        };
        match row.is_some_and(|row| row.is_nccl()) {
            true => format!(
                "all_reduce_perf of nccl-tests as --allreduce-table, {version}or a log with NCCL_DEBUG=INFO"
            ),
            false => "its all-reduces measured, as --allreduce-table".to_string(),
        }
    });
    match (told, measured) {
        (true, measured) => measured.unwrap_or_default(),
        (false, None) => "a plain sweep of this very server".to_string(),
        (false, Some(measured)) => {
            format!(
                "the log of the plain server as --baseline; if it is this very server, {measured}"
            )
        }
    }
}
