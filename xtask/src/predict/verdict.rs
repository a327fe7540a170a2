//! The verdict of the whole scenario, in one sentence.

use super::answer::{LoadWall, Measure, Memory, Point, Verdict};
use super::costs::Costs;
use super::measure;
use super::open;
use super::short_head;
use super::stopped::Stopped;
use crate::scenario::suffix::NOT_MODELLED;
use crate::scenario::{Known, PRIOR_DEPTH, Scenario, checkpoint};
use crate::table::thousands;

/// The verdict and its reason.
pub(super) struct Summary {
    pub(super) verdict: Verdict,
    pub(super) because: String,
    pub(super) measure: Option<Measure>,
    pub(super) pays_up_to: Option<u32>,
}

/// What is said where nothing drafts.
fn no_draft(scenario: &Scenario) -> String {
    let log = scenario
        .input(NOT_MODELLED)
        .and_then(|input| input.value.as_str());
    match log {
        Some(said) => format!("{said} is not modelled, so nothing is said of what it gains"),
        None => "--draft none: nothing drafts, so nothing is gained".to_string(),
    }
}

/// Judges by the lightest load asked for; says up to which load it holds.
pub(super) fn summary(
    scenario: &Scenario,
    costs: &Costs<'_>,
    points: &[Point],
    memory: &Memory,
) -> Summary {
    let Some(first) = points.first().filter(|_| scenario.draft.is_some()) else {
        return Summary {
            verdict: Verdict::DoesNotPay,
            because: match (stopped(scenario, memory), &memory.set_instead) {
                (Some(stopped), _) => stopped.why,
                (None, None) => no_draft(scenario),
                (None, Some(set)) => format!("{}; {set}", no_draft(scenario)),
            },
            measure: None,
            pays_up_to: None,
        };
    };
    let pays_up_to = gains_up_to(
        points,
        memory.held(scenario.context).filter(|held| *held > 0),
    );
    if let Some(because) = cannot_run(scenario, first, memory) {
        return Summary {
            verdict: Verdict::DoesNotPay,
            because,
            measure: None,
            pays_up_to: None,
        };
    }
    let because = reason(scenario, points, first, (pays_up_to, memory));
    let because = match &memory.set_instead {
        Some(set) => format!("{because}; {set}"),
        None => because,
    };
    let mostly_plain = few_drafts(scenario).filter(|_| first.verdict == Verdict::Pays);
    if let Some(few) = mostly_plain {
        return Summary {
            verdict: Verdict::MeasureFirst,
            because: format!("{few}; where it drafts, {because}"),
            measure: None,
            pays_up_to,
        };
    }
    if is_tight(memory) && first.verdict != Verdict::DoesNotPay {
        return Summary {
            verdict: Verdict::MeasureFirst,
            because: format!("memory is tight: {}; if it runs, {because}", tight(memory)),
            measure: Some(whether_it_starts(memory, first)),
            pays_up_to,
        };
    }
    Summary {
        verdict: first.verdict,
        because,
        measure: measure::of_the_open(scenario, costs, points, memory),
        pays_up_to,
    }
}

/// Why the verdict at the lightest load is what it is.
fn reason(
    scenario: &Scenario,
    points: &[Point],
    first: &Point,
    (pays_up_to, memory): (Option<u32>, &Memory),
) -> String {
    match first.verdict {
        Verdict::Pays => format!(
            "accept length {} must stay above {:.2} at {}; {}",
            expected(scenario, first),
            first.break_even_accept_length,
            users(first.concurrency),
            until(points, pays_up_to, memory)
        ),
        // Judged without a draft before.
        Verdict::NoDraft => no_draft(scenario),
        Verdict::DoesNotPay => format!(
            "accept length {} is under the break-even of {:.2}",
            expected(scenario, first),
            first.break_even_accept_length
        ),
        Verdict::MeasureFirst => format!(
            "break-even is accept length {:.2}, expected {}, and the band holds 1; {}{}",
            first.break_even_accept_length,
            expected(scenario, first),
            until(points, pays_up_to, memory),
            open::decided(points)
        ),
    }
}

/// What is said of a log whose server seldom drafted: its accept length is of those minutes alone.
fn few_drafts(scenario: &Scenario) -> Option<String> {
    let windows = scenario.ran.windows.filter(|w| w.mostly_plain())?;
    if short_head::is_walled(scenario) {
        // What stops it is known: contexts within the reach draft.
        return None;
    }
    Some(format!(
        "the log's server drafted in {} of {} windows only (explain says why)",
        windows.drafted, windows.all
    ))
}

/// What keeps it from running at all, for speeds that stand without a verdict of their own.
pub(super) fn stopped(scenario: &Scenario, memory: &Memory) -> Option<Stopped> {
    if let Some(uncut) = scenario.refused_cut() {
        return Some(Stopped {
            word: "does not start",
            why: uncut.why.clone(),
        });
    }
    if super::does_not_fit(memory) {
        return Some(Stopped {
            word: "does not fit",
            why: does_not_fit(scenario, memory),
        });
    }
    None
}

/// Why it does not run at all: a cut that the engine refuses, no room, or a context at which the engine
/// does not draft.
fn cannot_run(scenario: &Scenario, first: &Point, memory: &Memory) -> Option<String> {
    let room = super::does_not_fit(memory).then(|| does_not_fit(scenario, memory));
    let reached = || format!("below is what it would reach ({:.2}x)", first.speedup);
    match scenario.refused_cut() {
        Some(uncut) => Some(format!("{}; {}", uncut.why, room.unwrap_or_else(reached))),
        None => room.or_else(|| Some(short_head::undrafted(scenario)?.why)),
    }
}

/// Why it does not fit, and whether leaving the draft off would mend it.
fn does_not_fit(scenario: &Scenario, memory: &Memory) -> String {
    let why = memory
        .notes
        .first()
        .map_or("no memory is left for the KV cache", |n| n.as_str());
    let mut words = format!("it does not fit: {why}");
    if let (Some(true), Some(tokens)) = (
        memory.holds_without_draft,
        memory.kv_tokens_without_speculation,
    ) {
        words.push_str(&format!(
            "; without the draft the pool holds {} tokens{}",
            thousands(tokens as f64),
            super::text::counted_in(memory)
        ));
    }
    if scenario.weights_assumed_bf16() {
        // FP8 of a repository in BF16 is made while loading, where there is room for both.
        let repository = &scenario.model_given;
        let made = checkpoint::loaded_from(repository, Some("fp8")).is_some();
        let fp8 = match made && !crate::plan::loads_in_bf16(scenario, scenario.engine.kind) {
            true => "a checkpoint stored in FP8",
            false => "--quant fp8",
        };
        words.push_str(&format!(
            "; the weights are taken as BF16: {fp8} halves them, int4 quarters them"
        ));
    }
    words
}

/// What a fraction above the middle of the wall, or no legal one, makes of a gain.
fn is_tight(memory: &Memory) -> bool {
    memory.fits.is_none() && memory.fraction.is_some()
}

fn tight(memory: &Memory) -> String {
    if memory.none_legal() {
        return "no fraction is surely legal".to_string();
    }
    let fraction = memory.fraction.unwrap_or_default();
    format!("{fraction:.3} is above the legal range")
}

fn whether_it_starts(memory: &Memory, first: &Point) -> Measure {
    let asked = memory.fraction.unwrap_or_default();
    let pasted = memory.typed_fraction().unwrap_or_default();
    let lower = if pasted.is_empty() || pasted == format!("{asked:.3}") {
        String::new()
    } else {
        let under = match memory.fraction_clear {
            Some(_) => "clear of the wall's band",
            None => "under the middle of the wall",
        };
        format!(" at that fraction (the paste has {pasted}, {under})")
    };
    let free = memory.ledger.last().filter(|line| line.gib > 0.0);
    let room = free.map_or_else(
        || ", and only its low end leaves room".to_string(),
        |free| {
            format!(
                "; by it {:.2} GiB stay free ({:.2} to {:.2}), less than is kept for what allocates on \
                 demand",
                free.gib, free.low_gib, free.high_gib
            )
        },
    );
    Measure {
        what: format!("whether it starts and stays up at {asked:.3}"),
        how: format!(
            "what lies outside the fraction (graphs, context, NCCL) is an estimate{room}; start \
             it{lower} and send one long prompt"
        ),
        concurrency: first.concurrency,
        width_now: None,
        width_after: None,
    }
}

pub(super) fn users(count: u32) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} user{plural}")
}

pub(super) fn steps(count: u32) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} step{plural}")
}

/// The accept length of a row and, where it was measured or assumed at another depth, there.
fn expected(scenario: &Scenario, first: &Point) -> String {
    let made = format!(
        "{:.2} at {}",
        accept_length(scenario, first),
        steps(first.steps)
    );
    let known = match (&scenario.acceptance.known, reading(scenario)) {
        (Known::Measured(_), Some((length, depth))) => Some((length, depth, "measured")),
        (Known::Prior(_), _) => {
            let there = scenario.acceptance.band(PRIOR_DEPTH).1;
            Some((there, f64::from(PRIOR_DEPTH), "assumed"))
        }
        _ => None,
    };
    match known.filter(|(_, depth, _)| *depth != f64::from(first.steps) && is_chain(scenario)) {
        Some((there, depth, how)) => format!("{made} ({there:.2} at {depth:.0}, as {how})"),
        None => made,
    }
}

/// The accept length of a row: at the depth it was measured at what was measured, not what is made of
/// it, as two parameters do not meet every reading.
pub(super) fn accept_length(scenario: &Scenario, row: &Point) -> f64 {
    let measured = matches!(scenario.acceptance.known, Known::Measured(_));
    let there = |(_, depth): &(f64, f64)| *depth == f64::from(row.steps) && is_chain(scenario);
    let read = reading(scenario).filter(|read| measured && there(read));
    read.map_or(row.accept_length, |(length, _)| length)
}

fn is_chain(scenario: &Scenario) -> bool {
    scenario.topk.unwrap_or(1) <= 1
}

/// The accept length that was read, and its depth.
fn reading(scenario: &Scenario) -> Option<(f64, f64)> {
    let number = |name: &str| scenario.input(name).and_then(|d| d.value.as_f64());
    number("accept_length").zip(number("accept_depth"))
}

/// Highest load up to which the middle of the band gains and the pool holds every user. Loads
/// asked for are steps: what the pool holds may lie between two that gain.
fn gains_up_to(points: &[Point], held: Option<u32>) -> Option<u32> {
    let gains = |p: &&Point| p.gains();
    let fit = points
        .iter()
        .take_while(gains)
        .filter(|p| p.fits != Some(false));
    let up_to = fit.last()?.concurrency;
    let next = points.iter().find(|p| p.concurrency > up_to);
    let full = held
        .filter(|held| next.is_some_and(|p| p.gains() && (up_to..p.concurrency).contains(held)));
    Some(full.unwrap_or(up_to))
}

/// Loads that are not decided (`true`), as words: those of the rows, whatever other rows there are.
fn undecided(loads: &[(u32, bool)]) -> Option<String> {
    let words = ranges(loads);
    (!words.is_empty()).then(|| format!("measure first at {words} users"))
}

/// The loads that are so (`true`), neighbours joined: `2 to 4 and 32`.
pub(super) fn ranges(loads: &[(u32, bool)]) -> String {
    let runs = loads.chunk_by(|a, b| a.1 == b.1);
    let so = runs.filter(|run| run.first().is_some_and(|(_, so)| *so));
    let words = so.filter_map(|run| {
        let (first, last) = (run.first()?.0, run.last()?.0);
        Some(match first == last {
            true => first.to_string(),
            false => format!("{first} to {last}"),
        })
    });
    words.collect::<Vec<_>>().join(" and ")
}

/// Up to which load it gains, and what ends it there; where the lightest load is open, by the middle of its band.
fn until(points: &[Point], pays_up_to: Option<u32>, memory: &Memory) -> String {
    let open = points
        .first()
        .is_some_and(|p| p.verdict == Verdict::MeasureFirst);
    // Where the head has a line of what runs, it stands there.
    let more = match memory.limit {
        Some(_) => String::new(),
        None => memory.roomier_words(),
    };
    let Some(up_to) = pays_up_to else {
        return match points.first() {
            Some(p) if p.gains() => {
                let wall = match memory.wall_of(p.concurrency, p.context) {
                    LoadWall::Pool => "the KV pool holds".to_string(),
                    LoadWall::Slots => "the state slots carry".to_string(),
                    LoadWall::Cap(flag) => format!("{flag} runs"),
                };
                let asked = users(p.concurrency);
                format!("but {wall} fewer than {asked} at once{more}")
            }
            Some(p) if open => format!("its middle loses at {}", users(p.concurrency)),
            _ => "it pays at no load shown".to_string(),
        };
    };
    let next = points.iter().find(|p| p.concurrency > up_to);
    let (gains, doubt) = match open {
        true => ("its middle gains", String::new()),
        false => ("it pays", doubt(points, up_to)),
    };
    match next {
        Some(p) if p.gains() => {
            let wall = match memory.wall_of(p.concurrency, p.context) {
                LoadWall::Pool => "the KV pool is full".to_string(),
                LoadWall::Slots => "no state slot is left".to_string(),
                LoadWall::Cap(flag) => format!("{flag} runs no more"),
            };
            format!("beyond {} {wall}{more}{doubt}", users(up_to))
        }
        Some(_) => format!("{}{doubt}", off(points, up_to, open)),
        None if doubt.is_empty() => {
            format!("{gains} at every load shown, up to {}", users(up_to))
        }
        None => format!(
            "a gain is expected at every load shown, up to {}{doubt}",
            users(up_to)
        ),
    }
}

/// Rows of the pasted server: up to where it gains first, and all beyond that run at once.
fn runs(points: &[Point], up_to: u32) -> impl Iterator<Item = &Point> {
    let fits = move |p: &&Point| p.concurrency <= up_to || p.fits != Some(false);
    points.iter().filter(fits)
}

/// The loads that gain and may not.
fn doubt(points: &[Point], up_to: u32) -> String {
    let open = runs(points, up_to).map(|p| {
        let open = p.gains() && p.verdict == Verdict::MeasureFirst;
        (p.concurrency, open)
    });
    let words = undecided(&open.collect::<Vec<_>>());
    words.map_or_else(String::new, |words| format!(", {words}"))
}

/// Where it does not gain: above the load, or at some of those shown.
fn off(points: &[Point], up_to: u32, open: bool) -> String {
    let loads: Vec<(u32, bool)> = runs(points, up_to)
        .map(|p| (p.concurrency, !p.gains()))
        .collect();
    let again = loads.iter().any(|(load, off)| *load > up_to && !off);
    match (again, open) {
        (true, true) => format!("its middle loses at {} users", ranges(&loads)),
        (true, false) => format!(
            "turn it off at {} users; beyond them it gains again",
            ranges(&loads)
        ),
        (false, true) => format!("its middle loses above {}", users(up_to)),
        (false, false) => format!("turn it off above {}", users(up_to)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_left_open_between_decided_ones_are_named() {
        let words = |open: &[u32]| {
            let loads = [1, 2, 4, 8, 16, 32].map(|load| (load, open.contains(&load)));
            undecided(&loads).unwrap_or_default()
        };
        assert_eq!(words(&[8]), "measure first at 8 users");
        assert_eq!(words(&[2, 4, 32]), "measure first at 2 to 4 and 32 users");
        assert_eq!(words(&[8, 16, 32]), "measure first at 8 to 32 users");
        assert_eq!(words(&[]), "");
    }
}
