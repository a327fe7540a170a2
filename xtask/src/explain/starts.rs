//! Start lines of servers in a text, as notes of several runs have them: which flag is whose.

use super::args::{flag, flag_number};
use super::facts::{EAGER, Facts};
use super::text::Doc;

/// Words that a start line holds.
const PROGRAMS: [&str; 5] = [
    "sglang serve",
    "sglang.launch_server",
    "sglang_router.launch_server",
    "vllm serve",
    "vllm.entrypoints.openai.api_server",
];

/// Words that make a start line one of a server that drafts, as `--speculative-config` and its like.
const DRAFTS: [&str; 2] = ["--speculative", "--spec-"];

const RANKS: [&str; 5] = [
    "--tp",
    "--tp-size",
    "--tensor-parallel-size",
    "-tp",
    "--tensor-parallel",
];
const EXPERT_RANKS: [&str; 3] = ["--ep-size", "--expert-parallel-size", "--ep"];
const DATA_RANKS: [&str; 4] = ["--data-parallel-size", "--dp-size", "--dp", "-dp"];
const EAGER_FLAGS: [&str; 3] = [
    "--enforce-eager",
    "--disable-cuda-graph",
    "--disable-decode-cuda-graph",
];
const DATA_ATTENTION: &str = "--enable-dp-attention";

/// One start line, its continuations joined.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) line: usize,
    text: String,
}

impl Start {
    fn number(&self, names: &[&str]) -> Option<u32> {
        let found = names.iter().find_map(|name| flag_number(&self.text, name));
        found
            .map(|(number, _)| number)
            .filter(|number| (1.0..=65_536.0).contains(number))
            .map(|number| number as u32)
    }

    fn drafts(&self) -> bool {
        DRAFTS.iter().any(|word| self.text.contains(word))
    }

    pub(crate) fn tp(&self) -> Option<u32> {
        self.number(&RANKS)
    }

    /// Ranks that whole experts are spread over.
    pub(super) fn expert_ranks(&self) -> Option<u32> {
        self.number(&EXPERT_RANKS)
    }

    fn data_ranks(&self) -> Option<u32> {
        self.number(&DATA_RANKS).filter(|ranks| *ranks > 1)
    }

    fn data_attention(&self) -> bool {
        self.text.contains(DATA_ATTENTION)
    }

    /// Whether it is to capture no CUDA graphs.
    pub(crate) fn eager(&self) -> bool {
        let mut words = self.text.split_whitespace();
        words.any(|word| EAGER_FLAGS.contains(&word)) || super::vllm::no_graphs(&self.text)
    }

    /// The KV format that it is told; none where it is left to choose.
    pub(crate) fn kv_dtype(&self) -> Option<&str> {
        let said = flag(&self.text, "--kv-cache-dtype").map(|(dtype, _)| dtype);
        said.filter(|dtype| *dtype != "auto")
    }

    /// What spreads its requests over ranks, in words.
    pub(crate) fn data_parallel(&self) -> Option<String> {
        data_parallel(self.data_ranks(), self.data_attention())
    }
}

/// What spreads requests over ranks, in words.
fn data_parallel(ranks: Option<u32>, attention: bool) -> Option<String> {
    match (ranks.filter(|ranks| *ranks > 1), attention) {
        (None, false) => None,
        (None, true) => Some("data-parallel attention".to_string()),
        (Some(ranks), true) => Some(format!("data-parallel attention over {ranks} ranks")),
        (Some(ranks), false) => Some(format!("{ranks} data-parallel ranks")),
    }
}

/// The same of the server that facts are of.
pub(super) fn of_facts(facts: &Facts) -> Option<(String, usize)> {
    let ranks = facts.number("dp").filter(|n| (2.0..=65_536.0).contains(n));
    let attention = facts.get("dp_attention");
    let said = data_parallel(ranks.map(|n| n as u32), attention.is_some())?;
    let line = attention.or_else(|| facts.get("dp")).map_or(0, |f| f.line);
    Some((said, line))
}

/// All of a text. A program's name in prose has no flags behind it.
fn all(doc: &Doc) -> Vec<Start> {
    let mut found = Vec::new();
    let mut lines = doc.lines.iter();
    while let Some((line, text)) = lines.next() {
        if !PROGRAMS.iter().any(|program| text.contains(program)) {
            continue;
        }
        let mut whole = text.trim_end().to_string();
        while whole.ends_with('\\') {
            whole.pop();
            let Some((_, more)) = lines.next() else { break };
            whole.push(' ');
            whole.push_str(more.trim());
        }
        if whole.contains(" --") {
            found.push(Start {
                line: *line,
                text: whole,
            });
        }
    }
    found
}

/// The start line of the one server in a text that does not draft.
pub(crate) fn plain(doc: &Doc) -> Option<Start> {
    let mut plain = all(doc).into_iter().filter(|start| !start.drafts());
    let first = plain.next()?;
    plain.next().is_none().then_some(first)
}

/// The start line of the server that drafts, where another in the text does not: draft, depth and accept
/// length are of it.
pub(super) fn drafting_of_two(doc: &Doc) -> Option<Start> {
    let (drafting, plain): (Vec<_>, Vec<_>) = all(doc).into_iter().partition(Start::drafts);
    let first = drafting.into_iter().next();
    first.filter(|_| !plain.is_empty())
}

/// What a server's start line before `end` says of data parallelism; and how two servers of one text differ.
pub(super) fn read(doc: &Doc, end: usize, facts: &mut Facts) {
    let last = doc.line_at(end);
    let mut starts = all(doc);
    starts.retain(|start| start.line <= last);
    let drafting = starts.iter().find(|start| start.drafts());
    let plain = starts.iter().find(|start| !start.drafts());
    let Some(own) = drafting.or(plain) else {
        return;
    };
    if let Some(ranks) = own.data_ranks() {
        facts.set_if_absent("dp", f64::from(ranks), own.line);
    }
    if own.data_attention() {
        facts.set_if_absent("dp_attention", "true", own.line);
    }
    if own.eager() {
        facts.set_if_absent(EAGER, "true", own.line);
    }
    let other = drafting.and(plain);
    let differs = other.map(|other| differences(own, other));
    if let Some((other, differs)) = other.zip(differs.filter(|found| !found.is_empty())) {
        facts.notes.push(format!(
            "two servers in the file: that which drafts (line {}) and a plain one (line {}) differ in {} too; the \
             server's facts are of the former",
            own.line,
            other.line,
            differs.join(", ")
        ));
    }
}

/// In what two servers differ, their drafts aside.
fn differences(own: &Start, other: &Start) -> Vec<String> {
    let number = |name: &str, a: Option<u32>, b: Option<u32>| {
        let said = |n: Option<u32>| n.map_or("none".to_string(), |n| n.to_string());
        (a.unwrap_or(1) != b.unwrap_or(1)).then(|| format!("{name} ({}, {})", said(a), said(b)))
    };
    let data = (own.data_parallel(), other.data_parallel());
    let said = |words: Option<String>| words.unwrap_or("none".to_string());
    let data = (data.0 != data.1)
        .then(|| format!("data parallelism ({}, {})", said(data.0), said(data.1)));
    let cut = number("tp", own.tp(), other.tp());
    let experts = number("expert ranks", own.expert_ranks(), other.expert_ranks());
    let graphs = (own.eager() != other.eager()).then(|| "CUDA graphs".to_string());
    [cut, experts, data, graphs].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "with MTP:\n\nsglang serve \\\n  --model-path a/b \\\n  --tp 8 \\\n  \
        --speculative-algorithm EAGLE\n\nplain:\n\nsglang serve --model-path a/b --tp 8 --ep 4 --dp 8 \
        --enable-dp-attention\n";

    #[test]
    fn each_flag_is_of_the_server_whose_start_line_it_stands_in() {
        let doc = Doc::new(TWO);
        let drafting = drafting_of_two(&doc).expect("one drafts");
        assert_eq!((drafting.line, drafting.tp()), (3, Some(8)));
        assert_eq!(
            (drafting.expert_ranks(), drafting.data_parallel()),
            (None, None)
        );
        let plain = plain(&doc).expect("one does not");
        assert_eq!((plain.line, plain.expert_ranks()), (10, Some(4)));
        let data = plain.data_parallel().expect("told");
        assert_eq!(data, "data-parallel attention over 8 ranks");
    }

    #[test]
    fn a_programs_name_in_prose_is_no_start_line() {
        let doc = Doc::new("we use sglang serve for it, and vllm serve too\n");
        assert!(all(&doc).is_empty());
        let vllm = Doc::new("vllm serve a/b -dp 4 --max-num-seqs 8\n");
        let start = plain(&vllm).expect("one");
        assert_eq!(
            start.data_parallel().as_deref(),
            Some("4 data-parallel ranks")
        );
    }
}
