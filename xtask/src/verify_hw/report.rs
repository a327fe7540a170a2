//! `--report`: predicted against measured as one HTML page.

use maud::{Markup, PreEscaped, html};

use super::engine_mode;
use super::machine::Outcome;
use super::table::{Prediction, Row};
use crate::report::{Section, page};
use crate::table::three;

const COLOURS: [&str; 4] = ["#4878cf", "#d1793a", "#6aa84f", "#8a63c9"];

/// The page of a run on this machine.
pub(crate) fn render(outcome: &Outcome, held: Option<bool>) -> String {
    let mut sections = Vec::new();
    for run in &outcome.runs {
        let mut lines: Vec<Line> = Vec::new();
        for point in &run.found.points {
            let name = engine_mode::depth(point.steps);
            let row = speedup_row(outcome, &run.algorithm, point.concurrency, point.steps);
            let line = match lines.iter_mut().position(|l| l.name == name) {
                Some(at) => &mut lines[at],
                None => {
                    lines.push(Line::new(name));
                    let last = lines.len() - 1;
                    &mut lines[last]
                }
            };
            let x = f64::from(point.concurrency);
            line.measured
                .push((x, point.spec_tok_s / point.plain_tok_s));
            if let Some(predicted) = row.and_then(|r| r.calibrated) {
                line.predicted.push((x, predicted.value));
            }
        }
        let title = match run.algorithm.as_str() {
            "none" => "Speedup by load".to_string(),
            name => format!("Speedup by load, all-reduce {name}"),
        };
        sections.push(Section {
            title,
            body: speedup(&lines),
        });
    }
    for group in groups(&outcome.rows) {
        sections.push(Section {
            title: title_of(group),
            body: table(outcome.rows.iter().filter(|r| r.group == group)),
        });
    }
    sections.push(Section {
        title: "Findings and notes".to_string(),
        body: notes(outcome),
    });
    let title = format!(
        "verify-hw: {} on {} x {}",
        outcome.scenario.model.name,
        outcome.facts.gpus.len(),
        outcome.facts.gpus.first().map_or("?", |g| g.name.as_str())
    );
    page(&title, head(outcome, held), &sections)
}

fn head(outcome: &Outcome, held: Option<bool>) -> Markup {
    let (word, class) = match held {
        Some(true) => ("Held", "good"),
        Some(false) => ("Not held", "bad"),
        None => ("Not compared", "open"),
    };
    let limited = outcome
        .rows
        .iter()
        .flat_map(|r| [r.calibrated, r.from_scratch])
        .flatten();
    let (count, inside) = limited
        .filter_map(|p| p.held())
        .fold((0, 0), |(n, k), held| (n + 1, k + i32::from(held)));
    html! {
        p class=(format!("verdict {class}")) {
            span class="word" { (word) }
            span { (format!("{inside} of {count} predictions are within their limits")) }
        }
        @if outcome.mock { p { strong { "A mock: several ranks share one GPU; its times say nothing of a real group." } } }
        p class="quiet" {
            "Stand-in of " (outcome.scenario.model.name) ", TP " (outcome.scenario.tp)
            ". Calibrated: from probes and plain steps. From scratch: from the catalogue alone. "
            "Neither saw the speculative run."
        }
    }
}

fn groups(rows: &[Row]) -> Vec<&'static str> {
    // What is judged comes first.
    let mut found: Vec<&'static str> = Vec::new();
    found.extend(rows.iter().map(|r| r.group).find(|g| *g == "speedup"));
    for row in rows {
        if !found.contains(&row.group) {
            found.push(row.group);
        }
    }
    found
}

fn title_of(group: &str) -> String {
    let mut letters = group.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + letters.as_str()
    })
}

fn speedup_row<'a>(
    outcome: &'a Outcome,
    algorithm: &str,
    users: u32,
    steps: u32,
) -> Option<&'a Row> {
    let (users, depth) = (engine_mode::users(users), engine_mode::depth(steps));
    let begins = format!("{users}, {depth}");
    outcome.rows.iter().find(|r| {
        r.group == "speedup"
            && r.what.starts_with(&begins)
            && (algorithm == "none" || r.what.ends_with(algorithm))
    })
}

fn table<'a>(rows: impl Iterator<Item = &'a Row>) -> Markup {
    let value = |p: &Option<Prediction>| p.map_or_else(String::new, |p| three(p.value));
    let error = |p: &Option<Prediction>| {
        p.map_or_else(String::new, |p| format!("{:+.1} %", 100.0 * p.error))
    };
    let style = |p: &Option<Prediction>| match p.and_then(|p| p.held()) {
        Some(false) => "background:rgba(200,60,60,.25)",
        Some(true) => "background:rgba(60,160,80,.15)",
        None => "",
    };
    html! { div class="scroll" { table {
        thead { tr { th class="left" { "" } th { "measured" } th { "calibrated" } th { "error" }
            th { "from scratch" } th { "error" } } }
        tbody { @for r in rows { tr {
            td class="left" { (r.what) } td { (three(r.measured)) " " (r.unit) }
            td { (value(&r.calibrated)) } td style=(style(&r.calibrated)) { (error(&r.calibrated)) }
            td { (value(&r.from_scratch)) } td style=(style(&r.from_scratch)) { (error(&r.from_scratch)) }
        } } }
    } } }
}

fn notes(outcome: &Outcome) -> Markup {
    html! { ul {
        @for f in &outcome.findings { li { strong { (f.what) } ". Try first: " (f.fix) } }
        @for n in &outcome.notes { li { (n) } }
        @if outcome.findings.is_empty() { li { "The links show none of the known faults." } }
    } }
}

/// One depth's points over users.
struct Line {
    name: String,
    measured: Vec<(f64, f64)>,
    predicted: Vec<(f64, f64)>,
}

impl Line {
    fn new(name: String) -> Self {
        Self {
            name,
            measured: Vec::new(),
            predicted: Vec::new(),
        }
    }
}

/// Dots are measured, lines predicted; users on a log scale.
fn speedup(lines: &[Line]) -> Markup {
    let points = || {
        lines
            .iter()
            .flat_map(|l| l.measured.iter().chain(&l.predicted))
    };
    let most_x = points().map(|p| p.0).fold(2.0, f64::max);
    let most_y = points().map(|p| p.1).fold(1.2, f64::max) * 1.08;
    let x = |users: f64| 40.0 + 360.0 * users.max(1.0).log2() / most_x.log2();
    let y = |speedup: f64| 230.0 - 210.0 * speedup / most_y;
    let mut svg = String::from(
        "<svg viewBox=\"0 0 420 270\" role=\"img\" font-size=\"11\" font-family=\"sans-serif\">",
    );
    let mut users: Vec<f64> = points().map(|p| p.0).collect();
    users.sort_by(f64::total_cmp);
    users.dedup();
    svg += &axes(&users, most_y, &x, &y);
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let path: Vec<String> = line
            .predicted
            .iter()
            .map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1)))
            .collect();
        svg += &format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for p in &line.measured {
            svg += &format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>",
                x(p.0),
                y(p.1)
            );
        }
    }
    svg += "</svg>";
    html! {
        figure { (PreEscaped(svg)) figcaption {
            "Speculative over plain tokens a second. Dots: measured. Lines: calibrated prediction."
        } }
        p class="legend" {
            @for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
                span { i style=(format!("background:{colour}")) {} (line.name) " " }
            }
        }
    }
}

/// Grid, ticks and labels; the line at 1 is the strong one.
fn axes(users: &[f64], most_y: f64, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) -> String {
    let mut svg = String::new();
    let mut tick = 0.0;
    while tick <= most_y {
        let (at, dash) = (
            y(tick),
            if tick == 1.0 {
                ""
            } else {
                " stroke-dasharray=\"2 3\""
            },
        );
        svg += &format!(
            "<line x1=\"40\" x2=\"400\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#888\" stroke-width=\"{}\"{dash}/>\
             <text x=\"34\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            if tick == 1.0 { 1.4 } else { 0.5 },
            at + 4.0
        );
        tick += 0.5;
    }
    for u in users {
        svg += &format!(
            "<text x=\"{:.1}\" y=\"246\" text-anchor=\"middle\">{u}</text>",
            x(*u)
        );
    }
    svg += "<text x=\"220\" y=\"264\" text-anchor=\"middle\">users</text>";
    svg
}

#[cfg(test)]
mod tests {
    use super::super::machine;

    #[test]
    fn a_report_shows_verdict_figures_and_misses() {
        let outcome = machine::tests::outcome();
        let held = super::super::table::held(&outcome.rows);
        let text = super::render(&outcome, held);
        assert!(text.contains("Not held"), "a row is outside its limit");
        assert!(text.contains("<circle") && text.contains("<polyline"));
        assert!(!text.contains("NaN") && !text.contains("http://"));
        if let Some(path) = std::env::var_os("WRITE_REPORT") {
            std::fs::write(path, text).expect("written");
        }
    }
}
