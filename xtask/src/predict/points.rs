//! Operating points: depths at a load and context, their speedup and its band.

use spec_decode::HeadKind;
use spec_decode::bands::{
    AcceptSource, Band, Conditions, NORMAL_90, READING_HALF_WIDTH, ResidualModel, Situation,
    StepSource, normal_cdf,
};
use spec_decode::economics::depth::{TIE_SHARE, pick};
use spec_decode::verdict::Verdict as CrateVerdict;

use super::answer::{Faster, Memory, Point, Verdict};
use super::costs::{Costs, CycleCost};
use super::pasted::{Judged, fastest, surest};
use crate::scenario::{Known, Scenario};

/// Depths tried where the user fixes none.
const DEPTHS: std::ops::RangeInclusive<u32> = 1..=8;
/// Tokens looked up where nobody measured, as in vLLM's own example.
const LOOKED_UP: u32 = 5;

/// A depth to try: draft steps and tokens verified per sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Depth {
    pub(super) steps: u32,
    pub(super) tokens: u32,
}

/// The depths a scenario allows: the fixed one, else [`DEPTHS`].
pub(super) fn depths(scenario: &Scenario) -> Vec<Depth> {
    match (scenario.steps, scenario.draft_tokens) {
        (Some(steps), tokens) => vec![Depth {
            steps,
            tokens: tokens.unwrap_or(steps.saturating_add(1)),
        }],
        // A tree holds any number of steps within its tokens.
        (None, Some(tokens)) if scenario.topk.is_some_and(|topk| topk > 1) => DEPTHS
            .filter(|steps| *steps < tokens)
            .map(|steps| Depth { steps, tokens })
            .collect(),
        (None, Some(tokens)) => vec![Depth {
            steps: tokens.saturating_sub(1).max(1),
            tokens,
        }],
        (None, None) => DEPTHS
            .filter(|steps| *steps <= deepest(scenario))
            .map(|steps| Depth {
                steps,
                tokens: steps + 1,
            })
            .collect(),
    }
}

/// Deepest chain tried: how a copied run goes on beyond what was measured nobody knows, and modules
/// trained for a position each end with the last (vLLM refuses depths that are no multiple).
fn deepest(scenario: &Scenario) -> u32 {
    match scenario.acceptance.head {
        HeadKind::NGram => {}
        HeadKind::MtpModules => {
            return u32::try_from(scenario.model.mtp_modules.max(1)).unwrap_or(u32::MAX);
        }
        _ => return u32::MAX,
    }
    let measured = scenario
        .input("accept_depth")
        .and_then(|d| d.value.as_u64());
    measured.map_or(LOOKED_UP, |depth| u32::try_from(depth).unwrap_or(u32::MAX))
}

/// Accept length at a depth, of a chain or of the scenario's tree: low, mid, high.
fn accept_band(scenario: &Scenario, depth: Depth, context: u64) -> (f64, f64, f64) {
    let topk = scenario.topk.unwrap_or(1);
    scenario
        .acceptance
        .tree_band(depth.steps, topk, depth.tokens, context)
}

/// Accept length of a depth and tree width at a context.
pub(super) fn accept_length(scenario: &Scenario, (depth, topk): (Depth, u32), context: u64) -> f64 {
    let acceptance = &scenario.acceptance;
    let band = acceptance.tree_band(depth.steps, topk, depth.tokens, context);
    band.1
}

/// A depth at an operating point, costed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tried {
    pub(super) depth: Depth,
    pub(super) cost: CycleCost,
    pub(super) accept_length: f64,
    pub(super) speedup: f64,
}

/// Costs every depth at a load and context; best first is not implied, order is by depth.
pub(super) fn try_depths(
    scenario: &Scenario,
    costs: &Costs<'_>,
    users: u32,
    context: u64,
) -> Vec<Tried> {
    depths(scenario)
        .into_iter()
        .map(|depth| {
            let cost = costs.cycle(users, context, depth.steps, depth.tokens);
            let accept_length = accept_band(scenario, depth, context).1;
            Tried {
                depth,
                cost,
                accept_length,
                speedup: cost.speedup(accept_length),
            }
        })
        .collect()
}

/// The best of the tried depths, by the one rule for all of them.
pub(super) fn best(tried: &[Tried]) -> Option<&Tried> {
    pick(tried, |t| t.speedup)
}

/// Depths that cannot be told from the best.
pub(super) fn ties(tried: &[Tried], best: &Tried) -> Vec<u32> {
    tried
        .iter()
        .filter(|t| t.speedup >= best.speedup * (1.0 - TIE_SHARE))
        .map(|t| t.depth.steps)
        .collect()
}

/// What a prediction rests on.
fn conditions(
    scenario: &Scenario,
    costs: &Costs<'_>,
    (users, context): (u32, u64),
    tried: &Tried,
) -> Conditions {
    let accept = match scenario.acceptance.known {
        Known::Measured(_) => AcceptSource::Measured,
        Known::Assumed { .. } | Known::Prior(_) => AcceptSource::Prior,
    };
    let step = if costs.has_sweep() {
        StepSource::Sweep
    } else {
        StepSource::Scratch
    };
    let (accept_down, accept_up) = accept_widths(scenario, tried.depth, context);
    Conditions {
        situation: Situation::new(step, accept),
        tokens: f64::from(users) * f64::from(tried.depth.tokens),
        extra_share: 1.0 - tried.cost.plain_ms / tried.cost.cycle_ms(),
        beyond: tried.cost.beyond,
        slower: tried.cost.slower,
        accept_down,
        accept_up,
    }
}

/// Most that a measured accept length may be where nothing was accepted: engines print two
/// decimals.
const NOTHING_ACCEPTED: f64 = 1.005;

/// How far the 90 % band of the accept length reaches down and up, ln. Where a measurement says
/// that nothing is ever accepted, that is no luck of the minute: the draft does not fit the target.
pub(super) fn accept_widths(scenario: &Scenario, depth: Depth, context: u64) -> (f64, f64) {
    let (low, mid, high) = accept_band(scenario, depth, context);
    if matches!(scenario.acceptance.known, Known::Measured(_)) && mid < NOTHING_ACCEPTED {
        return (0.0, 0.0);
    }
    let width = |ratio: f64| ratio.max(1.0).ln();
    (width(mid / low), width(high / mid))
}

/// The largest speedup that is believed possible at an accept length, of so many tokens verified.
pub(super) fn most(accept_length: f64, tokens: u32, conditions: &Conditions) -> f64 {
    // Other minutes of the same server accept more or less than the reading.
    let measured = conditions.situation.accept == AcceptSource::Measured;
    let other_minutes = if measured { READING_HALF_WIDTH } else { 0.0 };
    let up = conditions.accept_up.hypot(other_minutes);
    let most = (accept_length * up.exp()).min(f64::from(tokens));
    match measured && accept_length < NOTHING_ACCEPTED {
        true => most.min(1.0),
        false => most,
    }
}

/// The band of a prediction, from the residuals of its situation; an assumed accept length widens
/// it by the range that the scenario states, a pinned verify by what it leaves open.
fn band(
    scenario: &Scenario,
    costs: &Costs<'_>,
    at: (u32, u64),
    tried: &Tried,
    conditions: &Conditions,
) -> Band {
    let most = most(tried.accept_length, tried.depth.tokens, conditions);
    if let Some(half_width) = measured(costs, at, tried) {
        let exact = Band {
            low: tried.speedup,
            high: tried.speedup,
            ..ResidualModel::shipped().band(tried.speedup, most, conditions)
        };
        return widened(&exact, half_width, half_width, most);
    }
    let mut band = ResidualModel::shipped().band(tried.speedup, most, conditions);
    if costs.has_sweep() {
        // Plain step and verify were seen, the verify at one point only.
        let doubt = costs.pin_doubt(&tried.cost);
        band = widened(&band, doubt, -doubt, most);
    } else if let Some(pin) = &costs.pin {
        // The plain step was not seen: it may share the verify's excess, in proportion, or be as
        // fast as on other boxes of the class, where such a figure is known.
        let up = (1.0 + pin.excess_ms.max(0.0) / pin.modelled_ms.max(1e-9)).ln();
        let down = pin.public_plain_ms.map_or(0.0, |public_ms| {
            (costs.cycle(1, scenario.context, 1, 2).plain_ms / public_ms).ln()
        });
        band = widened(&band, down, up, most);
    }
    let (shorter, longer) = tried.cost.host_doubt();
    if shorter > 0.0 || longer > 0.0 {
        band = widened(&band, longer, shorter, most);
    }
    let (shorter, longer) = tried.cost.walk_doubt(costs.pin.as_ref());
    if shorter > 0.0 || longer > 0.0 {
        band = widened(&band, longer, shorter, most);
    }
    if tried.cost.moved > 0.0 {
        // The difference of two modelled all-reduces, each within a third to a half: from nothing
        // to twice of it.
        band = widened(&band, tried.cost.moved, tried.cost.moved, most);
    }
    band
}

/// The half-width of the band of what was measured, where this very point was.
fn measured(costs: &Costs<'_>, at: (u32, u64), tried: &Tried) -> Option<f64> {
    let measured = costs
        .measured
        .as_ref()
        .filter(|_| tried.cost.moved == 0.0)?;
    measured.half_width(at, tried.depth)
}

/// The verdict on one tried depth at a load and context.
pub(super) fn verdict_on(
    scenario: &Scenario,
    costs: &Costs<'_>,
    at: (u32, u64),
    tried: &Tried,
) -> Verdict {
    let conditions = conditions(scenario, costs, at, tried);
    verdict(&band(scenario, costs, at, tried, &conditions))
}

/// Adds an independent uncertainty (ln, down and up) to a band.
fn widened(band: &Band, down: f64, up: f64, most: f64) -> Band {
    let low_side = (band.speedup / band.low).ln().hypot(down.max(0.0));
    let high_side = (band.high / band.speedup).ln().hypot(up.max(0.0));
    let log = band.speedup.ln();
    // The side that faces 1 decides how likely it is to pay.
    let facing = if log >= 0.0 { low_side } else { high_side } / NORMAL_90;
    Band {
        speedup: band.speedup,
        low: band.speedup * (-low_side).exp(),
        high: (band.speedup * high_side.exp()).min(most).max(band.speedup),
        log_sd: (low_side + high_side) / 2.0 / NORMAL_90,
        probability_pays: normal_cdf(log / facing.max(1e-9)),
    }
}

/// One row of the answer, with the steps that run; the best depth where that is `None`.
pub(super) fn point(
    scenario: &Scenario,
    costs: &Costs<'_>,
    (users, context): (u32, u64),
    memory: Option<&Memory>,
    steps: Option<u32>,
) -> Option<Point> {
    if scenario.draft.is_none() {
        return Some(plain_point(scenario, costs, (users, context), memory));
    }
    row(scenario, costs, (users, context), memory, steps).map(|(point, _)| point)
}

/// One row of the answer, and what its band rests on; nothing without a draft.
pub(super) fn row(
    scenario: &Scenario,
    costs: &Costs<'_>,
    (users, context): (u32, u64),
    memory: Option<&Memory>,
    steps: Option<u32>,
) -> Option<(Point, Conditions)> {
    let tried = try_depths(scenario, costs, users, context);
    let fastest = best(&tried)?;
    let run = tried.iter().find(|t| Some(t.depth.steps) == steps);
    let run = run.unwrap_or(fastest);
    let conditions = conditions(scenario, costs, (users, context), run);
    let at = (users, context);
    let band = band(scenario, costs, at, run, &conditions);
    let per_second = f64::from(users) * 1000.0;
    let faster = told_beside(scenario, costs, at, &tried, (band.speedup, verdict(&band)));
    let point = Point {
        concurrency: users,
        context,
        steps: run.depth.steps,
        draft_tokens: run.depth.tokens,
        accept_length: run.accept_length,
        baseline_tok_s: per_second / run.cost.plain_ms,
        spec_tok_s: per_second / run.cost.plain_ms * run.speedup,
        speedup: run.speedup,
        speedup_low: band.low,
        speedup_high: band.high,
        probability_pays: band.probability_pays,
        verdict: verdict(&band),
        baseline_step_ms: run.cost.plain_ms,
        cycle_ms: run.cost.cycle_ms(),
        draft_ms: run.cost.draft_ms,
        verify_ms: run.cost.verify_ms,
        baseline_parts_ms: run.cost.parts.map(|p| p.plain),
        draft_parts_ms: run.cost.parts.map(|p| p.draft),
        verify_parts_ms: run.cost.parts.map(|p| p.verify),
        break_even_accept_length: run.cost.break_even(),
        ties: ties(&tried, fastest),
        fits: memory.and_then(|memory| memory.holds(users, context)),
        load_measured: scenario.own_loads().contains(&users),
        speedup_measured: measured(costs, at, run).is_some(),
        off_in_paste: false,
        faster,
    };
    Some((point, conditions))
}

/// The depth told beside the one that runs: the surest, else the one taken of the fast ones, else, where that
/// is too near to what runs, the fastest of all.
fn told_beside(
    scenario: &Scenario,
    costs: &Costs<'_>,
    at: (u32, u64),
    tried: &[Tried],
    (speedup, verdict): (f64, Verdict),
) -> Option<Faster> {
    let on = |t: &Tried| verdict_on(scenario, costs, at, t);
    let judged: Vec<Judged> = tried.iter().map(|t| Judged::new(t, on(t))).collect();
    let others = [surest(&judged), fastest(&judged)].into_iter().flatten();
    let others = others.filter_map(|at| tried.get(at)).chain(best(tried));
    let mut others = others.map(|other| Faster {
        steps: other.depth.steps,
        speedup: other.speedup,
        verdict: on(other),
    });
    others.find(|other| other.is_told(speedup, verdict))
}

/// A load without any draft: the plain figures, nothing gained.
fn plain_point(
    scenario: &Scenario,
    costs: &Costs<'_>,
    (users, context): (u32, u64),
    memory: Option<&Memory>,
) -> Point {
    let cost = costs.cycle(users, context, 0, 1);
    let tok_s = f64::from(users) * 1000.0 / cost.plain_ms;
    Point {
        concurrency: users,
        context,
        steps: 0,
        draft_tokens: 1,
        accept_length: 1.0,
        baseline_tok_s: tok_s,
        spec_tok_s: tok_s,
        speedup: 1.0,
        speedup_low: 1.0,
        speedup_high: 1.0,
        probability_pays: 0.0,
        verdict: match scenario.draft {
            Some(_) => Verdict::DoesNotPay,
            None => Verdict::NoDraft,
        },
        baseline_step_ms: cost.plain_ms,
        cycle_ms: cost.plain_ms,
        draft_ms: 0.0,
        verify_ms: cost.plain_ms,
        baseline_parts_ms: cost.parts.map(|p| p.plain),
        draft_parts_ms: None,
        verify_parts_ms: None,
        break_even_accept_length: 1.0,
        ties: Vec::new(),
        fits: memory.and_then(|memory| memory.holds(users, context)),
        load_measured: scenario.own_loads().contains(&users),
        speedup_measured: false,
        off_in_paste: false,
        faster: None,
    }
}

fn verdict(band: &Band) -> Verdict {
    match CrateVerdict::of(band) {
        CrateVerdict::Pays => Verdict::Pays,
        CrateVerdict::DoesNotPay => Verdict::DoesNotPay,
        CrateVerdict::MeasureFirst => Verdict::MeasureFirst,
    }
}
