//! The score as a table for people, and as docs/ACCURACY.md.

use std::fmt::Write as _;

use super::Area;
use crate::cli::Rows;
use crate::table;

/// How many notes of an area are shown without `--rows all`.
const NOTES_SHOWN: usize = 3;

fn figure(value: Option<f64>) -> String {
    value.map_or_else(String::new, |v| format!("{v:.3}"))
}

/// The table, and the notes of each area below it.
pub(super) fn text(areas: &[Area], rows: Rows) -> String {
    let mut table = table::plain(
        &[
            "area", "rows", "skipped", "median", "p90", "mean", "right", "width",
        ],
        &[0],
    );
    for area in areas {
        table.add_row([
            area.area.clone(),
            area.n.to_string(),
            area.skipped.to_string(),
            figure(area.median_error),
            figure(area.p90_error),
            figure(area.mean_error),
            figure(area.right),
            figure(area.width),
        ]);
    }
    let mut out = table::text(&table, 0);
    let shown = match rows {
        Rows::None => 0,
        Rows::Worst => NOTES_SHOWN,
        Rows::All => usize::MAX,
    };
    for area in areas.iter().filter(|_| shown > 0) {
        if area.notes.is_empty() && area.rows.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{}", area.area);
        for note in area.notes.iter().take(shown) {
            let _ = writeln!(out, "  {note}");
        }
        for row in &area.rows {
            let off = 100.0 * (row.predicted / row.measured - 1.0);
            let _ = writeln!(
                out,
                "  {off:+7.1} %  measured {:.4}, predicted {:.4}  {}",
                row.measured, row.predicted, row.what
            );
        }
    }
    out
}

/// The page docs/ACCURACY.md.
pub(super) fn markdown(areas: &[Area]) -> String {
    let mut out = String::from(INTRODUCTION);
    out.push_str("\n| area | rows | skipped | median | p90 | mean | right | width |\n");
    out.push_str("|---|---:|---:|---:|---:|---:|---:|---:|\n");
    for area in areas {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            area.area,
            area.n,
            area.skipped,
            figure(area.median_error),
            figure(area.p90_error),
            figure(area.mean_error),
            figure(area.right),
            figure(area.width),
        );
    }
    out.push_str(AIMS);
    out.push_str("\n## Area by area\n");
    for area in areas {
        if area.notes.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n### {}\n", area.area);
        for note in &area.notes {
            let _ = writeln!(out, "- {}", cut(note));
        }
    }
    out
}

/// A note short enough to read; the whole of it is in `score --json`.
fn cut(note: &str) -> String {
    const LONGEST: usize = 600;
    if note.chars().count() <= LONGEST {
        return note.to_string();
    }
    let short: String = note.chars().take(LONGEST).collect();
    format!("{short} …")
}

const INTRODUCTION: &str = "\
# Accuracy

Written by `cargo xtask score --write docs/ACCURACY.md` on measured data; do not edit by hand.

Errors are |ln(predicted / measured)| unless an area says otherwise: 0.10 is about 10 %. Everything
fitted is scored with the row's own group (box, model or source) left out of the fit, never the
single row. `right` is a fraction; for verdicts it is balanced between rows that pay and rows that
lose, and `measure-first` counts as neither. `skipped` are rows that could not be placed, with the
reason below. `width` is the mean width of the 90 % bands (for `bands`, interval score over mean
absolute error).
";

const AIMS: &str = "
## What we aim at

memory.weights right 0.90 · memory.from_flags median 0.03, right 0.90 · collective.nccl_pcie 0.25,
nvlink_small 0.15, nvlink_large 0.10, custom 0.12, decision 0.90 · contention 0.10 ·
acceptance.depth_eagle3 mean 0.045, depth_other 0.11 · speedup.from_baseline median 0.04, p90 0.11,
right 0.95; extrapolated median 0.12, right 0.88; from_scratch median 0.12, right 0.85 ·
engine.from_sweep 0.05, from_scratch 0.10 · decode.from_scratch under AIConfigurator on its own
rows · bands' coverage 0.87 to 0.94 · inputs.facts right 0.95. Where the table misses an aim, the
area's notes below and the crate's page say why.
";
