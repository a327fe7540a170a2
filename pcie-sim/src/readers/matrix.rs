//! Finds the matrices of `nvidia-smi topo -m` and `topo -p2p` inside any text.
//!
//! Cells are read by order, not by column position: pastes lose tabs, columns get renamed or cut,
//! rows wrap. The diagonal `X` proves that the order is right.

use super::ReadError;
use crate::box_spec::GPUS_READ_MAX;

/// One cell: what joins two GPUs, or what the driver says of peer access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    Itself,
    Nv(u32),
    Pix,
    Pxb,
    Phb,
    Node,
    Sys,
    P2pOk,
    P2pNo(&'static str),
    /// Not in the text.
    Missing,
}

impl Cell {
    fn is_p2p(self) -> bool {
        matches!(self, Cell::P2pOk | Cell::P2pNo(_))
    }

    fn is_topology(self) -> bool {
        !self.is_p2p() && !matches!(self, Cell::Itself | Cell::Missing)
    }
}

/// One matrix of a text.
#[derive(Debug, Clone)]
pub(super) struct Matrix {
    /// Line of the header, from 1.
    pub(super) line: usize,
    /// Whether it shows peer access rather than wiring.
    pub(super) p2p: bool,
    /// Letter of `topo -p2p LETTER` where the command stands above.
    pub(super) letter: Option<char>,
    /// Cells by row and column, symmetric and complete.
    pub(super) cells: Vec<Vec<Cell>>,
    /// NUMA node of each GPU, where printed.
    pub(super) numa: Vec<Option<u32>>,
    /// CPU affinity of each GPU, where printed.
    pub(super) affinity: Vec<Option<String>>,
}

impl Matrix {
    pub(super) fn gpus(&self) -> usize {
        self.cells.len()
    }

    pub(super) fn cell(&self, a: usize, b: usize) -> Cell {
        self.cells
            .get(a)
            .and_then(|row| row.get(b))
            .copied()
            .unwrap_or(Cell::Missing)
    }
}

/// A header and the rows read under it so far.
struct Draft {
    line: usize,
    letter: Option<char>,
    columns: Vec<String>,
    rows: Vec<Row>,
}

struct Row {
    line: usize,
    label: String,
    cells: Vec<Cell>,
    rest: Vec<String>,
}

/// Whether a text has a header with rows under it.
pub(super) fn looks_like(lines: &[String]) -> bool {
    !drafts(lines).is_empty()
}

/// All matrices of a text in order; an error names the line that cannot be right.
pub(super) fn find(lines: &[String]) -> Result<Vec<Matrix>, ReadError> {
    drafts(lines).iter().map(complete).collect()
}

fn tokens(line: &str) -> Vec<&str> {
    line.split(|c: char| c.is_whitespace() || c == '|')
        .filter(|t| !t.is_empty())
        .collect()
}

fn is_gpu(token: &str) -> bool {
    token
        .strip_prefix("GPU")
        .is_some_and(|n| !n.is_empty() && n.len() <= 4 && n.bytes().all(|b| b.is_ascii_digit()))
}

/// A column name: a GPU, or a network card (NIC0, mlx5_0, bnxt_re1, …).
fn is_column(token: &str) -> bool {
    is_gpu(token)
        || (token.len() <= 24
            && token.starts_with(|c: char| c.is_ascii_alphabetic())
            && token.ends_with(|c: char| c.is_ascii_digit())
            && !token.starts_with("NV")
            && token
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_'))
}

fn cell(token: &str) -> Option<Cell> {
    Some(match token {
        "X" => Cell::Itself,
        "PIX" => Cell::Pix,
        "PXB" => Cell::Pxb,
        "PHB" => Cell::Phb,
        "NODE" => Cell::Node,
        "SYS" | "SOC" => Cell::Sys,
        "OK" => Cell::P2pOk,
        "CNS" => Cell::P2pNo("CNS: chipset not supported"),
        "GNS" => Cell::P2pNo("GNS: GPU not supported"),
        "TNS" => Cell::P2pNo("TNS: topology not supported"),
        "NS" => Cell::P2pNo("NS: not supported"),
        "DR" => Cell::P2pNo("DR: disabled by registry key"),
        "U" => Cell::P2pNo("U: unknown"),
        _ => Cell::Nv(
            token
                .strip_prefix("NV")?
                .parse()
                .ok()
                .filter(|n| (1..=72).contains(n))?,
        ),
    })
}

/// Most columns kept of a header: above any server, so that junk stays cheap.
const COLUMNS_MAX: usize = 1024;

/// Columns of a header line: from the first GPU name on; None where it is no header.
fn header(tokens: &[&str]) -> Option<Vec<String>> {
    let first = tokens.iter().position(|t| is_gpu(t))?;
    let tail = tokens.get(first..)?;
    if tail.get(1).is_some_and(|t| cell(t).is_some()) {
        return None;
    }
    let end = tail
        .iter()
        .position(|t| matches!(*t, "CPU" | "NUMA" | "GPU"))
        .unwrap_or(tail.len());
    let columns = tail.get(..end.min(COLUMNS_MAX))?;
    columns
        .iter()
        .all(|t| is_column(t))
        .then(|| columns.iter().map(|t| t.to_string()).collect())
}

fn is_affinity(token: &str) -> bool {
    token == "N/A"
        || (token.starts_with(|c: char| c.is_ascii_digit())
            && token
                .bytes()
                .all(|b| b.is_ascii_digit() || b == b'-' || b == b','))
}

fn drafts(lines: &[String]) -> Vec<Draft> {
    let mut done: Vec<Draft> = Vec::new();
    let mut open: Option<Draft> = None;
    let mut letter = None;
    for (index, line) in lines.iter().enumerate() {
        letter = p2p_letter(line).or(letter);
        let words = tokens(line);
        if words.first().is_some_and(|w| w.starts_with("Legend")) {
            done.extend(open.take().filter(|d| !d.rows.is_empty()));
            letter = None;
            continue;
        }
        if let Some(draft) = &mut open
            && draft.take(index + 1, &words)
        {
            continue;
        }
        if let Some(columns) = header(&words) {
            done.extend(open.take().filter(|d| !d.rows.is_empty()));
            open = Some(Draft {
                line: index + 1,
                letter,
                columns,
                rows: Vec::new(),
            });
        }
    }
    done.extend(open.filter(|d| !d.rows.is_empty()));
    done
}

/// The letter of `topo -p2p X` in a line, the last one where several stand.
fn p2p_letter(line: &str) -> Option<char> {
    let rest = line
        .rsplit("-p2p ")
        .next()
        .filter(|r| r.len() < line.len())?;
    rest.trim_start()
        .chars()
        .next()
        .filter(|c| matches!(c, 'r' | 'w' | 'n' | 'a' | 'p'))
}

impl Draft {
    /// Takes a line as a row, or as the wrapped end of the header or of the last row.
    fn take(&mut self, line: usize, words: &[&str]) -> bool {
        let Some(first) = words.first() else {
            return false;
        };
        let second_is_cell = words.get(1).is_some_and(|t| cell(t).is_some());
        if second_is_cell && self.columns.iter().any(|c| c == first) {
            let mut row = Row {
                line,
                label: first.to_string(),
                cells: Vec::new(),
                rest: Vec::new(),
            };
            row.extend(words.get(1..).unwrap_or_default(), self.columns.len());
            self.rows.push(row);
            return true;
        }
        if self.rows.is_empty() {
            let wrapped = words
                .iter()
                .all(|t| is_column(t) || matches!(*t, "CPU" | "NUMA" | "GPU" | "Affinity" | "ID"));
            let more: Vec<String> = words
                .iter()
                .filter(|t| is_column(t))
                .map(|t| t.to_string())
                .collect();
            // The same header once more is a new one, not a wrapped end.
            if more.len() > COLUMNS_MAX {
                return false;
            }
            let known = more.iter().any(|c| self.columns.contains(c));
            if wrapped
                && !known
                && !more.is_empty()
                && self.columns.len() + more.len() <= COLUMNS_MAX
            {
                self.columns.extend(more);
                return true;
            }
            return false;
        }
        let columns = self.columns.len();
        match self.rows.last_mut() {
            Some(row) if row.cells.len() < columns && cell(first).is_some() => {
                row.extend(words, columns)
            }
            Some(row)
                if row.cells.len() == columns && row.rest.is_empty() && is_affinity(first) =>
            {
                row.extend(words, columns);
            }
            _ => return false,
        }
        true
    }
}

impl Row {
    fn extend(&mut self, words: &[&str], columns: usize) {
        for word in words {
            match cell(word) {
                Some(c) if self.cells.len() < columns && self.rest.is_empty() => self.cells.push(c),
                _ => self.rest.push(word.to_string()),
            }
        }
    }
}

/// What to do about a matrix that cannot be right.
const WHOLE: &str = "paste the whole output of nvidia-smi again";

/// A GPU column: its place among all columns, and its name.
type Column<'a> = (usize, &'a String);

fn gpu_columns(draft: &Draft) -> Result<Vec<Column<'_>>, ReadError> {
    let gpus: Vec<Column> = draft
        .columns
        .iter()
        .enumerate()
        .filter(|(_, c)| is_gpu(c))
        .collect();
    let fail = |what: String, mend: &str| Err(ReadError::new(Some(draft.line), what, mend));
    if gpus.len() > GPUS_READ_MAX {
        let mend = format!("one server is read, up to {GPUS_READ_MAX} GPUs");
        return fail(format!("a matrix of {} GPUs", gpus.len()), &mend);
    }
    for (i, (_, name)) in gpus.iter().enumerate() {
        if gpus.iter().skip(i + 1).any(|(_, other)| other == name) {
            return fail(format!("two columns are called {name}"), WHOLE);
        }
    }
    Ok(gpus)
}

fn complete(draft: &Draft) -> Result<Matrix, ReadError> {
    let gpus = gpu_columns(draft)?;
    let n = gpus.len();
    let mut matrix = Matrix {
        line: draft.line,
        p2p: false,
        letter: draft.letter,
        cells: vec![vec![Cell::Missing; n]; n],
        numa: vec![None; n],
        affinity: vec![None; n],
    };
    let mut seen = vec![false; n];
    for row in &draft.rows {
        let Some(i) = gpus.iter().position(|(_, name)| **name == row.label) else {
            continue;
        };
        let fail = |what: String| Err(ReadError::new(Some(row.line), what, WHOLE));
        if std::mem::replace(&mut seen[i], true) {
            return fail(format!("a second row {}", row.label));
        }
        // A cell that is none of the codes stops the row short of its columns.
        if let (true, Some(odd)) = (row.cells.len() < draft.columns.len(), row.rest.first()) {
            return fail(format!("'{odd}' in row {} is no topology code", row.label));
        }
        matrix.take(i, row, &gpus)?;
    }
    let fail = |what: String| Err(ReadError::new(Some(draft.line), what, WHOLE));
    for (i, row) in matrix.cells.iter().enumerate() {
        if let Some(j) = (0..n).find(|j| *j != i && row.get(*j) == Some(&Cell::Missing)) {
            let name = |k: usize| gpus.get(k).map_or("?", |(_, name)| name.as_str());
            return fail(format!(
                "nothing says how {} and {} are joined",
                name(i),
                name(j)
            ));
        }
    }
    matrix.p2p = matrix.cells.iter().flatten().any(|c| c.is_p2p());
    if matrix.p2p && matrix.cells.iter().flatten().any(|c| c.is_topology()) {
        return fail("wiring and peer access codes in one matrix".to_string());
    }
    Ok(matrix)
}

impl Matrix {
    /// Takes the row of GPU `i`, checked against the diagonal and against the rows before it.
    fn take(&mut self, i: usize, row: &Row, gpus: &[Column]) -> Result<(), ReadError> {
        let fail = |what: String| Err(ReadError::new(Some(row.line), what, WHOLE));
        for (j, (column, name)) in gpus.iter().enumerate() {
            let value = row.cells.get(*column).copied().unwrap_or(Cell::Missing);
            if value == Cell::Missing {
                continue;
            }
            if (value == Cell::Itself) != (i == j) {
                return fail(format!(
                    "row {} and column {name} do not fit: columns are shifted",
                    row.label
                ));
            }
            let other = self.cell(j, i);
            if other != Cell::Missing && other != value {
                return fail(format!("{} to {name} and back differ", row.label));
            }
            self.cells[i][j] = value;
            self.cells[j][i] = value;
        }
        self.affinity[i] = row
            .rest
            .first()
            .filter(|t| is_affinity(t) && *t != "N/A")
            .cloned();
        self.numa[i] = row
            .rest
            .get(1)
            .and_then(|t| t.parse().ok())
            .filter(|v| *v < 1024);
        Ok(())
    }
}
