//! nccl-tests tables and NCCL_DEBUG output.

mod debug;

/// What a log says of NCCL itself, beside each the line.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Said {
    /// Its version.
    pub(crate) version: Option<(String, usize)>,
    /// `NCCL_P2P_LEVEL`, as NCCL or a start line shows it.
    pub(crate) p2p_level: Option<(String, usize)>,
}

/// What the facts say of NCCL.
pub(super) fn said(facts: &Facts) -> Said {
    let version = || {
        Some((
            facts.text("nccl_version")?.to_string(),
            facts.get("nccl_version")?.line,
        ))
    };
    Said {
        version: version(),
        p2p_level: debug::p2p_level(facts),
    }
}

use super::facts::Facts;
use super::text::{Doc, leading_number, number_prefix};

/// One row of an nccl-tests table.
#[derive(Debug, Clone, Copy)]
struct Row {
    bytes: f64,
    count: Option<f64>,
    reduces: Option<bool>,
    /// Bytes of an element, by the type column.
    element: Option<f64>,
    /// A root other than none: reduce, broadcast.
    rooted: bool,
    time_us: f64,
    alg_gb_s: f64,
    bus_gb_s: f64,
    line: usize,
}

/// Reads nccl-tests and NCCL_DEBUG facts; nothing where the text is neither.
pub(crate) fn read(doc: &Doc, facts: &mut Facts) {
    tests(doc, facts);
    debug::read(doc, facts);
}

/// Times by size, (bytes, µs).
pub(crate) type Times = Vec<(u64, f64)>;

/// The out-of-place times of an nccl-tests table by size, (bytes, µs), rising, and its operation;
/// `None` where the text holds no such table.
pub(crate) fn times_us(text: &str) -> Option<(Times, Option<String>)> {
    let doc = Doc::new(text);
    let rows = last_table(&doc);
    let mut times: Times = rows
        .iter()
        .filter(|row| row.bytes >= 1.0 && row.time_us.is_finite() && row.time_us > 0.0)
        .map(|row| (row.bytes as u64, row.time_us))
        .collect();
    times.sort_by_key(|row| row.0);
    times.dedup_by_key(|row| row.0);
    let mut facts = Facts::default();
    operation(&doc, &rows, &mut facts);
    (!times.is_empty()).then(|| (times, facts.text("op").map(str::to_string)))
}

fn tests(doc: &Doc, facts: &mut Facts) {
    let table = doc.flat.contains("algbw busbw");
    let average = doc.after_all("Avg bus bandwidth").last();
    if !table && average.is_none() {
        return;
    }
    facts.kinds.push("nccl-tests");
    let tables = doc
        .lines
        .iter()
        .filter(|(_, line)| line.contains("algbw") && line.contains("busbw"))
        .count();
    if tables > 1 {
        facts.notes.push(format!(
            "{tables} nccl-tests tables in one file; the facts are those of the last"
        ));
    }
    let rows = last_table(doc);
    let listed = ranks_listed(doc);
    operation(doc, &rows, facts);
    ranks(&rows, listed.as_ref(), facts);
    if let Some(at) = average
        && let Some((value, _)) = leading_number(doc.window(at, 60))
    {
        facts.set("avg_busbw_gb_s", value, doc.line_at(at));
    }
    extremes(&rows, facts);
    if let Some(list) = &listed {
        if list.distinct_devices > 0 && list.distinct_devices < list.lines {
            facts.set("distinct_gpus", list.distinct_devices as f64, list.line);
        }
        if let Some(name) = &list.gpu {
            facts.set_if_absent("gpu", name.as_str(), list.line);
        }
    }
    if let Some(list) = &listed
        && list.hosts > 0
    {
        facts.set("nodes", list.hosts as f64, list.line);
    }
    // `nccl-library=23003` is 2.30.3.
    if let Some(at) = doc.after_all("nccl-library=").last()
        && let Some((code, _)) = leading_number(doc.window(at, 12))
        && (20_000.0..100_000.0).contains(&code)
    {
        let code = code as u32;
        let version = format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100);
        facts.set("nccl_version", version, doc.line_at(at));
    }
    for (name, fact) in [
        ("NCCL_P2P_DISABLE=1", "p2p_disabled"),
        ("NCCL_SHM_DISABLE=1", "shm_disabled"),
    ] {
        if let Some(at) = doc.after_all(name).next() {
            facts.set(fact, "true", doc.line_at(at));
        }
    }
}

/// The widest row, the smallest, and the one of decode's size.
fn extremes(rows: &[Row], facts: &mut Facts) {
    if let Some(best) = rows
        .iter()
        .filter(|row| row.bus_gb_s > 0.0)
        .max_by(|a, b| a.bus_gb_s.total_cmp(&b.bus_gb_s))
    {
        facts.set("max_busbw_gb_s", best.bus_gb_s, best.line);
        facts.set("max_busbw_bytes", best.bytes, best.line);
    }
    let small = rows.iter().filter(|row| row.bytes > 0.0);
    if let Some(row) = small.min_by(|a, b| a.bytes.total_cmp(&b.bytes)) {
        facts.set("smallest_bytes", row.bytes, row.line);
        facts.set("smallest_time_us", row.time_us, row.line);
    }
    // The size of one token to a few: 56 KiB is a verify of 4 tokens at hidden 7168.
    let decode = rows
        .iter()
        .filter(|row| (16_384.0..=131_072.0).contains(&row.bytes) && row.time_us > 0.0)
        .min_by(|a, b| {
            (a.bytes - 65_536.0)
                .abs()
                .total_cmp(&(b.bytes - 65_536.0).abs())
        });
    if let Some(row) = decode {
        facts.set("decode_size_bytes", row.bytes, row.line);
        facts.set("decode_size_time_us", row.time_us, row.line);
    }
}

/// Rows of the last table in the text.
fn last_table(doc: &Doc) -> Vec<Row> {
    let mut rows = Vec::new();
    // With its columns cut down a table has no type; otherwise a line without one is the second
    // half of a row that something was printed into.
    let mut typed: Option<bool> = None;
    for (number, line) in &doc.lines {
        if line.contains("algbw") && line.contains("busbw") {
            rows.clear();
            typed = Some(line.contains(" type"));
            continue;
        }
        let Some(typed) = typed else { continue };
        if let Some(row) = row(line, *number, typed) {
            rows.push(row);
        }
    }
    rows
}

/// A row, behind an `mpirun` tag if there is one: size, [count, type, redop, root,] time, algbw,
/// busbw[, wrong], and perhaps the in-place half.
fn row(line: &str, number: usize, with_type: bool) -> Option<Row> {
    let body = untagged(line);
    let words: Vec<&str> = body.split_whitespace().take(16).collect();
    let whole = |word: &&str| {
        number_prefix(word)
            .filter(|(_, n)| *n == word.len())
            .map(|(v, _)| v)
    };
    let bytes = words.first().filter(|w| !w.contains('.')).and_then(whole)?;
    let typed = words
        .get(2)
        .is_some_and(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()) && word.len() < 12);
    if !typed {
        // Columns were cut down to size, time, algbw, busbw.
        let figures: Vec<f64> = words.iter().map_while(&whole).collect();
        return match figures.as_slice() {
            [bytes, time_us, alg_gb_s, bus_gb_s, ..] if !with_type && words.len() <= 9 => {
                Some(Row {
                    bytes: *bytes,
                    count: None,
                    reduces: None,
                    element: None,
                    rooted: false,
                    time_us: *time_us,
                    alg_gb_s: *alg_gb_s,
                    bus_gb_s: *bus_gb_s,
                    line: number,
                })
            }
            _ => None,
        };
    }
    let redop = words
        .get(3)
        .filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()));
    let after = if redop.is_some() { 4 } else { 3 };
    let figures: Vec<f64> = words.iter().skip(after).map_while(&whole).collect();
    // A root column is a whole number before the time: -1, or a rank.
    let root = usize::from(has_root(&words, after, figures.len()));
    let time_us = *figures.get(root)?;
    Some(Row {
        bytes,
        count: words.get(1).and_then(whole),
        reduces: Some(redop.is_some_and(|word| *word != "none")),
        element: words.get(2).and_then(|word| element_bytes(word)),
        rooted: root == 1 && words.get(after).is_some_and(|word| *word != "-1"),
        time_us,
        alg_gb_s: *figures.get(root + 1)?,
        bus_gb_s: *figures.get(root + 2)?,
        line: number,
    })
}

/// Bytes of nccl-tests' types.
fn element_bytes(name: &str) -> Option<f64> {
    match name {
        "int8" | "uint8" | "f8e4m3" | "f8e5m2" => Some(1.0),
        "half" | "bfloat16" => Some(2.0),
        "int32" | "uint32" | "float" => Some(4.0),
        "int64" | "uint64" | "double" => Some(8.0),
        _ => None,
    }
}

/// Is the word at `at` a root (a whole number without decimals, followed by a time, algbw, busbw)?
fn has_root(words: &[&str], at: usize, figures: usize) -> bool {
    let Some(word) = words.get(at) else {
        return false;
    };
    if *word == "-1" {
        return true;
    }
    let decimals = |i: usize| words.get(i).is_some_and(|w| w.contains('.'));
    figures >= 4 && !word.contains('.') && !decimals(at + 1) && decimals(at + 2) && decimals(at + 3)
}

/// Without `[1,0]<stdout>:`, `node: `.
fn untagged(line: &str) -> &str {
    match line.find(">:") {
        Some(at) if line.trim_start().starts_with('[') => line.get(at + 2..).unwrap_or(line),
        _ => line,
    }
}

/// What the `Using devices` list says.
#[derive(Debug)]
struct Listed {
    ranks: usize,
    /// Lines of the list: fewer than ranks where its beginning is cut.
    lines: usize,
    distinct_devices: usize,
    hosts: usize,
    cut: bool,
    gpu: Option<String>,
    line: usize,
}

/// `#  Rank  0 Group  0 Pid 52 on host device  0 [0000:18:00] NVIDIA H200 NVL`.
fn ranks_listed(doc: &Doc) -> Option<Listed> {
    let mut highest: Option<usize> = None;
    let mut devices: Vec<String> = Vec::new();
    let mut hosts: Vec<&str> = Vec::new();
    let mut listed = Listed {
        ranks: 0,
        lines: 0,
        distinct_devices: 0,
        hosts: 0,
        cut: false,
        gpu: None,
        line: 0,
    };
    let mut known_bus = true;
    for (number, line) in &doc.lines {
        if line.contains("Using devices") {
            highest = None;
            devices.clear();
            hosts.clear();
            listed.lines = 0;
            listed.cut = false;
            known_bus = true;
        }
        let dots = line.trim().trim_start_matches('#').trim();
        if highest.is_some() && matches!(dots, "..." | "…" | "[...]") {
            listed.cut = true;
        }
        let Some(at) = line.find("Rank ").filter(|_| line.contains(" device ")) else {
            continue;
        };
        let Some((rank, _)) = leading_number(line.get(at + 5..).unwrap_or("")) else {
            continue;
        };
        if !(0.0..1e6).contains(&rank) {
            continue;
        }
        highest = Some(highest.unwrap_or(0).max(rank as usize));
        listed.line = *number;
        listed.lines += 1;
        let host = between(line, " on ", " device").unwrap_or("").trim();
        let bus = between(line, "[", "]");
        let bus = line
            .find(" device ")
            .and_then(|at| between(line.get(at..)?, "[", "]"))
            .or(bus);
        known_bus &= bus.is_some_and(|bus| bus != "0x00");
        if hosts.len() < 1024 && !hosts.contains(&host) {
            hosts.push(host);
        }
        let device = format!("{host} {}", bus.unwrap_or(""));
        if devices.len() < 4096 && !devices.contains(&device) {
            devices.push(device);
        }
        listed.gpu = line.rsplit(']').next().map(|name| name.trim().to_string());
    }
    listed.ranks = highest? + 1;
    listed.hosts = hosts.len();
    if known_bus {
        listed.distinct_devices = devices.len();
    }
    Some(listed)
}

fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let from = text.find(open)? + open.len();
    let rest = text.get(from..)?;
    rest.get(..rest.find(close)?)
}

/// Name of the collective: printed, or by its columns.
fn operation(doc: &Doc, rows: &[Row], facts: &mut Facts) {
    const NAMES: &[&str] = &[
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "alltoall",
        "sendrecv",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "hypercube",
    ];
    for name in NAMES {
        if let Some(at) = doc.after_all(&format!("{name}_perf")).last() {
            facts.set("op", *name, doc.line_at(at));
            return;
        }
    }
    let Some(row) = rows.iter().find(|row| row.bytes > 0.0) else {
        return;
    };
    let Some(reduces) = row.reduces else { return };
    // An all-reduce of n bytes has n bytes a rank; a reduce-scatter's size is over all ranks.
    let element = row
        .count
        .filter(|c| *c > 0.0)
        .map(|count| row.bytes / count);
    if reduces && !row.rooted && element.is_some() && element == row.element {
        facts.derive(
            "op",
            "all_reduce",
            row.line,
            "redop sum, size = count x element",
        );
    }
}

/// Number of ranks: the device list, checked against busbw / algbw = 2 (n - 1) / n.
fn ranks(rows: &[Row], listed: Option<&Listed>, facts: &mut Facts) {
    let op = facts.text("op").unwrap_or("").to_string();
    let reduces = op == "all_reduce" || (op.is_empty() && rows.iter().all(|r| r.reduces.is_none()));
    let by_ratio = rows
        .iter()
        .filter(|row| row.alg_gb_s >= 5.0)
        .max_by(|a, b| a.alg_gb_s.total_cmp(&b.alg_gb_s))
        .filter(|_| reduces)
        .and_then(|row| {
            let ratio = row.bus_gb_s / row.alg_gb_s;
            let ranks = 2.0 / (2.0 - ratio);
            // Two decimals of a figure: how far the ratio can be off.
            let slack = 0.01 / row.alg_gb_s;
            let spread = 2.0 / (2.0 - ratio - slack) - ranks;
            let near = (ranks - ranks.round()).abs() <= spread.max(0.02);
            (ratio < 2.0 && (1.0..1024.0).contains(&ranks) && near && spread.abs() < 0.5)
                .then_some((ranks.round(), row.line))
        });
    match (listed, by_ratio) {
        (Some(list), Some((ranks, line))) if ranks > list.ranks as f64 => facts.derive(
            "ranks",
            ranks,
            line,
            "busbw / algbw; the device list is cut",
        ),
        (Some(list), _) if !list.cut => facts.set("ranks", list.ranks as f64, list.line),
        (_, Some((ranks, line))) => {
            facts.derive("ranks", ranks, line, "busbw / algbw = 2 (n - 1) / n");
        }
        _ => {}
    }
}
