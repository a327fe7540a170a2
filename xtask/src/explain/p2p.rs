//! p2pBandwidthLatencyTest (and its like) and nvbandwidth, as text and JSON.

use serde_json::Value;

use super::facts::Facts;
use super::text::{Doc, number_prefix};

/// A printed matrix.
#[derive(Debug, Default)]
struct Matrix {
    title: String,
    line: usize,
    /// Column numbers of the header.
    columns: usize,
    /// Rows without their index; `None` where a cell is `N/A`.
    rows: Vec<Vec<Option<f64>>>,
}

impl Matrix {
    /// Cells off the diagonal.
    fn pairs(&self) -> Vec<f64> {
        let mut cells = Vec::new();
        for (i, row) in self.rows.iter().enumerate() {
            for (j, cell) in row.iter().enumerate() {
                if let (true, Some(value)) = (i != j, cell) {
                    cells.push(*value);
                }
            }
        }
        cells
    }
}

/// Reads the facts; nothing where the text is none of these tools' output.
pub(crate) fn read(doc: &Doc, text: &str, facts: &mut Facts) {
    if nvbandwidth_json(text, facts) {
        return;
    }
    let matrices = matrices(doc);
    if matrices.iter().any(|m| m.title.contains("memcpy")) || doc.flat.contains("nvbandwidth") {
        nvbandwidth(doc, &matrices, facts);
    } else if doc.flat.contains("P2P") {
        peer_test(doc, &matrices, facts);
    }
}

/// Every matrix in the text: a header of ascending numbers 0 1 2 … (perhaps behind `D\D`), with a
/// title on the line before.
fn matrices(doc: &Doc) -> Vec<Matrix> {
    let mut found: Vec<Matrix> = Vec::new();
    let mut open = false;
    let mut title = "";
    for (number, line) in &doc.lines {
        let words: Vec<&str> = line.split_whitespace().take(130).collect();
        if let Some(columns) = header(&words) {
            found.push(Matrix {
                title: title.trim().to_string(),
                line: *number,
                columns,
                rows: Vec::new(),
            });
            open = true;
            title = line;
            continue;
        }
        title = line;
        let Some(matrix) = found.last_mut().filter(|_| open) else {
            continue;
        };
        match cells(&words, matrix.rows.len(), matrix.columns) {
            Some(row) => matrix.rows.push(row),
            None => open = false,
        }
    }
    found.retain(|matrix| !matrix.rows.is_empty());
    found
}

/// `D\D 0 1 2`, `GPU 0 1`, `0 1 2`: the number of columns.
fn header(words: &[&str]) -> Option<usize> {
    let labelled = words
        .first()
        .is_some_and(|w| w.contains(['D', 'G', 'C', 'S']) && w.len() <= 4);
    let numbers = words.get(usize::from(labelled)..)?;
    let ascending = numbers
        .iter()
        .enumerate()
        .all(|(index, word)| word.parse() == Ok(index));
    (ascending && !numbers.is_empty() && (labelled || numbers.len() > 1 || words == ["0"]))
        .then_some(numbers.len())
}

/// A row `1 22.3 N/A 7`; the index must be the next one.
fn cells(words: &[&str], index: usize, columns: usize) -> Option<Vec<Option<f64>>> {
    if words.first()?.parse() != Ok(index) {
        return None;
    }
    let mut row = Vec::with_capacity(columns.min(128));
    for word in words.iter().skip(1).take(columns) {
        if *word == "N/A" {
            row.push(None);
            continue;
        }
        match number_prefix(word) {
            Some((value, length)) if length == word.len() => row.push(Some(value)),
            _ => break,
        }
    }
    (!row.is_empty()).then_some(row)
}

/// The card, where all are of one kind: `Device 0: NVIDIA H100 (00000000:01:00)`,
/// `Device: 0, NVIDIA GeForce RTX 5090, pciBusID: 1, …`.
fn named_card(doc: &Doc, facts: &mut Facts) {
    let mut seen: Option<(&str, usize)> = None;
    for (number, line) in &doc.lines {
        let Some(rest) = line.trim().strip_prefix("Device") else {
            continue;
        };
        let rest = rest.trim_start_matches([':', ' ']);
        let name = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        if name.len() == rest.len() {
            continue;
        }
        let name = name.trim_start_matches([':', ',', ' ']);
        let name = name.split([',', '(', '[']).next().unwrap_or("").trim();
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || name.contains('=') {
            continue;
        }
        match seen {
            Some((known, _)) if known != name => return,
            _ => seen = Some((name, *number)),
        }
    }
    if let Some((name, line)) = seen {
        facts.set_if_absent("gpu", name, line);
    }
}

/// p2pBandwidthLatencyTest: the figure with P2P where both are there.
fn peer_test(doc: &Doc, matrices: &[Matrix], facts: &mut Facts) {
    let named = |words: &[&str]| {
        matrices.iter().find(|matrix| {
            words.iter().all(|word| matrix.title.contains(word)) && matrix.columns > 1
        })
    };
    let any = named(&["directional", "Bandwidth"]).or_else(|| named(&["Connectivity"]));
    let Some(first) = any.or_else(|| named(&["P2P", "Latency"])) else {
        return;
    };
    facts.kinds.push("p2p-bandwidth-latency-test");
    named_card(doc, facts);
    let count = |matrix: &Matrix| matrix.columns.max(matrix.rows.len()) as f64;
    facts.set_if_absent("gpus", count(first), first.line);
    for (direction, on, off) in [
        (
            "Unidirectional",
            "unidirectional_gb_s",
            "unidirectional_without_p2p_gb_s",
        ),
        (
            "Bidirectional",
            "bidirectional_gb_s",
            "bidirectional_without_p2p_gb_s",
        ),
    ] {
        let enabled = named(&[direction, "Enabled"]);
        let disabled = named(&[direction, "Disabled"]);
        let plain = named(&[direction]).filter(|_| disabled.is_none());
        if let Some(matrix) = enabled.or(plain) {
            middle(matrix, on, facts);
        }
        if let Some(matrix) = disabled {
            middle(matrix, off, facts);
        }
    }
    if let Some(matrix) = named(&["Enabled", "Latency"]) {
        let unit_us = matrix.title.contains("(us)");
        if unit_us {
            middle(matrix, "p2p_latency_us", facts);
        }
    }
    connectivity(doc, matrices, facts);
}

/// Median off the diagonal, and the least where the box is uneven.
fn middle(matrix: &Matrix, name: &'static str, facts: &mut Facts) {
    let cells = matrix.pairs();
    let Some(median) = crate::score::quantile(&cells, 0.5) else {
        return;
    };
    let low = cells.iter().copied().fold(f64::INFINITY, f64::min);
    let high = cells.iter().copied().fold(0.0, f64::max);
    let how = format!("median of {} pairs, {low} to {high}", cells.len());
    facts.derive(name, median, matrix.line, how);
    if name == "unidirectional_gb_s" || (name == "bidirectional_gb_s" && low < 0.8 * high) {
        facts.set("slowest_pair_gb_s", low, matrix.line);
    }
}

fn connectivity(doc: &Doc, matrices: &[Matrix], facts: &mut Facts) {
    let table = matrices
        .iter()
        .find(|matrix| matrix.title.contains("Connectivity") && matrix.columns > 1);
    let denied = doc.after_all("CANNOT Access Peer").next();
    if let Some(table) = table {
        let pairs = table.pairs();
        let all = pairs.iter().all(|cell| *cell == 1.0);
        let none = pairs.iter().all(|cell| *cell == 0.0);
        let word = if all {
            "on"
        } else if none {
            "off"
        } else {
            "some"
        };
        facts.set("p2p", word, table.line);
    } else if let Some(at) = denied {
        facts.set("p2p", "off", doc.line_at(at));
    }
}

/// nvbandwidth text: a matrix per test, its `Running …` line above the title.
fn nvbandwidth(doc: &Doc, matrices: &[Matrix], facts: &mut Facts) {
    let devices: Vec<usize> = doc
        .lines
        .iter()
        .filter(|(_, line)| {
            let rest = line.trim().strip_prefix("Device ").unwrap_or("");
            number_prefix(rest).is_some_and(|(_, n)| rest.get(n..n + 1) == Some(":"))
        })
        .map(|(number, _)| *number)
        .collect();
    if matrices.is_empty() && devices.is_empty() {
        return;
    }
    facts.kinds.push("nvbandwidth");
    named_card(doc, facts);
    if let Some(last) = devices.last() {
        facts.set_if_absent("gpus", devices.len() as f64, *last);
    } else if let Some(matrix) = matrices.iter().max_by_key(|m| m.columns) {
        facts.set_if_absent("gpus", matrix.columns as f64, matrix.line);
    }
    let known = devices.len();
    if known > 0 && matrices.iter().any(|matrix| matrix.columns > known) {
        facts.notes.push(format!(
            "a matrix has more columns than there are devices ({known}): edited by hand"
        ));
        return;
    }
    for matrix in matrices {
        let title = &matrix.title;
        let name = if title.contains("GPU(row) -> GPU(column)") {
            "d2d_read_gb_s"
        } else if title.contains("GPU(row) <- GPU(column)") {
            "d2d_write_gb_s"
        } else if title.contains("CPU(row) -> GPU(column)") {
            "h2d_gb_s"
        } else if title.contains("CPU(row) <- GPU(column)") {
            "d2h_gb_s"
        } else {
            continue;
        };
        let device_pairs = name.starts_with("d2d");
        let cells: Vec<f64> = if device_pairs {
            matrix.pairs()
        } else {
            matrix.rows.iter().flatten().flatten().copied().collect()
        };
        if let Some(median) = crate::score::quantile(&cells, 0.5) {
            let how = format!("median of {} cells", cells.len());
            if facts.get(name).is_none() {
                facts.derive(name, median, matrix.line, how);
            }
        }
    }
}

/// nvbandwidth -j.
fn nvbandwidth_json(text: &str, facts: &mut Facts) -> bool {
    let trimmed = text.trim_start();
    if !trimmed.starts_with('{') || !trimmed.contains("\"nvbandwidth\"") {
        return false;
    }
    let Ok(value) = serde_json::from_str::<Value>(trimmed) else {
        return false;
    };
    let Some(root) = value.get("nvbandwidth") else {
        return false;
    };
    facts.kinds.push("nvbandwidth");
    let cases = root.get("testcases").and_then(Value::as_array);
    let mut columns = 0;
    for case in cases.into_iter().flatten() {
        let name = case.get("name").and_then(Value::as_str).unwrap_or("");
        let rows = case.get("bandwidth_matrix").and_then(Value::as_array);
        let width = rows
            .and_then(|rows| rows.first())
            .and_then(Value::as_array)
            .map_or(0, Vec::len);
        columns = columns.max(width);
        let fact = match name {
            "host_to_device_memcpy_ce" => "h2d_gb_s",
            "device_to_host_memcpy_ce" => "d2h_gb_s",
            "device_to_device_memcpy_read_ce" => "d2d_read_gb_s",
            "device_to_device_memcpy_write_ce" => "d2d_write_gb_s",
            _ => continue,
        };
        if let Some(average) = case.get("average").and_then(Value::as_f64) {
            facts.set(fact, average, 1);
        }
    }
    let listed = root
        .get("GPU Device list")
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    let gpus = if listed > 0 { listed } else { columns };
    if gpus > 0 {
        facts.set("gpus", gpus as f64, 1);
    }
    true
}
