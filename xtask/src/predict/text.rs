//! The answer as text: the verdict first, then the table, then why.

mod compared;
mod cost;
mod memory;

pub(super) use cost::counted_in;
pub(crate) use cost::memory_cost;
pub(crate) use memory::legal;

use std::fmt::Write as _;

use spec_decode::economics::depth::TIE_SHARE;

use super::answer::{AllReduceTime, Answer, Assumption, Goodput, Memory, Parts, Point, Verdict};
use crate::scenario::EngineKind;
use crate::scenario::aside::LEFT_ASIDE;
use crate::scenario::log_weights::CONTRADICTED;
use crate::table::{bytes, plain, text as table_text, thousands, three};

/// The whole answer as people read it.
pub(crate) fn render(answer: &Answer, sources: bool) -> String {
    let mut out = String::new();
    head(answer, &mut out);
    out.push('\n');
    points(answer, &mut out);
    if !answer.compared.is_empty() {
        compared::render(answer, &mut out);
    }
    parts(answer, &mut out);
    allreduce(answer, &mut out);
    observed(answer, sources, &mut out);
    memory::memory(answer, sources, &mut out);
    closing(answer, &mut out);
    if sources {
        inputs(answer, &mut out);
    }
    out
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pays => "PAYS",
        Verdict::DoesNotPay => "DOES NOT PAY",
        Verdict::MeasureFirst => "MEASURE FIRST",
        Verdict::NoDraft => "NO DRAFT",
    }
}

fn input<'a>(answer: &'a Answer, name: &str) -> Option<&'a serde_json::Value> {
    answer
        .scenario
        .iter()
        .find(|i| i.name == name)
        .map(|i| &i.value)
}

fn input_text(answer: &Answer, name: &str) -> String {
    match input(answer, name) {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(serde_json::Value::Null) | None => "?".to_string(),
        Some(other) => other.to_string(),
    }
}

fn users(count: u32) -> String {
    if count == 1 {
        "one user".to_string()
    } else {
        format!("{count} users")
    }
}

fn head(answer: &Answer, out: &mut String) {
    let first = answer.points.first();
    let reduced = match answer.best.as_ref().map(|best| best.allreduce.as_str()) {
        // The engine's own choice is what anyone gets.
        None | Some("engine") => String::new(),
        _ if input_text(answer, "tp") == "1" => String::new(),
        Some(by) => format!(", all-reduce by {by}"),
    };
    let line = match (&answer.best, first) {
        _ if answer.starts_by_whole_experts() => format!(
            "DOES NOT START   without expert parallelism, which the paste adds and --ep {} reckons with",
            input_text(answer, "tp")
        ),
        _ if answer.cut_refused => {
            "DOES NOT START   cut like this; speeds below are what it would reach if it did"
                .to_string()
        }
        _ if super::does_not_fit(&answer.memory) => {
            "DOES NOT FIT   speeds below are what it would reach if it did".to_string()
        }
        (Some(_), Some(_)) if answer.undrafted => {
            "DOES NOT PAY   speeds below are what it would reach if it drafted at this context"
                .to_string()
        }
        (Some(best), Some(point)) => format!(
            "{}   {:.2}x for {} ({:.2} to {:.2})   {}, {} step{}, top-k {}{reduced}",
            word(answer.verdict),
            best.speedup,
            users(point.concurrency),
            best.speedup_low,
            best.speedup_high,
            input_text(answer, "method"),
            best.steps,
            if best.steps == 1 { "" } else { "s" },
            best.topk,
        ),
        _ => "NO DRAFT   plain speeds alone".to_string(),
    };
    let _ = writeln!(out, "{line}");
    let _ = writeln!(
        out,
        "       {} on {} at TP {}{}, {}",
        input_text(answer, "model"),
        input_text(answer, "box"),
        input_text(answer, "tp"),
        super::replicas::placed(&answer.scenario),
        input_text(answer, "engine"),
    );
    if let Some(left) = input(answer, LEFT_ASIDE).and_then(serde_json::Value::as_str) {
        let _ = writeln!(out, "       {left}");
    }
    if let Some(line) = input(answer, CONTRADICTED).and_then(serde_json::Value::as_str) {
        let _ = writeln!(out, "       {line}");
    }
    if let Some(lack) = super::serves::of_asked(answer) {
        let _ = writeln!(out, "       {lack}");
    }
    let runs = !super::does_not_fit(&answer.memory);
    if let Some(limit) = answer.memory.limit.as_ref().filter(|_| runs) {
        let _ = writeln!(out, "       {limit}");
    }
    if let Some(replicas) = &answer.replicas {
        let _ = writeln!(out, "       {}", replicas.line());
    }
    reasons(answer, out);
    if let Some(line) = memory_cost(answer) {
        let _ = writeln!(out, "       {line}");
    }
}

/// What it needs, why, and what to measure.
fn reasons(answer: &Answer, out: &mut String) {
    for line in answer.needs.iter().chain([&answer.because]) {
        let _ = writeln!(out, "       {line}");
    }
    if let Some(measure) = &answer.measure {
        let _ = writeln!(out, "       measure {}: {}", measure.what, measure.how);
    }
}

fn points(answer: &Answer, out: &mut String) {
    let many_contexts = answer
        .points
        .windows(2)
        .any(|pair| pair[0].context != pair[1].context);
    let mut header = vec!["users"];
    if many_contexts {
        header.push("context");
    }
    header.push("plain tok/s");
    let drafts = answer.points.iter().any(|point| point.steps > 0);
    if drafts {
        header.extend(["spec tok/s", "speedup (90 %)", "steps"]);
    }
    header.push("");
    let last = header.len() - 1;
    let left: &[usize] = if drafts { &[last - 1, last] } else { &[last] };
    let mut table = plain(&header, left);
    let nothing_fits = super::does_not_fit(&answer.memory) && !answer.cut_refused;
    for point in &answer.points {
        let mut row = vec![point.concurrency.to_string()];
        if many_contexts {
            row.push(thousands(point.context as f64));
        }
        row.push(thousands(point.baseline_tok_s));
        if drafts {
            row.extend([
                thousands(point.spec_tok_s),
                format!(
                    "{:.2} ({:.2}-{:.2})",
                    point.speedup, point.speedup_low, point.speedup_high
                ),
                point.steps.to_string(),
            ]);
        }
        row.push(remark(point, &answer.memory, nothing_fits));
        table.add_row(row);
    }
    out.push_str(&table_text(&table, 0));
    if let Some(line) = as_if_all_ran(answer) {
        let _ = writeln!(out, "{line}");
    }
    if let Some(day) = &answer.goodput {
        out.push_str(&over_your_loads(day));
    }
}

/// Whose speeds the rows have whose load does not run at once.
pub(crate) fn as_if_all_ran(answer: &Answer) -> Option<String> {
    if super::does_not_fit(&answer.memory) {
        return None;
    }
    let beyond = |point: &&Point| point.fits == Some(false);
    let first = answer.points.iter().find(beyond)?;
    let one_context = answer.points.iter().all(|p| p.context == first.context);
    let runs = answer.memory.held(first.context).filter(|_| one_context);
    let runs = runs.map_or_else(
        || "fewer run".to_string(),
        |runs| format!("this server runs {runs}"),
    );
    Some(format!(
        "rows marked \"more than\": the speed if all ran at once; {runs}, the others wait"
    ))
}

/// The speeds over a distribution of load; a best depth at each within 5 % of what is pasted counts as equal.
fn over_your_loads(day: &Goodput) -> String {
    let as_pasted = match day.fixed_steps {
        Some(0) => None,
        Some(steps) => Some(format!("always {}", super::verdict::steps(steps))),
        None => Some("as pasted".to_string()),
    };
    let pasted = as_pasted.map_or_else(String::new, |words| {
        format!(", {words} {}", thousands(day.fixed_tok_s))
    });
    let by_load = match day.scheduled_tok_s >= (1.0 + TIE_SHARE) * day.fixed_tok_s {
        true => format!(
            ", best depth at each load {}",
            thousands(day.scheduled_tok_s)
        ),
        false => String::new(),
    };
    let plain = thousands(day.plain_tok_s);
    format!("over your loads: plain {plain}{pasted}{by_load} tok/s\n")
}

pub(crate) fn remark(point: &Point, memory: &Memory, nothing_fits: bool) -> String {
    let mut remarks: Vec<String> = Vec::new();
    if point.speedup_measured {
        remarks.push("measured".into());
    }
    match point.verdict {
        Verdict::Pays | Verdict::NoDraft => {}
        // Without a draft there is no verdict.
        _ if point.steps == 0 => {}
        Verdict::DoesNotPay => remarks.push("does not pay".into()),
        Verdict::MeasureFirst if point.speedup_measured => remarks.push("too near to 1".into()),
        Verdict::MeasureFirst => remarks.push("measure first".into()),
    }
    if point.fits == Some(false) && !nothing_fits {
        remarks.push(memory.short_of(point.concurrency, point.context));
    }
    remarks.extend(point.depth_remark());
    remarks.join("; ")
}

fn parts(answer: &Answer, out: &mut String) {
    let Some(point) = answer.points.first() else {
        return;
    };
    if point.steps == 0 {
        let _ = writeln!(
            out,
            "\none step, {}, ms: {:.2}",
            users(point.concurrency),
            point.baseline_step_ms
        );
        return;
    }
    let (Some(plain_parts), Some(draft), Some(verify)) = (
        point.baseline_parts_ms,
        point.draft_parts_ms,
        point.verify_parts_ms,
    ) else {
        let _ = writeln!(
            out,
            "\none cycle, {}, ms: plain step {:.2}, draft {:.2}, verify {:.2} ({}: it has no parts)",
            users(point.concurrency),
            point.baseline_step_ms,
            point.draft_ms,
            point.verify_ms,
            point.of_own_steps()
        );
        return;
    };
    let title = format!("one cycle, {}, ms", users(point.concurrency));
    let mut table = plain(&[title.as_str(), "plain", "draft", "verify"], &[0]);
    let mut row = |name: &str, part: fn(&Parts) -> f64| {
        let cells = [part(&plain_parts), part(&draft), part(&verify)];
        // A dense model has no experts, one GPU nobody to reduce with.
        if cells.iter().all(|ms| ms.abs() < 0.005) {
            return;
        }
        table.add_row([
            name.to_string(),
            format!("{:.2}", cells[0]),
            format!("{:.2}", cells[1]),
            format!("{:.2}", cells[2]),
        ]);
    };
    row("  weights", |p| p.weights);
    row("  experts", |p| p.experts);
    row("  KV cache", |p| p.kv);
    row("  compute", |p| p.compute);
    row("  all-reduce", |p| p.allreduce);
    row("  launch", |p| p.launch);
    row("  other", |p| p.other);
    table.add_row([
        "  sum".to_string(),
        format!("{:.2}", point.baseline_step_ms),
        format!("{:.2}", point.draft_ms),
        format!("{:.2}", point.verify_ms),
    ]);
    out.push('\n');
    out.push_str(&table_text(&table, 0));
}

/// Head of the column that says what switches an all-reduce on.
pub(crate) fn in_engine(answer: &Answer) -> String {
    let engine = EngineKind::parse(&super::flags::engine_name(answer));
    format!("in {}", engine.map_or("the engine", EngineKind::title))
}

/// The kernels that an engine takes by size, by rising size: ": one-shot-push, two-shot".
fn kernels_of(rows: &[AllReduceTime]) -> String {
    let mut names: Vec<&str> = rows
        .iter()
        .map(|row| row.algorithm.trim_start_matches("engine-"))
        .collect();
    names.dedup();
    format!(": {}", names.join(", "))
}

fn allreduce(answer: &Answer, out: &mut String) {
    if answer.allreduce.is_empty() {
        return;
    }
    let mut sizes: Vec<u64> = answer.allreduce.iter().map(|time| time.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let in_engine = in_engine(answer);
    let columns: Vec<String> = sizes.iter().map(|size| bytes(*size)).collect();
    let mut header = vec!["all-reduce, us (90 %)"];
    header.extend(columns.iter().map(String::as_str));
    header.push(&in_engine);
    let mut table = plain(&header, &[0, header.len() - 1]);
    for rows in answer.allreduce.chunk_by(|a, b| a.choice == b.choice) {
        let Some(first) = rows.first() else { continue };
        let same = rows.iter().all(|row| row.algorithm == first.algorithm);
        let nccl = rows.iter().all(|row| row.is_nccl());
        let name = match (same, first.choice.as_str(), nccl) {
            (true, ..) => &first.algorithm,
            (_, "engine", true) => "engine, by NCCL",
            (_, choice, _) => choice,
        };
        let by = match (same, first.choice.as_str(), nccl) {
            (false, "engine", false) => kernels_of(rows),
            _ => String::new(),
        };
        let mut cells = vec![format!("  {name}{by}")];
        cells.extend(sizes.iter().map(|size| {
            let row = rows.iter().find(|row| row.bytes == *size);
            row.map_or_else(String::new, |row| {
                let (low, high) = (three(row.time_us_low), three(row.time_us_high));
                format!("{} ({low}-{high})", three(row.time_us))
            })
        }));
        cells.push(match &first.switched_by {
            _ if first.measured => "measured".to_string(),
            Some(switch) => switch.clone(),
            None => "no".to_string(),
        });
        table.add_row(cells);
    }
    out.push('\n');
    out.push_str(&table_text(&table, 0));
}

fn observed(answer: &Answer, sources: bool, out: &mut String) {
    if answer.observed.is_empty() {
        return;
    }
    let mut header = vec!["observed beside computed", "observed", "computed", "", ""];
    if sources {
        header.push("source");
    }
    let mut table = plain(&header, &[0, 3, 4, 5]);
    for row in &answer.observed {
        let mut cells = vec![
            format!("  {}", row.what),
            three(row.observed),
            row.computed.map_or_else(|| "?".to_string(), three),
            row.unit.to_string(),
            row.note.clone(),
        ];
        cells.extend(sources.then(|| row.source.clone()));
        table.add_row(cells);
    }
    out.push('\n');
    out.push_str(&table_text(&table, 0));
}

fn closing(answer: &Answer, out: &mut String) {
    let mut section = |title: &str, lines: Vec<String>| {
        if lines.is_empty() {
            return;
        }
        out.push('\n');
        let _ = writeln!(out, "{title}");
        for line in lines {
            let _ = writeln!(out, "  {line}");
        }
    };
    section(
        "what would flip it (where the middle of the band crosses 1)",
        answer.flips.iter().map(|f| f.note.clone()).collect(),
    );
    section(
        "what to change first (in the mean of the loads, where none is named)",
        answer
            .changes
            .iter()
            .map(|c| format!("{:+.0} %  {} ({})", (c.gain - 1.0) * 100.0, c.change, c.why))
            .collect(),
    );
    section(
        "assumed",
        answer.assumptions.iter().map(Assumption::words).collect(),
    );
    section(
        "paste",
        super::launch::lines(answer)
            .into_iter()
            .map(|(engine, line)| format!("{}: {line}", super::serves::label(answer, engine)))
            .chain(answer.placeholders.clone())
            .collect(),
    );
}

/// Joins flags as one would type them in a shell.
pub(crate) fn shell_words(flags: &[String]) -> String {
    let quoted: Vec<String> = flags.iter().map(|flag| shell_word(flag)).collect();
    quoted.join(" ")
}

/// A word as a shell takes it.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,@+".contains(c);
    if word.chars().all(plain) && !word.is_empty() {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn inputs(answer: &Answer, out: &mut String) {
    let mut table = plain(&["inputs", "", "source"], &[0, 1, 2]);
    for input in &answer.scenario {
        let value = match &input.value {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        table.add_row([format!("  {}", input.name), value, input.source.clone()]);
    }
    out.push('\n');
    out.push_str(&table_text(&table, 0));
    let _ = writeln!(out, "  seed {}", answer.seed);
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_empty_word_is_quoted_and_letters_of_any_script_are_not() {
        assert_eq!(super::shell_word(""), "''");
        assert_eq!(super::shell_word("modèle/a-b.log"), "modèle/a-b.log");
        assert_eq!(super::shell_word("a b'c"), r"'a b'\''c'");
    }
}
