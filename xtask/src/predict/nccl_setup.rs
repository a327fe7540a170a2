//! What is taken of how NCCL runs where nobody said it: its version, and between which GPUs it goes
//! through host memory; with what another one does at the loads asked about.

use pcie_sim::nccl::{NcclSetup, P2pLevel, p2p};
use pcie_sim::{Arch, Topology};

use super::answer::Point;
use super::costs::all_reduces;
use super::flags;
use super::links::Links;
use crate::scenario::Scenario;
use crate::scenario::hardware::is_usual;
use crate::table;

/// Times closer than this are one.
const SAME: f64 = 0.01;

/// What is assumed, with what settles it.
pub(super) fn told(
    setting: &flags::Setting<'_>,
    links: &Links<'_>,
    points: &[Point],
) -> Vec<(String, String)> {
    let newer = links.by_a_newer_nccl().and_then(|other| {
        let (us, other_us) = largest_change(setting, links, &other, points)?;
        let (what, settles) = old_nccl_assumed(us, other_us);
        Some((what + &at_loads(setting, links, &other, points), settles))
    });
    let direct = links.going_directly().and_then(|(other, level)| {
        let (us, other_us) = largest_change(setting, links, &other, points)?;
        let (what, settles) = host_memory_assumed(level, us, other_us);
        Some((what + &at_loads(setting, links, &other, points), settles))
    });
    let through_host = links
        .through_host_memory()
        .filter(|_| is_taken_direct(setting.scenario))
        .and_then(|other| {
            let (us, other_us) = largest_change(setting, links, &other, points)?;
            let (what, settles) = direct_assumed(us, other_us);
            Some((what + &at_loads(setting, links, &other, points), settles))
        });
    let of_paths = direct.into_iter().chain(through_host);
    newer.into_iter().chain(of_paths).collect()
}

/// Whether NCCL is taken to go directly because nobody showed the wiring nor said the level.
fn is_taken_direct(scenario: &Scenario) -> bool {
    let usual = scenario
        .input("box")
        .is_some_and(|input| is_usual(&input.source));
    usual && scenario.input("nccl_p2p_level").is_none()
}

/// An all-reduce, bytes and us, as assumed and otherwise.
type Times = ((u64, f64), f64);

/// The payload of the rows whose time changes most; nothing where none does.
fn largest_change(
    setting: &flags::Setting<'_>,
    links: &Links<'_>,
    other: &Links<'_>,
    points: &[Point],
) -> Option<Times> {
    let choice = setting.allreduce;
    let payloads = points
        .iter()
        .flat_map(|row| [(row, row.draft_tokens), (row, 1)]);
    let times = payloads.filter_map(|(row, tokens)| -> Option<Times> {
        let bytes = super::payload_bytes(setting.scenario, row.concurrency, tokens);
        let us = |links: &Links<'_>| links.time(choice, bytes).ok().map(|time| time.time_us);
        Some(((bytes, us(links)?), us(other)?))
    });
    let change = |((_, us), other): &Times| (other / us).ln().abs();
    let most = times.max_by(|a, b| change(a).total_cmp(&change(b)))?;
    (change(&most) > SAME).then_some(most)
}

/// Plain speed and speedup of the first and the last load by the other NCCL.
fn at_loads(
    setting: &flags::Setting<'_>,
    links: &Links<'_>,
    other: &Links<'_>,
    points: &[Point],
) -> String {
    let (scenario, choice) = (setting.scenario, setting.allreduce);
    let there = all_reduces(scenario, other, choice);
    let Ok(costs) = super::with_what_was_seen(scenario, &there, links) else {
        return String::new();
    };
    let ends = [points.first(), points.last().filter(|_| points.len() > 1)];
    let rows = ends.into_iter().flatten().filter_map(|row| {
        let cost = costs.cycle(row.concurrency, row.context, row.steps, row.draft_tokens);
        let plain = row.baseline_tok_s * row.baseline_step_ms / cost.plain_ms;
        let [plain, own] = [plain, row.baseline_tok_s].map(table::thousands);
        let mut moved = Vec::new();
        if plain != own {
            moved.push(format!("{plain} tok/s plain, not {own}"));
        }
        let [there, here] =
            [cost.speedup(row.accept_length), row.speedup].map(|x| format!("{x:.2}"));
        if row.steps > 0 && there != here {
            moved.push(format!("a speedup of {there}, not {here}"));
        }
        let s = if row.concurrency == 1 { "" } else { "s" };
        let users = format!("at {} user{s} ", row.concurrency);
        (!moved.is_empty()).then(|| users + &moved.join(", and "))
    });
    let rows: Vec<String> = rows.collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("; {}", rows.join("; ")),
    }
}

/// What is assumed of NCCL's version on two AMD sockets, given an all-reduce as assumed and by a newer
/// one, with what settles it.
pub(crate) fn old_nccl_assumed((bytes, us): (u64, f64), newer_us: f64) -> (String, String) {
    let what = format!(
        "NCCL before 2.30, which finds no ring on two AMD sockets with such cards: 2.30 or newer finds \
         one, and {} take {} us, not {}",
        table::bytes(bytes),
        table::three(newer_us),
        table::three(us)
    );
    let settles = "NCCL's version as --nccl, which NCCL_DEBUG=VERSION in the engine's environment \
                   prints, or the engine's log as --from-log";
    (what, settles.to_string())
}

/// That NCCL leaves peer access aside, given an all-reduce so and with the level that lets it go
/// directly, with what settles it.
pub(crate) fn host_memory_assumed(
    level: P2pLevel,
    (bytes, us): (u64, f64),
    direct_us: f64,
) -> (String, String) {
    let what = format!(
        "NCCL goes through host memory between GPUs behind different root ports, as it does by itself \
         (ncclTopoCheckP2p) unless NCCL_P2P_LEVEL is set: with {level} the {} take {} us, not {}",
        table::bytes(bytes),
        table::three(direct_us),
        table::three(us)
    );
    let settles = format!(
        "--nccl-p2p-level {level} where it is set; NCCL_DEBUG=INFO prints `via SHM` or `via P2P`"
    );
    (what, settles)
}

/// That NCCL goes directly over a wiring that nobody showed, given an all-reduce so and through host
/// memory, with what settles it.
pub(crate) fn direct_assumed((bytes, us): (u64, f64), host_us: f64) -> (String, String) {
    let what = format!(
        "NCCL goes directly between all GPUs, as measured servers of such cards fit: by switches, or by \
         NCCL_P2P_LEVEL=SYS in the engine's environment, as in a paste here. Without it, and each GPU on its \
         own root port, it goes through host memory (ncclTopoCheckP2p), and {} take {} us, not {}",
        table::bytes(bytes),
        table::three(host_us),
        table::three(us)
    );
    let settles = "--topology with `nvidia-smi topo -m`, and --nccl-p2p-level; NCCL_DEBUG=INFO prints \
                   `via SHM` or `via P2P`";
    (what, settles.to_string())
}

/// The level that lets NCCL go directly everywhere, where it does not by itself and nobody said so.
pub(crate) fn open_level(t: &Topology, ranks: &[usize], setup: &NcclSetup) -> Option<P2pLevel> {
    let said = setup.p2p_level.or(t.nccl_p2p_level).is_some();
    (!said && p2p::any_staged(t, ranks, setup)).then(|| p2p::needed(t, ranks))
}

/// The variable that the answer's NCCL needs beside the start line: where without it NCCL would go
/// another way between the GPUs of the group.
pub(super) fn pasted(scenario: &Scenario) -> Option<String> {
    let level = scenario.wiring.nccl_p2p_level?;
    let arch = Arch::parse(&scenario.gpu.arch).unwrap_or(Arch::AMPERE);
    let mut topology = Topology::from_spec(&scenario.wiring, arch).ok()?;
    let mut staged = |level| {
        topology.nccl_p2p_level = level;
        p2p::any_staged(&topology, &scenario.ranks, &NcclSetup::default())
    };
    (staged(Some(level)) != staged(None)).then(|| format!("NCCL_P2P_LEVEL={level}"))
}
