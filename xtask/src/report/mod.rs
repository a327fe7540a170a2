//! The answer as one self-contained HTML page: no network, no script needed to read it.

mod charts;
mod page;

pub(crate) use page::{Section, page};

use maud::{Markup, html};

use crate::predict::RULE;
use crate::predict::answer::{Answer, Compared, DepthCell, Parts, Point, Verdict};
use crate::predict::text::{as_if_all_ran, in_engine, legal, memory_cost, remark};
use crate::table::{bytes, thousands, three};

/// Colours of the parts of a pass, in the order of [`named_parts`], and of [`CONSUMERS`]; legible on
/// light and dark.
const PART_COLOURS: [&str; 8] = [
    "#4878cf", "#8a63c9", "#d1793a", "#6aa84f", "#cc4b4b", "#9a9a9a", "#5fb3b3", "#c9a227",
];

/// The whole report of a prediction.
pub(crate) fn render(answer: &Answer, box_tree: &str) -> String {
    let by_load = match answer.best {
        Some(_) => section("Speedup by load", speedup(answer)),
        None => section("Speed by load", plain_speed(answer)),
    };
    let mut sections = vec![by_load];
    if !answer.compared.is_empty() {
        sections.push(section("Compared", compared(answer)));
    }
    sections.push(section("One cycle, part by part", cycle(answer)));
    if !answer.depth_map.is_empty() {
        sections.push(section("Depth by load and context", depth_map(answer)));
    }
    if !answer.allreduce.is_empty() {
        sections.push(section("All-reduce on this wiring", allreduce(answer)));
    }
    if !box_tree.is_empty() {
        sections.push(section("The box", html! { pre { (box_tree) } }));
    }
    if !answer.memory.ledger.is_empty() {
        sections.push(section("Memory of one GPU", memory(answer)));
    }
    if !answer.observed.is_empty() {
        sections.push(section("Observed beside computed", observed(answer)));
    }
    sections.push(section("What would change the answer", changes(answer)));
    sections.push(section("Assumptions and sources", sources(answer)));
    page(&title(answer), head(answer), &sections)
}

fn section(title: &str, body: Markup) -> Section {
    Section {
        title: title.to_string(),
        body,
    }
}

fn input(answer: &Answer, name: &str) -> String {
    answer
        .scenario
        .iter()
        .find(|i| i.name == name)
        .map_or_else(String::new, |i| match &i.value {
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Null => "unknown".to_string(),
            other => other.to_string(),
        })
}

fn title(answer: &Answer) -> String {
    format!("{} on {}", input(answer, "model"), input(answer, "box"))
}

/// Plain serving.
const NO_DRAFT: (&str, &str) = ("No draft", "open");

fn verdict_word(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Pays => ("Pays", "good"),
        Verdict::DoesNotPay => ("Does not pay", "bad"),
        Verdict::MeasureFirst => ("Measure first", "open"),
        Verdict::NoDraft => NO_DRAFT,
    }
}

fn head(answer: &Answer) -> Markup {
    let fits = answer.memory.fits != Some(false);
    let (word, class) = match (fits, &answer.best) {
        (false, _) if answer.starts_by_whole_experts() => {
            ("Does not start without expert parallelism", "bad")
        }
        (false, _) if answer.cut_refused => ("Does not start", "bad"),
        (false, _) => ("Does not fit", "bad"),
        (true, None) => NO_DRAFT,
        (true, Some(_)) => verdict_word(answer.verdict),
    };
    html! {
        p class=(format!("verdict {class}")) {
            span class="word" { (word) }
            @if let Some(best) = answer.best.as_ref().filter(|_| fits && !answer.undrafted) {
                span class="figure" { (format!("{:.2}x", best.speedup)) }
                span { (format!("90 % band {:.2} to {:.2}", best.speedup_low, best.speedup_high)) }
            }
        }
        @if let Some(lack) = crate::predict::serves::of_asked(answer) { p { (lack) } }
        @for line in answer.needs.iter().chain([&answer.because]) {
            p { (line) }
        }
        @if let Some(cost) = memory_cost(answer) { p { "It " (cost) } }
        @if let Some(limit) = answer.memory.limit.as_ref().filter(|_| fits) { p { (limit) } }
        @if let Some(replicas) = &answer.replicas { p { (replicas.line()) } }
        @if let Some(measure) = &answer.measure {
            p { strong { "Measure " } (measure.what) ": " (measure.how) }
        }
        p class="quiet" {
            (input(answer, "model")) " on " (input(answer, "box")) ", TP " (input(answer, "tp"))
            ", " (input(answer, "engine"))
            @if let Some(best) = &answer.best {
                ", " (input(answer, "method"))
                (format!(", {} step{}, top-k {}", best.steps, if best.steps == 1 { "" } else { "s" }, best.topk))
            }
        }
    }
}

fn speedup(answer: &Answer) -> Markup {
    let chart = charts::speedup(&answer.points);
    html! {
        figure {
            (chart)
            figcaption {
                "Speedup over plain decoding by users, at the steps of the table. The shaded area is "
                "the 90 % band; under the line at 1 speculation loses."
            }
        }
        div class="scroll" { table {
            thead { tr { th { "users" } th { "plain tok/s" } th { "spec tok/s" } th { "speedup" }
                th { "90 % band" } th { "steps" } th { "break-even accept length" } th class="left" {} } }
            tbody { @for p in &answer.points { tr {
                td { (p.concurrency) } td { (thousands(p.baseline_tok_s)) } td { (thousands(p.spec_tok_s)) }
                td { (format!("{:.2}", p.speedup)) }
                td { (format!("{:.2}–{:.2}", p.speedup_low, p.speedup_high)) }
                td { (p.steps) } td { (format!("{:.2}", p.break_even_accept_length)) }
                td class="left text" { (remark(p, &answer.memory, answer.memory.fits == Some(false))) }
            } } }
        } }
        @if let Some(line) = as_if_all_ran(answer) { p class="quiet" { (line) } }
    }
}

/// Without a draft: the plain figures.
fn plain_speed(answer: &Answer) -> Markup {
    html! { div class="scroll" { table {
        thead { tr { th { "users" } th { "tok/s" } th { "step, ms" } } }
        tbody { @for p in &answer.points { tr {
            td { (p.concurrency) } td { (thousands(p.baseline_tok_s)) }
            td { (format!("{:.2}", p.baseline_step_ms)) }
        } } }
    } } }
}

fn named_parts(parts: &Parts) -> [(&'static str, f64); 7] {
    [
        ("weights", parts.weights),
        ("experts", parts.experts),
        ("KV cache", parts.kv),
        ("compute", parts.compute),
        ("all-reduce", parts.allreduce),
        ("launch", parts.launch),
        ("other", parts.other),
    ]
}

/// Stacked bars for the least and the greatest load.
fn cycle(answer: &Answer) -> Markup {
    let shown: Vec<_> = match answer.points.as_slice() {
        [] => Vec::new(),
        [only] => vec![only],
        [first, .., last] => vec![first, last],
    };
    html! {
        @for point in shown {
            h3 { (point.concurrency) @if point.concurrency == 1 { " user" } @else { " users" }
                (format!(": plain step {:.1} ms", point.baseline_step_ms))
                @if point.steps > 0 {
                    (format!(", cycle {:.1} ms for {:.2} tokens", point.cycle_ms, point.accept_length))
                }
                @if point.baseline_parts_ms.is_none() { (format!(" ({})", point.of_own_steps())) } }
            @let rows = [("plain", point.baseline_parts_ms), ("draft", point.draft_parts_ms),
                ("verify", point.verify_parts_ms)];
            @let longest = point.baseline_step_ms.max(point.verify_ms).max(point.draft_ms);
            div class="bars" {
                @for (name, parts) in rows {
                    @if let Some(parts) = parts { (bar(name, &parts, longest)) }
                }
            }
        }
        @if answer.points.iter().all(|p| p.baseline_parts_ms.is_none()) {
            p class="quiet" { "Times come from your own sweep, which does not say what they consist of." }
        } @else { p class="legend" {
            @for (index, (name, _)) in named_parts(&Parts::default()).iter().enumerate() {
                span { i style=(format!("background:{}", PART_COLOURS[index])) {} (name) }
            }
        } }
    }
}

fn bar(name: &str, parts: &Parts, longest: f64) -> Markup {
    let sum: f64 = named_parts(parts).iter().map(|p| p.1).sum();
    html! {
        div class="row" {
            span class="name" { (name) }
            div class="track" {
                @for (index, (part, ms)) in named_parts(parts).into_iter().enumerate() {
                    @if ms > 0.0 && longest > 0.0 {
                        div style=(format!("width:{:.2}%;background:{}", 100.0 * ms / longest, PART_COLOURS[index]))
                            title=(format!("{part} {ms:.2} ms")) {}
                    }
                }
            }
            span class="value" { (format!("{sum:.1} ms")) }
        }
    }
}

fn compared(answer: &Answer) -> Markup {
    let reduces = answer.compared.iter().any(|row| row.in_engine.is_some());
    html! { div class="scroll" { table {
        thead { tr { th class="left" { "what" } th { "TP" } th { "users" } th { "plain tok/s" }
            th { "spec tok/s" } th { "speedup" } th { "90 % band" } th { "steps" } th class="left" { "verdict" } th { "KV tokens" }
            @if reduces { th class="left" { (in_engine(answer)) } } } }
        tbody { @for row in &answer.compared { tr {
            td class="left" { (row.shown()) } td { (row.cut()) } td { (row.concurrency) }
            td { (thousands(row.baseline_tok_s)) } td { (thousands(row.spec_tok_s)) }
            td { (format!("{:.2}", row.speedup)) }
            td { (format!("{:.2}–{:.2}", row.speedup_low, row.speedup_high)) }
            td { (row.drafted()) }
            td class="left" { (row.stopped.as_ref().map_or(verdict_word(row.verdict).0, |s| s.word)) }
            td { (row.pool()) }
            @if reduces { td class="left text" { (row.in_engine.as_deref().unwrap_or_default()) } }
        } } }
    } }
    @if let Some(line) = Compared::of_replicas(&answer.compared) { p { (line) } }
    @for line in answer.stopped_rows() { p { (line) } }
    @for what in &answer.compared_left_out { p { "left out: " (what) } } }
}

fn depth_map(answer: &Answer) -> Markup {
    let mut contexts: Vec<u64> = answer.depth_map.iter().map(|c| c.context).collect();
    contexts.sort_unstable();
    contexts.dedup();
    let mut loads: Vec<u32> = answer.depth_map.iter().map(|c| c.concurrency).collect();
    loads.sort_unstable();
    loads.dedup();
    let cell = |load: u32, context: u64| -> Option<&DepthCell> {
        answer
            .depth_map
            .iter()
            .find(|c| c.concurrency == load && c.context == context)
    };
    html! {
        div class="scroll" { table class="map" {
            thead { tr { th { "context \\ users" } @for load in &loads { th { (load) } } } }
            tbody { @for context in &contexts { tr {
                th { (thousands(*context as f64)) }
                @for load in &loads {
                    @if let Some(c) = cell(*load, *context).filter(|c| c.fits == Some(false)) {
                        td class="quiet" { (c.steps) br; small { "over KV" } }
                    } @else if let Some(c) = cell(*load, *context) {
                        td style=(shade(c.speedup)) { (c.steps) br; small { (format!("{:.2}x", c.speedup)) } }
                    } @else { td {} }
                }
            } } }
        } }
        p class="quiet" { (searched(answer)) "their predicted speedup. Green gains, red loses; "
            "over KV: more than the KV pool holds at once." }
    }
}

/// What a depth of the map is the best of.
fn searched(answer: &Answer) -> String {
    match answer.scenario.iter().find(|i| i.name == "steps") {
        Some(fixed) => format!(
            "Draft steps as {} fixes them (0: leave it off), and ",
            fixed.source
        ),
        None => format!(
            "Draft steps to run (0: leave it off): {}, and ",
            rule_of_map(answer)
        ),
    }
}

/// One depth at every load of the answer's context is chosen over all of them, a list at each.
fn rule_of_map(answer: &Answer) -> String {
    let near_best = "within 5 % of each load's best";
    let first = answer.points.first().map(|point| point.steps);
    let alike = |point: &Point| !point.off_in_paste && Some(point.steps) == first;
    if !answer.points.iter().all(alike) {
        return near_best.to_string();
    }
    let one = match answer.goodput {
        Some(_) => "the one depth that is best over your loads",
        None => RULE,
    };
    let context = |cell: &DepthCell| cell.context;
    let mut contexts = answer.depth_map.iter().map(context);
    let own = contexts.next();
    match contexts.all(|context| Some(context) == own) {
        true => one.to_string(),
        false => format!("at the context asked for {one}; at others {near_best}"),
    }
}

fn shade(speedup: f64) -> String {
    let strength = ((speedup - 1.0).abs() / 0.6).min(1.0) * 0.5 + 0.06;
    let colour = if speedup >= 1.0 {
        "60,160,80"
    } else {
        "200,60,60"
    };
    format!("background:rgba({colour},{strength:.2})")
}

fn allreduce(answer: &Answer) -> Markup {
    let chart = charts::allreduce(&answer.allreduce);
    html! {
        figure { (chart)
            p class="legend" {
                @for (name, colour) in charts::allreduce_legend(&answer.allreduce) {
                    span { i style=(format!("background:{colour}")) {} (name) }
                }
            }
            figcaption { "Time of one all-reduce at the sizes this model sends." }
        }
        div class="scroll" { table {
            thead { tr { th class="left" { "algorithm" } th { "bytes" } th { "µs" } th { "90 % band" }
                th { "ms a pass" } th class="left" { "in the engine" } } }
            tbody { @for t in &answer.allreduce { tr {
                td class="left" { (t.algorithm) } td { (bytes(t.bytes)) } td { (three(t.time_us)) }
                td { (three(t.time_us_low)) "–" (three(t.time_us_high)) } td { (three(t.per_pass_ms)) }
                td class="left text" { (t.switched_by.as_deref().unwrap_or("no")) }
            } } }
        } }
    }
}

/// The consumers of memory that the bar shows, in its order; the table below it has every line.
const CONSUMERS: [&str; 8] = [
    "weights",
    "draft head",
    "KV cache",
    "graphs",
    "activations",
    "driver, buffers",
    "free",
    "states",
];

/// Which of [`CONSUMERS`] a ledger line belongs to.
fn consumer(item: &str) -> usize {
    match item {
        "free" => 6,
        _ if item.starts_with("weights") => 0,
        _ if item.contains("graphs") => 3,
        _ if item.contains("KV pool") => 2,
        _ if item.contains("state pool") || item.contains("states of") => 7,
        _ if item.starts_with("draft") => 1,
        _ if item.starts_with("activations") => 4,
        _ => 5,
    }
}

/// GiB of each of [`CONSUMERS`]: what was observed less than computed is taken off its own.
fn sums<'a>(ledger: impl Iterator<Item = (&'a str, f64)>) -> [f64; CONSUMERS.len()] {
    let mut sums = [0.0_f64; CONSUMERS.len()];
    for (item, gib) in ledger {
        sums[consumer(item)] += gib;
    }
    sums.map(|gib| gib.max(0.0))
}

fn memory(answer: &Answer) -> Markup {
    let memory = &answer.memory;
    let lines = memory.ledger.iter();
    let sums = sums(lines.map(|line| (line.item.as_str(), line.gib)));
    let total: f64 = sums.iter().sum();
    html! {
        div class="bars" { div class="row" { div class="track tall" {
            @for (index, gib) in sums.into_iter().enumerate() {
                @if gib > 0.0 && total > 0.0 {
                    div style=(format!("width:{:.2}%;background:{}", 100.0 * gib / total, PART_COLOURS[index]))
                        title=(format!("{} {gib:.2} GiB", CONSUMERS[index])) {}
                }
            }
        } } }
        p class="legend" {
            @for (index, gib) in sums.into_iter().enumerate() { @if gib > 0.0 {
                span { i style=(format!("background:{}", PART_COLOURS[index])) {} (CONSUMERS[index])
                    (format!(" {gib:.2} GiB")) }
            } }
        }
        div class="scroll" { table {
            thead { tr { th class="left" { "line" } th { "GiB" } th class="left" { "source" } } }
            tbody { @for line in &memory.ledger { tr {
                td class="left text" { i style=(format!("background:{}", PART_COLOURS[consumer(&line.item)])) {} (line.item) }
                td { (format!("{:.2}", line.gib)) } td class="left quiet text" { (line.source) }
            } } }
        } }
        @for note in legal(answer).iter().chain(&memory.notes) { p { (note) } }
    }
}

fn observed(answer: &Answer) -> Markup {
    html! { div class="scroll" { table {
        thead { tr { th class="left" { "what" } th { "observed" } th { "computed" } th class="left" { "unit" } th class="left" { "note" } } }
        tbody { @for row in &answer.observed { tr {
            td class="left text" { (row.what) } td { (three(row.observed)) }
            td { (row.computed.map_or_else(|| "?".to_string(), three)) }
            td class="left" { (row.unit) } td class="left quiet text" { (row.note) }
        } } }
    } } }
}

fn changes(answer: &Answer) -> Markup {
    html! {
        @if !answer.flips.is_empty() {
            h3 { "What would flip it" }
            ul { @for flip in &answer.flips { li { (flip.note) } } }
        }
        @if !answer.changes.is_empty() {
            h3 { "What to change first" }
            ul { @for change in &answer.changes {
                li { (format!("{:+.0} % ", (change.gain - 1.0) * 100.0)) (change.change) ": " (change.why) }
            } }
        }
        h3 { "Flags to paste" }
        @let lines = crate::predict::launch::lines(answer);
        @if lines.is_empty() {
            p { "None: " (no_flags(answer)) }
        }
        @for (engine, line) in lines {
            p { (crate::predict::serves::label(answer, engine)) } pre class="flags" { (line) }
        }
        @if let Some(words) = &answer.placeholders { p { (words) } }
    }
}

/// Why there is no line to paste.
fn no_flags(answer: &Answer) -> &'static str {
    match (answer.cut_refused, answer.memory.fits) {
        (true, _) => "the engine refuses the weights cut like this, so no line would start it.",
        (false, Some(false)) => "it does not fit, so no line would start it.",
        _ => "what is assumed says why.",
    }
}

fn sources(answer: &Answer) -> Markup {
    html! {
        ul { @for a in &answer.assumptions {
            li { (a.words()) }
        } }
        div class="scroll" { table {
            thead { tr { th class="left" { "input" } th class="left" { "value" } th class="left" { "source" } } }
            tbody { @for i in &answer.scenario { tr {
                td class="left" { (i.name) } td class="left text" { (input(answer, i.name)) } td class="left quiet text" { (i.source) }
            } } }
        } }
        p class="quiet" { "Seed " (answer.seed) "." }
    }
}

#[cfg(test)]
mod tests {
    use super::sums;

    /// The bar left out what was observed less than computed: its parts were 0.1 GiB more than the card.
    #[test]
    fn the_parts_of_the_memory_bar_sum_to_the_card() {
        let ledger = [
            ("driver, CUDA context, NCCL", 0.82),
            ("weights: feed-forward", 4.65),
            ("weights: observed less computed", -0.10),
            ("target: KV pool", 12.0),
            ("free", 6.63),
        ];
        let parts = sums(ledger.into_iter());
        assert!((parts[0] - 4.55).abs() < 1e-9, "{parts:?}");
        assert!((parts.iter().sum::<f64>() - 24.0).abs() < 1e-9, "{parts:?}");
    }
}
