//! A plain sweep as CSV, read strictly: a row that cannot be read is named by its line.

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

/// Reads the rows; `None` where the text is no CSV at all. Columns are found by the header's
/// words, else they are the first two; further columns, quotes and `#` comments are passed over.
pub(super) fn rows(doc: &Doc, name: &str) -> Option<anyhow::Result<Vec<Row>>> {
    let lines: Vec<(usize, Vec<String>)> = doc
        .lines
        .iter()
        .map(|(number, line)| (*number, cells(line)))
        .filter(|(_, cells)| !cells.is_empty())
        .collect();
    let (_, first) = lines.first()?;
    // A line of a log or of prose has more words, and longer ones, than a header.
    let row = |cells: &[String]| {
        cells.len() <= MOST_CELLS && cells.iter().all(|cell| cell.len() <= LONGEST_CELL)
    };
    if !row(first) {
        return None;
    }
    let header = first.iter().all(|cell| cell.parse::<f64>().is_err());
    let columns = columns(first);
    let like_csv = if header {
        columns.is_some() || lines.get(1).is_some_and(|(_, row)| is_pair(row))
    } else {
        is_pair(first) || first.len() == 2
    };
    if !like_csv {
        return None;
    }
    let columns = columns.filter(|_| header).unwrap_or((0, 1));
    let data = lines.iter().skip(usize::from(header));
    Some(
        data.map(|(line, row)| one(row, *line, columns, name))
            .collect(),
    )
}

/// Cells of a line, without comment and quotes; the first separator that occurs splits it.
fn cells(line: &str) -> Vec<String> {
    let line = line.split('#').next().unwrap_or("").trim();
    if line.is_empty() {
        return Vec::new();
    }
    let separator = [';', '\t', ',', ' ']
        .into_iter()
        .find(|c| line.contains(*c))
        .unwrap_or(',');
    line.split(separator)
        .map(|cell| cell.trim().trim_matches(['"', '\'']).trim().to_string())
        .filter(|cell| separator != ' ' || !cell.is_empty())
        .collect()
}

fn is_pair(row: &[String]) -> bool {
    row.len() >= 2 && row.iter().take(2).all(|cell| cell.parse::<f64>().is_ok())
}

/// Where a header puts users and tokens a second.
fn columns(header: &[String]) -> Option<(usize, usize)> {
    let find = |words: &[&str]| {
        header.iter().position(|cell| {
            let cell = cell.to_ascii_lowercase();
            words.iter().any(|word| cell.contains(word))
        })
    };
    let users = find(&["concurren", "users", "batch", "requests"])?;
    let tok_s = find(&["tok", "throughput", "rate"])?;
    (users != tok_s).then_some((users, tok_s))
}

fn one(row: &[String], line: usize, columns: (usize, usize), name: &str) -> anyhow::Result<Row> {
    let wrong = |what: String| {
        input::error(format!(
            "--baseline {name}:{line}: {what}; give users,tok_s such as 8,500 (tokens a second over \
             all users)"
        ))
    };
    let figure = |at: usize, what: &str, least: f64, most: f64| {
        let cell = row.get(at).map_or("", String::as_str);
        let value: f64 = cell.parse().map_err(|_| {
            let point = cell.replace(',', ".");
            let comma = point != cell && point.parse::<f64>().is_ok();
            let why = if comma {
                format!(": a decimal comma; write {point}")
            } else {
                String::new()
            };
            wrong(format!("{what} `{cell}` is not a number{why}"))
        })?;
        if value.is_finite() && value >= least && value <= most {
            Ok(value)
        } else {
            Err(wrong(format!(
                "{what} {cell} is not between {least} and {most}"
            )))
        }
    };
    let users = figure(columns.0, "concurrency", 1.0, MAX_CONCURRENCY)?;
    let tok_s = figure(columns.1, "throughput", 1e-3, MAX_TOK_S)?;
    Ok((users, tok_s, line))
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

/// Whether the header says that the throughput is of all users together.
pub(super) fn says_sum(doc: &Doc) -> bool {
    let first = doc.lines.first().map_or("", |(_, line)| line);
    let header = first.to_ascii_lowercase().replace('_', " ");
    let sum = ["aggregate", "total tok", "all users"];
    sum.iter().any(|word| header.contains(word)) && !header.contains("per user")
}

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

/// What looks odd in a sweep, for the user to judge: repeats, and a throughput that falls. Where the
/// file says that it is of all users together, the fall is the server's.
pub(super) fn oddities(rows: &[Row], sweep: &[(f64, f64)], summed: bool) -> Vec<String> {
    let mut notes = Vec::new();
    for (index, (users, tok_s, line)) in rows.iter().enumerate() {
        let again = rows.iter().skip(index + 1).find(|later| later.0 == *users);
        if let Some(later) = again {
            notes.push(format!(
                "{users} users stand in line {line} ({tok_s} tok/s) and again in line {} ({} tok/s): the \
                 last is taken",
                later.2, later.1
            ));
        }
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
    notes.truncate(8);
    notes
}
