//! A plain sweep as CSV, read strictly: a row that cannot be read is named by its line.

use std::collections::HashMap;

use super::BenchPoint;
use super::columns::{Columns, names_something_else, other_rate, says_sum};
use crate::explain::text::Doc;
use crate::input;

/// Most requests at a time that a row may name.
const MAX_CONCURRENCY: f64 = 100_000.0;
/// Most tokens a second over all users: above any one server's.
const MAX_TOK_S: f64 = 1e7;

/// Columns of a table that a person keeps.
const MOST_CELLS: usize = 24;
/// Longest cell of its header, bytes.
const LONGEST_CELL: usize = 40;

/// One row: (users, tokens a second over all users, line).
pub(super) type Row = (f64, f64, usize);

/// A sweep as CSV.
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    /// Tokens of context of each row, where a column says them.
    contexts: Option<Vec<f64>>,
    /// What was guessed of its columns.
    pub(super) guessed: Option<String>,
    /// The header says that the throughput is of all users together.
    pub(super) summed: bool,
}

/// Reads the table; `None` where the text is no CSV at all. Columns are found by the header's words,
/// else they are the first two; further columns, quotes and `#` comments are passed over.
pub(super) fn table(doc: &Doc, name: &str) -> Option<anyhow::Result<Table>> {
    let mut lines = lines_of(doc);
    let (line, first) = lines.next()?;
    // A line of a log or of prose has more words, and longer ones, than a header.
    let row = |cells: &[String]| {
        cells.len() <= MOST_CELLS && cells.iter().all(|cell| cell.len() <= LONGEST_CELL)
    };
    if !row(&first) {
        return None;
    }
    let header = first.iter().all(|cell| figure_of(cell).is_none());
    let known = Columns::of(&first).filter(|_| header);
    let like_csv = if header {
        known.is_some() || lines_of(doc).nth(1).is_some_and(|(_, row)| is_pair(&row))
    } else {
        is_pair(&first) || first.len() == 2
    };
    if !like_csv {
        return None;
    }
    let other = first
        .iter()
        .find_map(|cell| Some((cell, other_rate(cell)?)));
    if let (Some((cell, counts)), None) = (other, known) {
        return Some(Err(input::error(format!(
            "--baseline {name}:{line}: column `{cell}` of the header counts {counts}, and no other gives \
             output tokens a second over all users; give `concurrency,tok_s`"
        ))));
    }
    if header && known.is_none() && names_something_else(&first) {
        return Some(Err(input::error(format!(
            "--baseline {name}:{line}: the header `{}` names no column of users and one of tokens a second \
             over all users; give `concurrency,tok_s`",
            first.join(",")
        ))));
    }
    let guessed = (header && known.is_none()).then(|| {
        format!(
            "the words of its header, `{}`, are not known: the first two columns are taken as users and \
             tokens a second over all users",
            first.join(",")
        )
    });
    let columns = known.unwrap_or(Columns {
        users: 0,
        tok_s: 1,
        context: None,
    });
    let summed = header && first.get(columns.tok_s).is_some_and(|cell| says_sum(cell));
    let rows = lines_of(doc).skip(usize::from(header));
    Some(read(rows, columns, name).map(|(rows, contexts)| Table {
        rows,
        contexts,
        guessed,
        summed,
    }))
}

/// Lines with cells in them, and their numbers.
fn lines_of(doc: &Doc) -> impl Iterator<Item = (usize, Vec<String>)> + '_ {
    let lines = doc.lines.iter();
    let lines = lines.map(|(number, line)| (*number, cells(line)));
    lines.filter(|(_, cells)| !cells.is_empty())
}

/// The rows, and their contexts where a column says them; the first that cannot be read is an error.
fn read(
    lines: impl Iterator<Item = (usize, Vec<String>)>,
    columns: Columns,
    name: &str,
) -> anyhow::Result<(Vec<Row>, Option<Vec<f64>>)> {
    let mut rows = Vec::new();
    let mut contexts = columns.context.map(|_| Vec::new());
    for (line, row) in lines {
        rows.push(one(&row, line, columns, name)?);
        if let (Some(contexts), Some(at)) = (&mut contexts, columns.context) {
            contexts.push(context(&row, line, at, name)?);
        }
    }
    Ok((rows, contexts))
}

/// The points of a table whose header names its columns; nothing of two columns of bare figures,
/// which may be anything.
pub(super) fn points(doc: &Doc) -> Vec<BenchPoint> {
    let header = lines_of(doc).next().map(|(_, cells)| cells);
    let named = header.is_some_and(|header| Columns::of(&header).is_some());
    match named.then(|| table(doc, "")).flatten() {
        Some(Ok(table)) if table.guessed.is_none() => table.points(),
        _ => Vec::new(),
    }
}

impl Table {
    /// Whether rows are of contexts told apart.
    pub(super) fn sweeps_contexts(&self) -> bool {
        self.contexts.is_some()
    }

    pub(super) fn points(&self) -> Vec<BenchPoint> {
        let context = |index: usize| self.contexts.as_ref()?.get(index).copied();
        let rows = self.rows.iter().enumerate();
        rows.map(|(index, (users, tok_s, line))| BenchPoint {
            concurrency: Some(*users),
            output_tok_s: Some(*tok_s),
            context: context(index),
            summed: self.summed,
            tool: "csv",
            line: *line,
            ..BenchPoint::default()
        })
        .collect()
    }
}

/// Cells of a line, without comment and quotes; the first separator that occurs outside quotes splits
/// it.
fn cells(line: &str) -> Vec<String> {
    let line = line.split('#').next().unwrap_or("").trim();
    if line.is_empty() {
        return Vec::new();
    }
    let quoted = |quotes: usize| quotes % 2 == 1;
    let outside = |separator: char| {
        let mut quotes = 0;
        line.chars().any(|c| {
            quotes += usize::from(c == '"');
            c == separator && !quoted(quotes)
        })
    };
    let separator = [';', '\t', ',', ' ']
        .into_iter()
        .find(|separator| outside(*separator))
        .unwrap_or(',');
    let mut quotes = 0;
    line.split(|c: char| {
        quotes += usize::from(c == '"');
        c == separator && !quoted(quotes)
    })
    .map(|cell| cell.trim().trim_matches(['"', '\'']).trim().to_string())
    .filter(|cell| separator != ' ' || !cell.is_empty())
    .collect()
}

/// A figure, also one whose thousands a comma sets apart (`1,150.5`, which only a quoted cell or one
/// behind another separator can hold).
fn figure_of(cell: &str) -> Option<f64> {
    let whole = cell.split('.').next().unwrap_or("");
    let mut groups = whole.split(',');
    let first = groups.next().unwrap_or("");
    let digits = |group: &str| group.bytes().all(|b| b.is_ascii_digit());
    let rest: Vec<&str> = groups.collect();
    let sets_apart = (1..=3).contains(&first.len())
        && digits(first)
        && !rest.is_empty()
        && rest.iter().all(|group| group.len() == 3 && digits(group));
    // `1,150` alone may as well have a decimal comma.
    if sets_apart && (rest.len() > 1 || cell.contains('.')) {
        return cell.replace(',', "").parse().ok();
    }
    cell.parse().ok()
}

fn is_pair(row: &[String]) -> bool {
    row.len() >= 2 && row.iter().take(2).all(|cell| figure_of(cell).is_some())
}

fn wrong(name: &str, line: usize, what: &str) -> anyhow::Error {
    input::error(format!(
        "--baseline {name}:{line}: {what}; give users,tok_s such as 8,500 (tokens a second over all users)"
    ))
}

fn one(row: &[String], line: usize, columns: Columns, name: &str) -> anyhow::Result<Row> {
    let figure = |at: usize, what: &str, least: f64, most: f64| {
        let cell = row.get(at).map_or("", String::as_str);
        let value = figure_of(cell).ok_or_else(|| {
            let point = cell.replace(',', ".");
            let comma = point != cell && point.parse::<f64>().is_ok();
            let why = if comma {
                format!(": a decimal comma; write {point}")
            } else {
                String::new()
            };
            wrong(name, line, &format!("{what} `{cell}` is not a number{why}"))
        })?;
        if value.is_finite() && value >= least && value <= most {
            Ok(value)
        } else {
            let what = format!("{what} {cell} is not between {least} and {most}");
            Err(wrong(name, line, &what))
        }
    };
    let users = figure(columns.users, "concurrency", 1.0, MAX_CONCURRENCY)?;
    let tok_s = figure(columns.tok_s, "throughput", 1e-3, MAX_TOK_S)?;
    Ok((users, tok_s, line))
}

/// The tokens of context of a row, `16k` as 16384.
fn context(row: &[String], line: usize, at: usize, name: &str) -> anyhow::Result<f64> {
    let cell = row.get(at).map_or("", String::as_str).to_ascii_lowercase();
    let (figure, unit) = match cell.strip_suffix('k') {
        Some(figure) => (figure, 1024.0),
        None => (cell.as_str(), 1.0),
    };
    let tokens = figure_of(figure).map(|tokens| tokens * unit);
    tokens
        .filter(|tokens| (0.0..1e9).contains(tokens))
        .ok_or_else(|| {
            wrong(
                name,
                line,
                &format!("context `{cell}` is not a number of tokens"),
            )
        })
}

/// Refuses points of a bench output that no server reaches.
pub(super) fn plausible(sweep: &[(f64, f64)], name: &str) -> anyhow::Result<()> {
    let within = |(users, tok_s): &(f64, f64)| *users <= MAX_CONCURRENCY && *tok_s <= MAX_TOK_S;
    match sweep.iter().find(|point| !within(point)) {
        None => Ok(()),
        Some((users, tok_s)) => Err(input::error(format!(
            "--baseline {name}: {tok_s:.3e} tokens a second with {users} users: no server reaches that; \
             check the file"
        ))),
    }
}

/// A total at the largest load below this share of that at the smallest is no total: more users
/// share a pass, and a server past its knee stays level.
const LEAST_SHARE: f64 = 0.95;

/// Refuses a sweep whose total falls as users grow: it gives the tokens of one user.
pub(super) fn over_all_users(sweep: &[(f64, f64)], name: &str) -> anyhow::Result<()> {
    match (sweep.first(), sweep.last()) {
        (Some((few, fast)), Some((many, slow))) if *slow < fast * LEAST_SHARE => {
            Err(input::error(format!(
                "--baseline {name}: throughput falls from {fast} tok/s at {few} users to {slow} at \
                 {many}: are these per user? tok_s is over all users; multiply each by its users"
            )))
        }
        _ => Ok(()),
    }
}

/// Most notes on what looks odd in one sweep.
const MOST_NOTES: usize = 8;

/// What looks odd in a sweep, for the user to judge: repeats, and a throughput that falls. Where the
/// file says that it is of all users together, the fall is the server's.
pub(super) fn oddities(rows: &[Row], sweep: &[(f64, f64)], summed: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let mut last: HashMap<u64, &Row> = HashMap::new();
    for row in rows {
        let (users, tok_s, line) = row;
        if notes.len() == MOST_NOTES {
            return notes;
        }
        let Some((_, before, at)) = last.insert(users.to_bits(), row) else {
            continue;
        };
        let places = match at == line {
            true => format!("twice in line {line} ({before} tok/s, then {tok_s})"),
            false => {
                format!("in line {at} ({before} tok/s) and again in line {line} ({tok_s} tok/s)")
            }
        };
        notes.push(format!("{users} users stand {places}: the last is taken"));
    }
    for pair in sweep.windows(2) {
        if let [(few, fast), (many, slow)] = pair
            && slow < fast
        {
            let why = match summed {
                true => "a cliff of this server, kept as measured",
                false => "a cliff, if tok_s is over all users as it must be, not one user's",
            };
            notes.push(format!(
                "throughput falls from {fast} tok/s at {few} users to {slow} at {many}: {why}"
            ));
        }
    }
    notes.truncate(MOST_NOTES);
    notes
}

#[cfg(test)]
mod tests {
    use crate::bench_input::{points_from_text, sweep_from_text};

    type Points = Vec<(f64, f64)>;

    fn both(text: &str) -> (Option<Points>, Option<Points>) {
        let read = sweep_from_text(text, "f").ok();
        let points = points_from_text(text).into_iter();
        let seen: Points = points
            .filter_map(|point| point.concurrency.zip(point.output_tok_s))
            .collect();
        (read, Some(seen).filter(|seen| !seen.is_empty()))
    }

    #[test]
    fn explain_and_baseline_find_the_same_columns_by_the_headers_words() {
        let row = |header: &str, cells: &str| format!("{header}\n{cells}\n");
        for (header, cells) in [
            ("concurrency,tok_s", "8,500"),
            ("users,tok_s", "8,500"),
            ("tok_s,concurrency", "500,8"),
            ("# mine\nusers;tok/s", "8;500"),
            ("requests_per_s,concurrency,output_tok_s", "1.5,8,500"),
            ("concurrency,input_tokens,output_tok_s", "8,9000,500"),
            ("concurrency,tok_s_per_user,total_tok_s", "8,62.5,500"),
            (
                "concurrency,output_throughput,total_token_throughput",
                "8,500,1500",
            ),
            (
                "Max concurrency,Mean TTFT (ms),Output token throughput (tok/s)",
                "8,210.5,500",
            ),
            ("batch_size\ttokens_per_second", "8\t500"),
            ("users,tok_s", "8,\"500\""),
        ] {
            let expected = Some(vec![(8.0, 500.0)]);
            assert_eq!(
                both(&row(header, cells)),
                (expected.clone(), expected),
                "{header}"
            );
        }
        let large = both("users,tok_s\n64,\"1,150.5\"\n").0;
        assert_eq!(large, Some(vec![(64.0, 1150.5)]));
    }

    #[test]
    fn a_table_of_something_else_is_no_sweep() {
        for text in [
            "bytes,time_us\n14336,19.8\n57344,24.5\n",
            "request_rate,tok_s\n1,100\n4,300\n",
            "concurrency,tok_s_per_user\n1,90\n8,60\n",
            "concurrency,mean_ttft_ms\n1,90\n8,160\n",
        ] {
            assert_eq!(both(text), (None, None), "{text}");
            let why = sweep_from_text(text, "f")
                .expect_err("no sweep")
                .to_string();
            assert!(
                why.contains("--baseline f:1") && why.contains("header"),
                "{why}"
            );
        }
    }

    #[test]
    fn rates_that_are_not_output_tokens_are_refused_by_name() {
        for rate in [
            "throughput (req/s)",
            "requests/s",
            "request_throughput",
            "req_s",
            "total_token_throughput",
            "Total Token throughput (tok/s)",
        ] {
            let text = format!("concurrency,{rate}\n1,90\n8,500\n");
            assert_eq!(both(&text), (None, None), "{text}");
            let why = sweep_from_text(&text, "f").expect_err(rate).to_string();
            let named = why.contains("--baseline f:1") && why.contains(&format!("`{rate}`"));
            assert!(named && why.contains(" counts "), "{why}");
        }
        let beside = "concurrency,throughput (req/s),tok_s\n8,1.5,500\n";
        assert_eq!(both(beside).0, Some(vec![(8.0, 500.0)]));
    }

    #[test]
    fn many_rows_are_looked_through_once_and_eight_repeats_are_told() {
        let rows: Vec<super::Row> = (0..200_000)
            .map(|n| (f64::from(n % 99_990 + 1), 500.0, n as usize + 1))
            .collect();
        let began = std::time::Instant::now();
        let notes = super::oddities(&rows, &[], true);
        // Every row against every later one took minutes.
        assert!(began.elapsed().as_secs() < 5);
        assert_eq!(notes.len(), super::MOST_NOTES);
        assert!(notes[0].contains("line 1 (500 tok/s) and again in line 99991"));
    }

    #[test]
    fn another_column_of_totals_does_not_make_speeds_of_one_user_a_total() {
        let why = |text: &str| sweep_from_text(text, "f").map_err(|why| why.to_string());
        let fall = "concurrency,tok_s,total_tokens\n1,90,1000\n8,40,8000\n";
        assert!(why(fall).is_err_and(|why| why.contains("per user")));
        let cliff = "concurrency,total_tok_s\n1,90\n8,40\n";
        assert_eq!(why(cliff), Ok(vec![(1.0, 90.0), (8.0, 40.0)]));
    }

    #[test]
    fn a_context_column_makes_a_sweep_of_each_context() {
        let text = "users,context,tok_s\n1,2k,90\n8,2k,500\n1,32k,70\n8,32k,300\n";
        let sweep = crate::bench_input::sweep_with_notes(text, "f", None).expect("a sweep");
        assert_eq!(sweep.points, [(1.0, 90.0), (8.0, 500.0)]);
        assert_eq!(sweep.at(32768.0).points, [(1.0, 70.0), (8.0, 300.0)]);
    }
}
