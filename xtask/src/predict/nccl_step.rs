//! The size at which NCCL changes its choice: reckoned, and seen on boxes only between two measured sizes.

use pcie_sim::{Algorithm, Basis, all_reduce};

use super::answer::Point;
use super::flags;
use super::links::{Choice, Links};
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
    /// A size at which `other` is chosen.
    beyond: u64,
}

/// The payload of a step shown that costs most by lying on one side of a change of NCCL's choice, with
/// what the other side costs.
pub(super) fn told(
    setting: &flags::Setting<'_>,
    links: &Links<'_>,
    points: &[Point],
) -> Option<(String, String)> {
    let (scenario, choice) = (setting.scenario, setting.allreduce);
    if links.ranks().len() < 2 || links.all_on_gpu_links() {
        return None;
    }
    let passes = points.iter().flat_map(|point| {
        let verify = point.verify_parts_ms.as_ref();
        let plain = point.baseline_parts_ms.as_ref();
        [
            (point, point.draft_tokens, point.cycle_ms, verify),
            (point, 1, point.baseline_step_ms, plain),
        ]
    });
    let near = passes.filter_map(|(point, tokens, step_ms, parts)| {
        let bytes = super::payload_bytes(scenario, point.concurrency, tokens);
        let step = step_near(links, choice, bytes)?;
        let moved = parts?.allreduce * (step.other.1 / step.now.1 - 1.0) / step_ms;
        (moved.abs() > ROW_MOVES).then_some((moved.abs(), point.concurrency, step))
    });
    let (_, users, step) = near.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let at = place(links, choice, &step);
    let (below, above) = match step.bytes < at {
        true => (&step.now, &step.other),
        false => (&step.other, &step.now),
    };
    let s = if users == 1 { "" } else { "s" };
    let what = format!(
        "NCCL leaves {} for {} near {} by its own estimate, a place known to a factor of {PLACE_KNOWN} \
         (docs/pcie-sim.md): on its other side the {} at {users} user{s} take {} us, not {}",
        below.0,
        above.0,
        table::bytes(at),
        table::bytes(step.bytes),
        table::three(step.other.1),
        table::three(step.now.1),
    );
    let settles = "nccl-tests at these sizes as --allreduce-table";
    Some((what, settles.to_string()))
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
