//! The rows of `--compare` as text.

use super::word;
use crate::predict::answer::{Answer, Compared, Verdict};
use crate::table::{plain, text, thousands};

/// The table, and what could not run; with how many GPUs take part where that is not the same in
/// every row.
pub(super) fn render(answer: &Answer, out: &mut String) {
    let cuts: Vec<String> = answer.compared.iter().map(|row| row.cut()).collect();
    let alike = cuts.windows(2).all(|pair| pair[0] == pair[1]);
    let mut header = vec!["compared"];
    if !alike {
        header.push("TP");
    }
    header.extend([
        "users",
        "plain tok/s",
        "spec tok/s",
        "speedup (90 %)",
        "steps",
        "verdict",
        "KV tokens",
    ]);
    // Pools of other shares of the memory are not told apart by what the draft takes alone.
    let fractions: Vec<String> = answer.compared.iter().map(fraction).collect();
    let one_fraction = fractions.windows(2).all(|pair| pair[0] == pair[1]);
    let mut left = vec![0, header.len() - 2];
    if !one_fraction {
        header.push("at fraction");
    }
    let in_engine = super::in_engine(answer);
    let reduces = answer.compared.iter().any(|row| row.in_engine.is_some());
    if reduces {
        left.push(header.len());
        header.push(&in_engine);
    }
    let mut table = plain(&header, &left);
    for ((row, cut), fraction) in answer.compared.iter().zip(cuts).zip(fractions) {
        let mut cells = vec![row.shown()];
        cells.extend((!alike).then_some(cut));
        cells.extend([
            row.concurrency.to_string(),
            thousands(row.baseline_tok_s),
            thousands(row.spec_tok_s),
            format!(
                "{:.2} ({:.2}-{:.2})",
                row.speedup, row.speedup_low, row.speedup_high
            ),
            row.drafted(),
            match (&row.stopped, row.speedup_low < row.speedup_high) {
                (Some(stopped), _) => stopped.word.to_string(),
                (None, true) => word(row.verdict).to_lowercase(),
                (None, false) if row.verdict == Verdict::NoDraft => {
                    word(row.verdict).to_lowercase()
                }
                // A draft that is off at this load.
                (None, false) => String::new(),
            },
            row.pool(),
        ]);
        cells.extend((!one_fraction).then_some(fraction));
        cells.extend(reduces.then(|| row.in_engine.clone().unwrap_or_default()));
        table.add_row(cells);
    }
    out.push('\n');
    out.push_str(&text(&table, 0));
    if let Some(line) = Compared::of_replicas(&answer.compared) {
        out.push_str(&format!("{line}\n"));
    }
    for line in answer.stopped_rows() {
        out.push_str(&format!("{line}\n"));
    }
    for what in &answer.compared_left_out {
        out.push_str(&format!("left out  {what}\n"));
    }
}

fn fraction(row: &Compared) -> String {
    row.fraction
        .map_or_else(String::new, |fraction| format!("{fraction:.3}"))
}
