//! The memory of one card in the text of an answer.

use std::fmt::Write as _;

use crate::predict::answer::{Answer, LedgerLine};
use crate::table::{plain, text as table_text};

/// The ledger with the target's weights in one line: `plan`, `--sources` and `--json` have the parts.
fn weights_as_one(ledger: &[LedgerLine]) -> Vec<LedgerLine> {
    let mut out: Vec<LedgerLine> = Vec::new();
    for line in ledger {
        let part = line.item.starts_with("weights: ");
        match out.iter_mut().find(|row| part && row.item == "weights") {
            Some(row) => {
                row.gib += line.gib;
                row.low_gib += line.low_gib;
                row.high_gib += line.high_gib;
            }
            None => {
                let mut row = line.clone();
                if part {
                    row.item = "weights".to_string();
                }
                out.push(row);
            }
        }
    }
    out
}

/// The memory table, the legal fractions and what was noted.
pub(super) fn memory(answer: &Answer, sources: bool, out: &mut String) {
    let memory = &answer.memory;
    if memory.ledger.is_empty() && memory.notes.is_empty() {
        return;
    }
    let mut header = vec!["memory of one GPU, GiB", "", "(90 %)"];
    if sources {
        header.push("source");
    }
    let mut table = plain(&header, &[0, 3]);
    let lines = match sources {
        true => memory.ledger.clone(),
        false => weights_as_one(&memory.ledger),
    };
    for line in &lines {
        let mut row = vec![
            format!("  {}", line.item),
            format!("{:.2}", line.gib),
            if (line.high_gib - line.low_gib).abs() > 0.005 {
                let to = if line.low_gib < 0.0 { " to " } else { "-" };
                format!("{:.2}{to}{:.2}", line.low_gib, line.high_gib)
            } else {
                String::new()
            },
        ];
        if sources {
            row.push(line.source.clone());
        }
        table.add_row(row);
    }
    let card: f64 = lines.iter().map(|line| line.gib).sum();
    if !lines.is_empty() {
        let mut total = vec![
            "  the card".to_string(),
            format!("{card:.2}"),
            String::new(),
        ];
        total
            .extend(sources.then(|| "memory.total of nvidia-smi (processes see less)".to_string()));
        table.add_row(total);
    }
    out.push('\n');
    out.push_str(&table_text(&table, 0));
    for note in legal(answer).iter().chain(&memory.notes) {
        let _ = writeln!(out, "  {note}");
    }
}

/// The fractions that start and hold, in one line; llama.cpp has none.
pub(crate) fn legal(answer: &Answer) -> Option<String> {
    let memory = &answer.memory;
    let walls = memory.fraction_min.zip(memory.fraction_max);
    let walls = walls.filter(|(low, high)| *low > 0.0 || *high < 1.0);
    Some(memory.legal(walls?))
}
