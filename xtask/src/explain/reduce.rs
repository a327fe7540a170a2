//! What a start line says of the all-reduce: variables before it, flags behind it.

use super::facts::Facts;
use super::scenario::LogScenario;
use super::text::{Doc, custom_all_reduce_off};

/// Why the engine's own all-reduce does not run on a box where the engine's rules do not say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Off {
    /// The cards do not read each other's memory, or a test of that failed.
    NoPeers,
    /// NCCL alone is listed, or the build lacks the kernel.
    Unsaid,
}

/// Why the engine left its own all-reduce off, and the line. What it does by its rules (for so many cards,
/// over PCIe, over hosts) it does by itself wherever these hold, and what it was told is a switch.
fn off(facts: &Facts) -> Option<(Off, usize)> {
    let line = facts.get("custom_all_reduce_disabled")?.line;
    let why = facts.text("custom_all_reduce_disabled")?;
    let by_rule = ["world size", "PCIe-only", "spans across nodes"];
    if why == "true" || by_rule.iter().any(|rule| why.contains(rule)) {
        return None;
    }
    let off = match why.contains("P2P") {
        true => Off::NoPeers,
        false => Off::Unsaid,
    };
    Some((off, line))
}

/// How a server is started.
const STARTS: [&str; 4] = [
    "sglang.launch_server",
    "sglang serve ",
    "vllm serve ",
    "vllm.entrypoints.openai.api_server",
];
/// Bytes looked at before and behind.
const BEFORE: usize = 600;
const BEHIND: usize = 4000;
/// Words in a row that are no flags, after which a line is over: values may have blanks.
const VALUES: u32 = 8;

/// Up to where start lines are read: one below what a server printed was not its own. `arguments` and
/// `first`: where the printed arguments begin, and all that is printed. Without arguments a start line
/// below counts where none stands above.
pub(super) fn own_until(doc: &Doc, arguments: Option<usize>, first: Option<usize>) -> usize {
    let whole = doc.flat.len();
    let above = |end: usize| {
        STARTS
            .iter()
            .any(|start| doc.flat.get(..end).is_some_and(|t| t.contains(start)))
    };
    arguments.unwrap_or_else(|| first.filter(|end| above(*end)).unwrap_or(whole))
}

/// Printed arguments without a start line behind them.
pub(super) fn before_a_start(text: &str) -> &str {
    let ends = STARTS.iter().filter_map(|start| text.find(start));
    ends.min().and_then(|end| text.get(..end)).unwrap_or(text)
}

/// The words that choose an all-reduce, of the last start line before `end` that has any.
pub(super) fn told(doc: &Doc, end: usize, facts: &mut Facts) {
    for start in STARTS {
        for at in doc.after_all(start).filter(|at| *at <= end) {
            let mut words = before(&doc.flat, at.saturating_sub(start.len()));
            words.extend(behind(doc.window(at, BEHIND)));
            if !words.is_empty() {
                facts.set("all_reduce_switches", words.join(" "), doc.line_at(at));
            }
        }
    }
}

/// Variables, `NAME=value`, from the word before the offset back to one that is none.
fn before(text: &str, end: usize) -> Vec<String> {
    let from = (end.saturating_sub(BEFORE)..=end).find(|at| text.is_char_boundary(*at));
    let text = from.and_then(|from| text.get(from..end)).unwrap_or("");
    let beside = ["python", "python3", "-m", "export", "env", "-e", "\\", "$"];
    let variable = |word: &str| {
        let name = word.split('=').next().unwrap_or("");
        let capital = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        name.len() < word.len() && name.chars().all(capital)
    };
    text.split(' ')
        .rev()
        .filter(|word| !word.is_empty())
        .take_while(|word| variable(word) || beside.contains(word))
        .filter(|word| word.contains("ALLREDUCE"))
        .map(str::to_string)
        .collect()
}

/// Flags of an all-reduce, each with its value behind `=`.
fn behind(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut values = 0;
    let mut words = text.split(' ').filter(|word| !word.is_empty()).peekable();
    while let Some(word) = words.next() {
        values = match word.starts_with('-') || word == "\\" {
            true => 0,
            false => values + 1,
        };
        if values > VALUES {
            break;
        }
        let named = word.contains("all-reduce") || word.contains("allreduce");
        if !named || !word.starts_with("--") {
            continue;
        }
        let value = words.peek().filter(|next| !next.starts_with('-'));
        found.push(match value.filter(|_| word.ends_with("-backend")) {
            Some(value) => format!("{word}={value}"),
            None => word.to_string(),
        });
    }
    found
}

/// Which all-reduce vLLM says that it chose.
pub(super) fn of_vllm(doc: &Doc, facts: &mut Facts) {
    if let Some(at) = custom_all_reduce_off(doc) {
        let why = doc.window(at, 160).split('.').next().unwrap_or("").trim();
        facts.set("custom_all_reduce_disabled", why, doc.line_at(at));
    }
    // `Using ['CUSTOM', 'PYNCCL'] all-reduce backends (in dispatch order) for group 'tp:0'`.
    let listed = doc.after_all("Using [").find_map(|at| {
        let (list, rest) = doc.window(at, 200).split_once(']')?;
        let of_ranks = rest.contains("all-reduce backends") && rest.contains("for group 'tp");
        of_ranks.then(|| (list, doc.line_at(at)))
    });
    match listed {
        Some((list, line)) if list.contains("CUSTOM") => facts.set("custom_all_reduce", "on", line),
        Some(("'PYNCCL'", line)) => {
            facts.set_if_absent("custom_all_reduce_disabled", "NCCL alone is listed", line);
        }
        _ => {}
    }
    if let Some(at) = doc.after_all("PCIe custom allreduce enabled via").next() {
        facts.set("custom_all_reduce", "pcie", doc.line_at(at));
        // What is larger goes by NCCL, unless it is of few rows (tokens of a pass): `should_custom_ar`
        // of the builds that print this.
        let said = |mark: &str| {
            let at = doc.after_all(mark).next()?;
            let (number, _) = super::text::leading_number(doc.window(at, 20))?;
            Some((number, doc.line_at(at)))
        };
        if let Some((bytes, line)) = said("allreduce cutoff (cutoff=") {
            facts.set("custom_all_reduce_max_bytes", bytes, line);
            if let Some((rows, line)) = said("ignore_cutoff_max_rows=") {
                facts.set("custom_all_reduce_max_rows", rows, line);
            }
        }
    }
    if let Some(at) = doc.after_all("vLLM is using nccl==").next() {
        let word = doc.window(at, 20).split(' ').next().unwrap_or("");
        facts.set("nccl_version", word, doc.line_at(at));
    }
}

/// What a log says of the all-reduce of its server, and nothing else.
pub(super) fn said(facts: &Facts) -> LogScenario {
    LogScenario {
        pcie_all_reduce: pcie_all_reduce(facts),
        all_reduce_switches: all_reduce_switches(facts),
        no_custom_all_reduce: facts.get("custom_all_reduce_disabled").is_some(),
        custom_all_reduce: custom_all_reduce(facts),
        custom_all_reduce_off: off(facts),
        no_flashinfer: no_flashinfer(facts),
        nccl: super::nccl::said(facts),
        ..LogScenario::default()
    }
}

/// vLLM's own all-reduce over PCIe: the largest payload and the rows that may be larger, and the line.
fn pcie_all_reduce(facts: &Facts) -> Option<(Option<(f64, f64)>, usize)> {
    let forced = facts.text("custom_all_reduce")? == "pcie";
    let line = facts.get("custom_all_reduce").filter(|_| forced)?.line;
    let rows = facts.number("custom_all_reduce_max_rows").unwrap_or(0.0);
    let bytes = facts.number("custom_all_reduce_max_bytes");
    Some((bytes.map(|bytes| (bytes, rows)), line))
}

/// What the server's all-reduce was chosen by, from its start line and its printed arguments.
fn all_reduce_switches(facts: &Facts) -> Option<(Vec<String>, usize)> {
    let words = facts.text("all_reduce_switches").unwrap_or("");
    let mut switches: Vec<String> = words.split_whitespace().map(str::to_string).collect();
    let printed = facts.text("custom_all_reduce_disabled") == Some("true");
    if printed && !switches.iter().any(|word| word == NO_CUSTOM) {
        switches.push(NO_CUSTOM.to_string());
    }
    let fact = facts
        .get("all_reduce_switches")
        .or_else(|| facts.get("custom_all_reduce_disabled").filter(|_| printed))?;
    Some((switches, fact.line))
}

/// The flag of SGLang and vLLM that leaves every size to NCCL.
pub(crate) const NO_CUSTOM: &str = "--disable-custom-all-reduce";

/// Where the server says that the engine's own all-reduce runs there.
fn custom_all_reduce(facts: &Facts) -> Option<usize> {
    let on = facts.get("custom_all_reduce")?;
    let off = facts.get("custom_all_reduce_disabled");
    off.is_none().then_some(on.line)
}

/// Where SGLang says that FlashInfer's all-reduce is not there.
fn no_flashinfer(facts: &Facts) -> Option<usize> {
    let of_sglang = facts.text("engine") == Some("sglang");
    let fact = facts.get("no_flashinfer_comm").filter(|_| of_sglang);
    fact.map(|fact| fact.line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_stand_before_a_start_line_and_flags_behind() {
        let line = "$ OMP_NUM_THREADS=1 VLLM_ALLREDUCE_USE_FLASHINFER=1 vllm serve m --tp 4 ";
        let at = line.find("vllm serve").expect("there");
        assert_eq!(before(line, at), ["VLLM_ALLREDUCE_USE_FLASHINFER=1"]);
        let flags =
            behind("--tp 4 --disable-custom-all-reduce --flashinfer-allreduce-fusion-backend auto");
        assert_eq!(
            flags,
            [
                "--disable-custom-all-reduce",
                "--flashinfer-allreduce-fusion-backend=auto"
            ]
        );
        // A warning far behind names a flag that nobody gave.
        let warned = "--tp 4 Setup failed in a way that nobody had foreseen; to silence this specify \
                      --disable-custom-all-reduce explicitly";
        assert!(behind(warned).is_empty());
        assert!(before("é", 1).is_empty());
    }
}
