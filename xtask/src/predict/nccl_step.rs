//! The size at which NCCL changes its choice: reckoned, and seen on boxes only between two measured sizes.

use pcie_sim::{Algorithm, Basis, all_reduce};

use super::answer::Point;
use super::costs::all_reduces;
use super::flags;
use super::links::{Choice, Links};
use crate::scenario::Scenario;
use crate::table;

/// How far apart the two measured sizes are between which the change lies: 768 and 960 KiB
/// (docs/pcie-sim.md, "What explains what").
const PLACE_KNOWN: f64 = 1.25;
/// Less than this of a row's step is not worth a line.
const ROW_MOVES: f64 = 0.05;

/// A payload near a change of NCCL's choice.
struct Step {
    bytes: u64,
    /// What is taken, and what is on the other side: name, us of an all-reduce of this payload.
    now: (String, f64),
    other: (String, f64),
    algorithm: Algorithm,
    /// A size at which `other` is chosen.
    beyond: u64,
}

/// A row that lies on one side of a change, and what it would be on the other.
struct Moved<'a> {
    row: &'a Point,
    step: Step,
    at: u64,
    /// Of the row's step, either way.
    share: f64,
    speedup: f64,
}

/// The payload of a step shown that costs most by lying on one side of a change of NCCL's choice, with
/// what the other side costs: of rows from a sweep too, as far as they rest on the modelled times.
pub(super) fn told(
    setting: &flags::Setting<'_>,
    links: &Links<'_>,
    points: &[Point],
) -> Option<(String, String)> {
    let (scenario, choice) = (setting.scenario, setting.allreduce);
    if links.ranks().len() < 2 || links.all_on_gpu_links() {
        return None;
    }
    let passes = points
        .iter()
        .flat_map(|point| [(point, point.draft_tokens), (point, 1)]);
    let near = passes.filter_map(|(row, tokens)| {
        let bytes = super::payload_bytes(scenario, row.concurrency, tokens);
        moved(scenario, (links, choice), row, bytes)
    });
    let most = near
        .filter(|moved| moved.share > ROW_MOVES)
        .max_by(|a, b| a.share.total_cmp(&b.share))?;
    let (step, users) = (&most.step, most.row.concurrency);
    let (below, above) = match step.bytes < most.at {
        true => (&step.now, &step.other),
        false => (&step.other, &step.now),
    };
    let s = if users == 1 { "" } else { "s" };
    let what = format!(
        "NCCL leaves {} for {} near {} by its own estimate, a place known to a factor of {PLACE_KNOWN} \
         (docs/pcie-sim.md): on its other side the {} at {users} user{s} take {} us, not {}{}",
        below.0,
        above.0,
        table::bytes(most.at),
        table::bytes(step.bytes),
        table::three(step.other.1),
        table::three(step.now.1),
        gain(&most),
    );
    let settles = "nccl-tests at these sizes as --allreduce-table";
    Some((what, settles.to_string()))
}

/// What the row gains there, where that prints another figure.
fn gain(moved: &Moved<'_>) -> String {
    let [there, here] = [moved.speedup, moved.row.speedup].map(|speedup| format!("{speedup:.2}"));
    match there == here || moved.row.steps == 0 {
        true => String::new(),
        false => format!(", and the speedup is {there}, not {here}"),
    }
}

/// A row with a payload near a change on that change's other side.
fn moved<'a>(
    scenario: &Scenario,
    (links, choice): (&Links<'_>, Choice),
    row: &'a Point,
    bytes: u64,
) -> Option<Moved<'a>> {
    let step = step_near(links, choice, bytes)?;
    let at = place(links, choice, &step);
    let algorithm = step.algorithm;
    let other_us = |size: u64| {
        let time = all_reduce(
            links.topology(),
            links.ranks(),
            algorithm,
            size,
            links.options(),
        );
        time.map_or_else(|_| links.time_us(choice, size), |time| time.time_us)
    };
    let sizes = bytes.min(at)..=bytes.max(at);
    let there = all_reduces(scenario, links, choice).with_sizes(sizes, other_us);
    let costs = super::with_what_was_seen(scenario, &there, links).ok()?;
    let cost = costs.cycle(row.concurrency, row.context, row.steps, row.draft_tokens);
    let change = |now_ms: f64, there_ms: f64| (there_ms / now_ms - 1.0).abs();
    let plain = change(row.baseline_step_ms, cost.plain_ms);
    let cycle = match row.steps {
        0 => plain,
        _ => change(row.cycle_ms, cost.cycle_ms()),
    };
    Some(Moved {
        share: plain.max(cycle),
        speedup: cost.speedup(row.accept_length),
        row,
        step,
        at,
    })
}

/// The change near a payload, if there is one.
fn step_near(links: &Links<'_>, choice: Choice, bytes: u64) -> Option<Step> {
    let time = links.time(choice, bytes).ok()?;
    let now = chosen(links, choice, bytes)?;
    let sizes = [bytes as f64 / PLACE_KNOWN, bytes as f64 * PLACE_KNOWN];
    let (beyond, other) = sizes.into_iter().find_map(|size| {
        let name = chosen(links, choice, size as u64)?;
        (name != now).then_some((size as u64, name))
    })?;
    let algorithm: Algorithm = format!("nccl-{other}").parse().ok()?;
    let there = all_reduce(
        links.topology(),
        links.ranks(),
        algorithm,
        bytes,
        links.options(),
    );
    Some(Step {
        bytes,
        now: (now, time.time_us),
        other: (other, there.ok()?.time_us),
        algorithm,
        beyond,
    })
}

/// What NCCL takes at a size; `None` where another kernel runs, or the time was measured.
fn chosen(links: &Links<'_>, choice: Choice, bytes: u64) -> Option<String> {
    choice.at(bytes)?;
    let time = links.time(choice, bytes).ok()?;
    let name = pcie_sim::nccl_choice(&time.algorithm_name)?;
    (time.basis != Basis::Measured).then(|| name.to_string())
}

/// The first size after the change, to the KiB.
fn place(links: &Links<'_>, choice: Choice, step: &Step) -> u64 {
    let (mut low, mut high) = (step.bytes.min(step.beyond), step.bytes.max(step.beyond));
    let first = chosen(links, choice, low);
    while high - low > 512 {
        let middle = low + (high - low) / 2;
        if chosen(links, choice, middle) == first {
            low = middle;
        } else {
            high = middle;
        }
    }
    high.next_multiple_of(1024)
}
