//! The matrices of `nvidia-smi topo -m` and `topo -p2p`.

use super::facts::Facts;
use super::text::Doc;

/// A printed `topo` matrix.
#[derive(Debug)]
struct Matrix {
    gpus: usize,
    rows: usize,
    line: usize,
    /// Cells off the diagonal.
    links: Vec<String>,
}

impl Matrix {
    /// Whether it is one of `topo -p2p`: whether peers reach each other, not how they are joined.
    fn of_states(&self) -> bool {
        const STATES: [&str; 5] = ["OK", "NS", "GNS", "CNS", "TNS"];
        self.links
            .iter()
            .any(|link| STATES.contains(&link.as_str()))
    }
}

/// `topo -m` and `topo -p2p`: a header `GPU0 GPU1 …` and a row per GPU. The last matrix
/// of each kind counts; two boxes in one text are noted.
pub(super) fn read(doc: &Doc, facts: &mut Facts) {
    let mut found: Vec<Matrix> = Vec::new();
    for (number, line) in &doc.lines {
        let words: Vec<&str> = line.split_whitespace().take(80).collect();
        if let Some(gpus) = matrix_header(&words) {
            found.retain(|matrix| matrix.rows > 0);
            found.push(Matrix {
                gpus,
                rows: 0,
                line: *number,
                links: Vec::new(),
            });
            continue;
        }
        let Some(matrix) = found.last_mut() else {
            continue;
        };
        if words
            .first()
            .is_some_and(|w| *w == format!("GPU{}", matrix.rows))
        {
            let row = words.iter().skip(1).take(matrix.gpus);
            let cells = row.filter(|w| **w != "X").map(|w| (*w).to_string());
            matrix.links.extend(cells);
            matrix.rows += 1;
        }
    }
    found.retain(|matrix| matrix.rows > 0);
    let (states, links): (Vec<Matrix>, Vec<Matrix>) =
        found.into_iter().partition(Matrix::of_states);
    let Some(shown) = links.last().or(states.last()) else {
        return;
    };
    facts.kinds.push("topo-matrix");
    facts.set("gpus", shown.gpus.max(shown.rows) as f64, shown.line);
    for kind in [&links, &states] {
        let Some(last) = kind.last() else {
            continue;
        };
        if kind.len() > 1 {
            facts.notes.push(format!(
                "{} topology matrices in one file; the facts are those of the last",
                kind.len()
            ));
        }
        if kind.iter().any(|other| other.links != last.links) {
            facts.set("different_topologies", kind.len() as f64, last.line);
        }
    }
    if let Some(last) = links.last() {
        kinds_of_links(&last.links, last.line, facts);
    }
    if let Some(last) = states.last() {
        peer_states(&last.links, last.line, facts);
        let joined = links.last().filter(|links| of_one_box(links, last));
        if let Some(groups) = joined.and_then(|joined| groups_by_nvlink(joined, last)) {
            facts.set("p2p_groups", groups, last.line);
        }
    }
}

/// Whether two whole matrices are of the same GPUs.
fn of_one_box(links: &Matrix, states: &Matrix) -> bool {
    let whole = |m: &Matrix| m.rows == m.gpus && m.links.len() == m.gpus * m.gpus.saturating_sub(1);
    whole(links) && whole(states) && links.gpus == states.gpus
}

/// The groups of GPUs that reach each other, `0,1 / 2,3`, where these are exactly those joined by NVLink
/// and there is more than one of them.
fn groups_by_nvlink(links: &Matrix, states: &Matrix) -> Option<String> {
    let both = || links.links.iter().zip(&states.links);
    if !both().all(|(link, state)| link.starts_with("NV") == (state == "OK")) {
        return None;
    }
    let gpus = links.gpus;
    // A row leaves its own GPU out.
    let reach = |from: usize, to: usize| {
        let at = from * (gpus - 1) + if to > from { to - 1 } else { to };
        states.links.get(at).is_some_and(|state| state == "OK")
    };
    let of = |gpu: usize| -> Vec<usize> {
        let peers = (0..gpus).filter(|other| *other == gpu || reach(gpu, *other));
        peers.collect()
    };
    // All of a group reach all of it: a chain of bridges is no group.
    if !(0..gpus).all(|gpu| of(gpu).iter().all(|other| of(*other) == of(gpu))) {
        return None;
    }
    let first = (0..gpus).filter(|gpu| of(*gpu).first() == Some(gpu));
    let groups = first.map(of).filter(|group| group.len() > 1);
    let named = |group: Vec<usize>| {
        let gpus: Vec<String> = group.iter().map(usize::to_string).collect();
        gpus.join(",")
    };
    let groups: Vec<String> = groups.map(named).collect();
    let parts = !groups.is_empty() && states.links.iter().any(|state| state != "OK");
    parts.then(|| groups.join(" / "))
}

/// The GPUs named in a header; a row begins with one of them only. A header may stand behind a
/// label (`topology: GPU0 GPU1`); that of a single GPU is told by what follows.
fn matrix_header(words: &[&str]) -> Option<usize> {
    let start = words.iter().position(|word| *word == "GPU0")?;
    let named = words.get(start..)?;
    let gpus = gpu_labels(named);
    let alone = named
        .get(1)
        .is_some_and(|next| *next == "CPU" || next.starts_with("NIC") || next.starts_with("mlx"));
    (gpus >= 2 || (gpus == 1 && alone)).then_some(gpus)
}

/// Whether all, some or no peers reach each other.
fn peer_states(links: &[String], line: usize, facts: &mut Facts) {
    let ok = links.iter().filter(|link| *link == "OK").count();
    let word = if ok == links.len() {
        "on"
    } else if ok == 0 {
        "off"
    } else {
        "some"
    };
    facts.set("p2p", word, line);
}

/// The farthest kind of link, and NVLink.
fn kinds_of_links(links: &[String], line: usize, facts: &mut Facts) {
    const ORDER: [&str; 5] = ["SYS", "NODE", "PHB", "PXB", "PIX"];
    let far = ORDER.iter().find(|kind| links.iter().any(|l| l == *kind));
    if let Some(kind) = far {
        facts.set("farthest_link", *kind, line);
    }
    let nvlink = links.iter().filter(|link| link.starts_with("NV")).count();
    if nvlink > 0 {
        let word = if nvlink == links.len() { "all" } else { "some" };
        facts.set("nvlink", word, line);
    }
}

/// How many of `GPU0 GPU1 …` stand in a row.
fn gpu_labels(words: &[&str]) -> usize {
    words
        .iter()
        .enumerate()
        .take_while(|(index, word)| **word == format!("GPU{index}"))
        .count()
}
