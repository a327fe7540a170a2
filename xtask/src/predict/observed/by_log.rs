//! The speeds that a server's own log shows, beside what is computed for the same load.

use super::super::answer::Assumption;
use super::super::costs::{Costs, all_reduces};
use super::super::links::{Choice, Links};
use super::super::measured::{self, Both};
use super::super::{points, verdict};
use super::{Observed, Seen};
use crate::explain::speeds::{By, LoadSpeed};
use crate::scenario::Scenario;
use crate::scenario::drafted::Drafted;
use crate::table::thousands;

/// Loads that are shown where no flag asks for more: those nearest to what it asks for, the one seen
/// most, the lightest and the heaviest.
const MOST_ROWS: usize = 3;

/// Loads that are shown at most, however many a flag asks for.
const MOST_ASKED: usize = 8;

/// ln half-width of the 90 % band of a plain decode speed from scratch: one row in ten of 1,423
/// measured ones is off by more (docs/ACCURACY.md, decode.from_scratch).
pub(super) const SCRATCH_90: f64 = 0.26;

/// The same where the user's own sweep gives the plain speed: two runs of one server differ by
/// about that, and a log's windows hold some prefill.
const SWEEP_90: f64 = 0.1;

/// Of a bench's figure that counts the prompts of others, which nothing computed here does.
pub(super) const NOT_JUDGED: &str = "not judged: prompts of others in the observed alone";

/// Context of a load whose lines do not say it, tokens: the server's limit is no measure of it.
const UNSAID: u64 = 2048;

/// One row a load of the log, and of the benches whose accept length is used.
pub(super) fn rows(scenario: &Scenario, links: &Links<'_>) -> anyhow::Result<Vec<Observed>> {
    let mut rows = Vec::new();
    for run in scenario.drafted() {
        let own = run.of(scenario);
        rows.extend(of_run(scenario, &own, links, Some(&run))?);
    }
    if !scenario.ran.speculates {
        rows.extend(of_run(scenario, scenario, links, None)?);
    }
    Ok(rows)
}

/// Those of one run, with its own depth; of the plain log where there is none.
fn of_run(
    scenario: &Scenario,
    own: &Scenario,
    links: &Links<'_>,
    run: Option<&Drafted>,
) -> anyhow::Result<Vec<Observed>> {
    let speeds = run.map_or(&scenario.ran.speeds, |run| &run.speeds);
    if speeds.is_empty() {
        return Ok(Vec::new());
    }
    let all_reduce = all_reduces(own, links, Choice::parse(&own.allreduce)?);
    let costs = Costs::new(own, &all_reduce, links)?;
    let row = |speed: &LoadSpeed| row(scenario, own, &costs, (run, speed));
    let input = scenario.input("concurrency");
    let by_flag = input.is_some_and(|input| input.source.starts_with("--concurrency"));
    let asked = if by_flag {
        &scenario.concurrency[..]
    } else {
        &[]
    };
    let shown = shown(speeds, asked);
    let others = speeds.len().saturating_sub(shown.len());
    let mut rows: Vec<Observed> = shown.into_iter().filter_map(row).collect();
    if let (Some(last), 1..) = (rows.last_mut(), others) {
        let s = if others == 1 { "" } else { "s" };
        let of = if in_log(run) { "log" } else { "bench" };
        let note = format!("; {others} other load{s} of the {of} not shown (--concurrency)");
        last.note.push_str(&note);
    }
    Ok(rows)
}

fn in_log(run: Option<&Drafted>) -> bool {
    run.is_none_or(|run| run.in_log)
}

fn shown<'a>(speeds: &'a [LoadSpeed], asked: &[u32]) -> Vec<&'a LoadSpeed> {
    let off = |speed: &LoadSpeed, users: u32| (speed.running / f64::from(users)).ln().abs();
    let nearest = asked.iter().filter_map(|&users| {
        let all = speeds.iter();
        all.min_by(|a, b| off(a, users).total_cmp(&off(b, users)))
    });
    let mut most: Vec<&LoadSpeed> = speeds.iter().collect();
    most.sort_by_key(|speed| std::cmp::Reverse(speed.lines));
    let usual = most.first().copied();
    let ends = speeds.first().into_iter().chain(speeds.last());
    let room = asked.len().clamp(MOST_ROWS, MOST_ASKED);
    let mut kept: Vec<&LoadSpeed> = Vec::new();
    for speed in nearest
        .chain(usual)
        .chain(ends)
        .chain(most.into_iter().skip(1))
    {
        if !kept.contains(&speed) && kept.len() < room {
            kept.push(speed);
        }
    }
    kept.sort_by(|a, b| a.running.total_cmp(&b.running));
    kept
}

fn row(
    scenario: &Scenario,
    own: &Scenario,
    costs: &Costs<'_>,
    (run, speed): (Option<&Drafted>, &LoadSpeed),
) -> Option<Observed> {
    let users = measured::whole(speed.running)?;
    let held = speed
        .held_tokens
        .map(|tokens| tokens.round().clamp(0.0, 1e9));
    let taken = || measured::context_taken(scenario, run?, speed);
    let unsaid = || taken().unwrap_or(scenario.context.min(UNSAID));
    let context = held.map_or_else(unsaid, |tokens| tokens as u64);
    let at = (users, context);
    let (kind, computed, down, up) = computed(own, costs, at, (run.is_some(), speed))?;
    if !(computed.is_finite() && computed > 0.0) {
        return None;
    }
    let (low, high) = (computed * (-down).exp(), computed * up.exp());
    let tokens = match held {
        Some(tokens) => format!(", {} tokens held", thousands(tokens)),
        None => format!(", {} tokens assumed", thousands(context as f64)),
    };
    let depth = own.steps.filter(|_| own.steps != scenario.steps);
    let depth = depth.map_or_else(String::new, |n| format!(", {}", verdict::steps(n)));
    let s = if users == 1 { "" } else { "s" };
    let (seen, of) = match in_log(run) {
        true => (Seen::Log, "log"),
        false => (Seen::Bench, "--accept"),
    };
    let file = run.map_or(&scenario.ran.file, |run| &run.file);
    let judged = users == 1 || speed.by == By::Lines;
    let prefill = speed.is_throughput();
    let placed = match judged {
        true => format!(
            "{} ({low:.0} to {high:.0}){}",
            place(speed.tok_s, low, high),
            if prefill { ", prefill in it" } else { "" }
        ),
        false if prefill => "not judged: prefill in it".to_string(),
        false => NOT_JUDGED.to_string(),
    };
    let lines = match speed.by {
        By::Lines => format!(
            ", {} line{}",
            speed.lines,
            if speed.lines == 1 { "" } else { "s" }
        ),
        _ => String::new(),
    };
    Some(Observed {
        what: format!("{of}: {kind}, {users} user{s}{depth}{tokens}"),
        seen,
        observed: speed.tok_s,
        computed: Some(computed),
        computed_low: judged.then_some(low),
        computed_high: judged.then_some(high),
        unit: "tok/s",
        source: format!("{file}:{}", speed.line),
        note: format!(
            "{placed}{lines}{}",
            run.map_or_else(String::new, |run| over_plain(scenario, run, speed)),
        ),
    })
}

/// What it is called, what is computed for it, tokens a second, and how far the 90 % band of that reaches
/// down and up, ln.
fn computed(
    own: &Scenario,
    costs: &Costs<'_>,
    at: (u32, u64),
    (drafts, speed): (bool, &LoadSpeed),
) -> Option<(&'static str, f64, f64, f64)> {
    let plain_90 = if costs.has_sweep() {
        SWEEP_90
    } else {
        SCRATCH_90
    };
    if !drafts {
        let plain_ms = costs.cycle(at.0, at.1, 1, 2).plain_ms;
        return Some((
            "plain",
            f64::from(at.0) * 1000.0 / plain_ms,
            plain_90,
            plain_90,
        ));
    }
    let (point, _) = points::row(own, costs, at, None, None)?;
    // The accept length of that load, where its lines print one.
    let seen = speed.accept_length.unwrap_or(point.accept_length);
    let scale = seen.clamp(1.0, f64::from(point.draft_tokens)) / point.accept_length;
    let width = |bound: f64| plain_90.hypot((point.speedup / bound).ln());
    Some((
        "speculative",
        point.spec_tok_s * scale,
        width(point.speedup_low),
        width(point.speedup_high),
    ))
}

/// The speed over that of the plain sweep at the same load, where the two were taken alike.
fn over_plain(scenario: &Scenario, run: &Drafted, speed: &LoadSpeed) -> String {
    match measured::both(scenario, run, speed) {
        Some(Both::Alike(ratio)) => {
            let by = match ratio.tpot_ms.filter(|_| ratio.users > 1) {
                Some((own, plain)) => format!(
                    ", time per output token {own} for {plain} ms, prompts of others in both"
                ),
                None => String::new(),
            };
            format!("; {:.2}x your plain sweep{by}", ratio.ratio)
        }
        // Why it is not is told once, of all loads: `measured::not_set`.
        Some(Both::Unlike(..)) | None => String::new(),
    }
}

pub(super) fn place(observed: f64, low: f64, high: f64) -> &'static str {
    if observed < low {
        "below the band"
    } else if observed > high {
        "above the band"
    } else {
        "within the band"
    }
}

/// What may be behind a speed outside the band, in one line; `None` where all lie within.
pub(in crate::predict) fn outside(scenario: &Scenario, rows: &[Observed]) -> Option<Assumption> {
    let worst = rows
        .iter()
        .filter(|row| row.seen == Seen::Log)
        .filter_map(Observed::outside)
        .max_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs()))?;
    let slower = worst < 1.0;
    let mut reasons = Vec::new();
    if let Some(at) = scenario.ran.eager.as_ref().filter(|_| slower) {
        reasons.push(format!(
            "it captured no CUDA graphs ({at}), this answer is of a server that does"
        ));
    } else if slower && scenario.ran.outside_graph > 0.1 {
        reasons.push(format!(
            "{:.0} % of its decode lines ran outside CUDA graphs",
            100.0 * scenario.ran.outside_graph
        ));
    }
    if scenario.weights_assumed_bf16() && !slower {
        reasons.push("weights smaller than the BF16 assumed (--quant)".to_string());
    }
    if scenario.tp > 1 {
        reasons.push(
            "another wiring or all-reduce than assumed (--topology, --allreduce-table)".to_string(),
        );
    }
    let swept = scenario.baseline.is_some();
    if slower && swept && scenario.ran.speculates {
        reasons.push("a sweep that speculated too".to_string());
    }
    if slower {
        reasons.push("prompts computed in between, sampling and output on a slow host".to_string());
        reasons.push("a power limit".to_string());
    }
    let way = if slower { "slower" } else { "faster" };
    let times = if slower { 1.0 / worst } else { worst };
    if reasons.is_empty() {
        reasons.push("another card than the one named".to_string());
    }
    Some(Assumption {
        what: format!(
            "{}: the server ran {times:.2} times {way} than computed, outside the band; it may be: {}",
            scenario.ran.file,
            reasons.join("; ")
        ),
        settled_by: if scenario
            .drafted()
            .iter()
            .any(|run| measured::is_alike(scenario, run))
        {
            String::new()
        } else if scenario.ran.speculates && swept {
            "a plain sweep and a speculative run of one server".to_string()
        } else if scenario.ran.speculates {
            "--baseline with a plain sweep of the same server, which takes the place of the computed \
             step"
                .to_string()
        } else {
            format!(
                "--baseline {}, which takes its speeds in place of the computed ones",
                scenario.ran.file
            )
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_the_lightest_and_the_heaviest_load_are_shown() {
        let speed = |running: f64, lines: usize| LoadSpeed {
            running,
            tok_s: 100.0,
            held_tokens: None,
            held_line: 1,
            accept_length: None,
            lines,
            line: 1,
            by: By::Lines,
        };
        let all = [speed(1.0, 2), speed(2.0, 3), speed(4.0, 9), speed(8.0, 2)];
        let loads: Vec<f64> = shown(&all, &[]).iter().map(|s| s.running).collect();
        assert_eq!(loads, [1.0, 4.0, 8.0]);
        assert_eq!(shown(&all[..1], &[]).len(), 1);
        // The lightest is the usual one too: room for another.
        assert_eq!(shown(&all[2..], &[]).len(), 2);
        assert_eq!(
            shown(&[speed(1.0, 3), speed(16.0, 2), speed(64.0, 1)], &[]).len(),
            3
        );
    }

    #[test]
    fn the_load_nearest_to_what_was_asked_is_shown_first_of_all() {
        let all = [1.0, 4.0, 16.0, 32.0, 64.0].map(|running| LoadSpeed {
            running,
            tok_s: 100.0,
            held_tokens: None,
            held_line: 1,
            accept_length: None,
            lines: 2,
            line: 1,
            by: By::Lines,
        });
        let loads = |asked: &[u32]| {
            let rows = shown(&all, asked).into_iter();
            rows.map(|row| row.running).collect::<Vec<f64>>()
        };
        assert!(loads(&[20]).contains(&16.0) && !loads(&[]).contains(&16.0));
        assert_eq!(loads(&[4, 16, 40]), [4.0, 16.0, 32.0]);
        // Every load that is asked for is shown.
        assert_eq!(loads(&[1, 4, 16, 64]), [1.0, 4.0, 16.0, 64.0]);
    }
}
