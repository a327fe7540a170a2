//! The command that goes on from what the files say, and what the reader has to put in.

mod accept;
mod baseline;
mod format;
mod machine;
mod served;

use super::drafting;
use super::facts::Facts;
use super::scenario::{LogScenario, scenario_from_facts};
use crate::predict::text::shell_word as word;
use crate::scenario::{merge, suffix};
use accept::accept;
use baseline::{Baseline, baseline};
use served::{memory, served, version};

/// A command to run next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Next {
    /// The command; words in capitals are for the reader to fill in.
    pub(crate) command: String,
    /// What to put for each of these words.
    pub(crate) fill_in: Vec<String>,
    /// What the command leaves out, and why.
    pub(crate) left_out: Vec<String>,
    /// What it takes for granted that the files do not say.
    pub(crate) provided: Vec<String>,
}

/// Words and their flags.
#[derive(Default)]
struct Words {
    words: Vec<String>,
    fill_in: Vec<String>,
    left_out: Vec<String>,
    provided: Vec<String>,
}

impl Words {
    fn push(&mut self, flag: &str, value: Option<String>) {
        if let Some(value) = value {
            self.words.push(format!("{flag} {}", word(&value)));
        }
    }

    fn next(self) -> Next {
        Next {
            command: self.words.join(" "),
            fill_in: self.fill_in,
            left_out: self.left_out,
            provided: self.provided,
        }
    }

    /// A flag that takes one of the files; what was piped in has no name to give.
    fn file(&mut self, flag: &str, facts: &Facts) {
        if facts.file == super::STANDARD_INPUT {
            self.gap(flag, "FILE", PIPED.to_string());
        } else {
            self.push(flag, Some(facts.file.clone()));
        }
    }

    /// The wiring, with the peer access that another of the files shows.
    fn topology(&mut self, files: &[Facts]) {
        let Some(wiring) = wiring(files) else {
            return;
        };
        let peers = files.iter().find(|facts| {
            facts.file != wiring.file && states_alone(facts) && wiring.get("p2p").is_none()
        });
        let Some(peers) = peers else {
            self.file("--topology", wiring);
            return;
        };
        self.gap(
            "--topology",
            "WIRING",
            format!(
                "both in one file for WIRING: cat {} {} > WIRING",
                word(&wiring.file),
                word(&peers.file)
            ),
        );
    }

    /// A word that the reader replaces.
    fn gap(&mut self, flag: &str, word: &str, what: String) {
        self.words.push(format!("{flag} {word}"));
        self.fill_in.push(what);
    }
}

/// The `predict` command that goes on from what the files say, the `simulate` command of a
/// topology alone; `None` where they name neither a model nor a speed nor settings.
pub(crate) fn command_line(files: &[Facts]) -> Option<Next> {
    let log = drafting::leading(files);
    let bench = files
        .iter()
        .find(|facts| facts.get("bench_points").is_some());
    let denoises = files.iter().any(|facts| facts.denoises().is_some());
    if (log.is_none() && bench.is_none()) || denoises {
        return simulate_line(files);
    }
    let log_or_bench = log.or(bench);
    let mut said = log_or_bench.map(scenario_from_facts).unwrap_or_default();
    // What `--from-log` takes from a file by itself needs no flag; what was piped in has none.
    let own = log
        .filter(|log| log.file != super::STANDARD_INPUT && one_model(&said))
        .map(|_| said.clone());
    let pooled = accept::benches(files).unwrap_or_default();
    let contradicting = drafting::complete(&mut said, log_or_bench, files, &pooled);
    let named = said.model.clone().map(|(path, _)| path);
    let named = named.or_else(|| bench?.text("model").map(str::to_string));
    let known = named
        .as_deref()
        .map(model_name)
        .filter(|name| kvplan::catalog::find(name).is_ok());
    let mut line = Words {
        words: vec!["cargo xtask predict".to_string()],
        left_out: contradicting,
        ..Words::default()
    };
    line.push("--from-log", own.as_ref().map(|own| own.file.clone()));
    // Found by its repository's name there, else it must be named beside the log.
    let by_log = own.as_ref().and_then(|own| own.model.as_ref());
    if by_log.is_none_or(|(path, _)| kvplan::catalog::find(path).is_err()) {
        model(&mut line, named.as_deref(), known.clone(), log);
        let nameless = log.filter(|_| own.is_some() && named.is_none());
        format::ask(&mut line, &said, nameless);
    }
    if own.is_none() {
        served(&mut line, &said, bench);
    }
    hardware(&mut line, &said, (log_or_bench, files), own.is_some());
    if own.as_ref().is_some_and(|own| own.version_open) {
        version(&mut line);
    }
    not_modelled(&mut line, &said, log);
    let settings = line.words.len();
    if own.is_none() {
        memory(&mut line, &said);
    }
    let depth = drafted(&mut line, &said, own.as_ref(), known.as_deref());
    let baseline = baseline(files);
    let by_log = own.as_ref();
    load(&mut line, &said, by_log, bench, baseline.as_ref());
    accept(&mut line, &said, by_log, depth, files);
    table(&mut line, &said, files);
    if let Some(baseline) = baseline {
        let unsaid = baseline.formats_unsaid(files).filter(|_| own.is_none());
        let piped = log.is_some_and(|log| log.file == super::STANDARD_INPUT);
        format::of_the_sweep(&mut line, &said, unsaid, piped);
        baseline.add(&mut line);
    }
    let speed = bench.is_some() || log.is_some_and(|log| log.get("gen_tok_s").is_some());
    let class = log.is_some_and(|log| log.get("model_class").is_some());
    let by_log = said.mem_fraction.is_some()
        || said.max_running_requests.is_some()
        || said.accept_length.is_some();
    let shown = said.tp.is_some() || named.is_some() || class || speed || by_log;
    let says = line.words.len() > settings || shown || said.context.is_some();
    says.then(|| line.next())
}

/// Times of all-reduces among the files, where there is somebody to reduce with.
fn table(line: &mut Words, said: &LogScenario, files: &[Facts]) {
    let alone = said.tp.is_some_and(|(tp, _)| tp < 2);
    let table = files.iter().find(|facts| !alone && all_reduce_table(facts));
    if let Some(table) = table {
        line.file("--allreduce-table", table);
    }
}

/// Whether what a log says can be taken whole: not where drafts are named that the model of the
/// log does not have.
fn one_model(said: &LogScenario) -> bool {
    let known = said.model.as_ref().map(|(path, _)| model_name(path));
    let word = draft_word(said, known.as_deref());
    word.is_some() || merge::draft_of_log(said).is_none_or(|draft| draft.0 != "mtp")
}

/// The draft and its depth, as far as `--from-log` does not say them; the depth.
fn drafted(
    line: &mut Words,
    said: &LogScenario,
    own: Option<&LogScenario>,
    model: Option<&str>,
) -> Option<u32> {
    let by_log = own.and_then(merge::draft_of_log);
    let draft = draft_word(said, model);
    match draft.as_deref() {
        Some("DRAFT") => line.gap("--draft", "DRAFT", draft_hint(said)),
        Some(_) if by_log.is_some() => {}
        _ => line.push("--draft", draft),
    }
    let depth = said.steps.map(|(n, _)| n);
    let same = own.is_some_and(|own| own.steps == said.steps);
    line.push("--steps", depth.filter(|_| !same).map(|n| n.to_string()));
    depth
}

fn model(line: &mut Words, named: Option<&str>, known: Option<String>, log: Option<&Facts>) {
    let class = log.and_then(|log| log.text("model_class"));
    match (known, named) {
        (Some(known), _) => line.push("--model", Some(known)),
        (None, Some(named)) => line.gap(
            "--model",
            "MODEL",
            format!("a catalogue name or the config.json of {named} for MODEL"),
        ),
        (None, None) => line.gap(
            "--model",
            "MODEL",
            match class {
                Some(class) => {
                    format!("a catalogue name or the config.json of the {class} for MODEL")
                }
                None => "a catalogue name or a config.json for MODEL".to_string(),
            },
        ),
    }
}

fn hardware(
    line: &mut Words,
    said: &LogScenario,
    (log, files): (Option<&Facts>, &[Facts]),
    by_log: bool,
) {
    let topology = wiring(files);
    line.topology(files);
    gpu(line, files);
    if let Some(each) = machine::of_one(said, log, card(files).as_deref()) {
        machine::ask(line, each, topology.is_some());
        return;
    }
    let counted = files.iter().find_map(|facts| facts.number("gpus"));
    match (topology, said.tp) {
        (_, Some(_)) if by_log => return,
        (None, Some((n, _))) => line.push("--gpus", Some(n.to_string())),
        (None, None) if counted.is_some() => {
            line.push("--gpus", counted.map(|n| format!("{n:.0}")));
        }
        (None, None) => line.gap(
            "--gpus",
            "GPUS",
            "how many of them it ran on for GPUS".to_string(),
        ),
        (Some(_), _) => {}
    }
    line.push("--tp", said.tp.map(|(n, _)| n.to_string()));
    line.push(
        "--dcp",
        said.dcp.filter(|(n, _)| *n > 1).map(|(n, _)| n.to_string()),
    );
}

/// Parts of the server that the answer leaves out.
fn not_modelled(line: &mut Words, said: &LogScenario, log: Option<&Facts>) {
    let several = |name: &str| log.and_then(|log| log.number(name)).filter(|n| *n > 1.0);
    for (name, what, answer) in [
        ("pp", "pipeline stages", "the TP group alone"),
        ("dp", "data-parallel ranks", "one group of all TP ranks"),
    ] {
        if let Some(n) = several(name) {
            let left_out = format!("{n} {what}: they are not modelled; the answer is for {answer}");
            line.left_out.push(left_out);
        }
    }
    if suffix::drafts(said) {
        let left_out = "suffix decoding: it is not modelled; the answer is without a draft";
        line.left_out.push(left_out.to_string());
    }
}

/// What to put for a text without a name.
const PIPED: &str = "the file that was piped in for FILE";

/// What to put for the card.
const CARD: &str = "your card for GPU (rtx-5090, h100)";

/// The same, where something ran on it.
const RAN_ON: &str = "the card it ran on for GPU (rtx-5090, h100)";

/// Whether a file shows a server or its speed.
fn measured(facts: &Facts) -> bool {
    facts.text("engine").is_some() || facts.get("bench_points").is_some()
}

/// The card that a file names, where it is known here.
fn gpu(line: &mut Words, files: &[Facts]) {
    if let Some(card) = card(files) {
        line.push("--gpu", Some(card));
        return;
    }
    let named = files.iter().find_map(|facts| facts.text("gpu"));
    let what = match named {
        Some(named) => format!(
            "the nearest card of `--gpu list` for GPU ({named} is not among them; the links are your own)"
        ),
        None if files.iter().any(measured) => RAN_ON.to_string(),
        None => CARD.to_string(),
    };
    line.gap("--gpu", "GPU", what);
}

/// The load: tokens that a request held, else the context the server takes; the loads measured,
/// else users up to the most it runs at once.
fn load(
    line: &mut Words,
    said: &LogScenario,
    own: Option<&LogScenario>,
    bench: Option<&Facts>,
    baseline: Option<&Baseline>,
) {
    const MOST_LOADS: usize = 16;
    let by_log = own.is_some_and(|own| own.held.is_some());
    let held = said.held.as_ref().map(|held| f64::from(held.tokens));
    let held = held
        .or_else(|| match baseline {
            Some(baseline) if !baseline.loads.is_empty() => baseline.held_tokens,
            _ => bench?.number("bench_held_tokens"),
        })
        .filter(|tokens| *tokens >= 1.0);
    let limit = said
        .context
        .filter(|_| own.is_none())
        .map(|(n, _)| n.to_string());
    let held = held.filter(|_| !by_log).map(|n| format!("{n:.0}"));
    line.push("--context", held.or(limit));
    let whole = |users: &f64| users.fract() == 0.0 && (1.0..4e9).contains(users);
    let measured = baseline.map(|baseline| &baseline.loads);
    let measured = measured
        .filter(|loads| !loads.is_empty() && loads.len() <= MOST_LOADS && loads.iter().all(whole));
    let words = |loads: &Vec<f64>| {
        let loads: Vec<String> = loads.iter().map(f64::to_string).collect();
        loads.join(",")
    };
    let loads = measured.map(words);
    let by_settings = || said.loads().map(|(loads, _)| loads);
    let loads = loads.or_else(|| by_settings().filter(|_| own.is_none()));
    line.push("--concurrency", loads);
}

fn draft_hint(said: &LogScenario) -> String {
    match &said.draft {
        Some((path, _)) => format!("the config.json of the draft {path} for DRAFT"),
        None => "the draft's config.json for DRAFT".to_string(),
    }
}

/// The draft as `predict` takes it; `None` where it must find one by itself.
fn draft_word(said: &LogScenario, model: Option<&str>) -> Option<String> {
    let named = said.spec_algorithm.as_ref().map(|(name, _)| name.as_str());
    match named {
        Some(name) if suffix::is_suffix(name) => return Some("none".to_string()),
        Some(name) if merge::is_look_up(name) => return Some("ngram".to_string()),
        _ => {}
    }
    let path = said.draft.as_ref().map(|(path, _)| model_name(path));
    let algorithm = said.spec_algorithm.as_ref();
    let algorithm = algorithm.map_or(String::new(), |(name, _)| name.to_ascii_lowercase());
    let found = model.and_then(|model| kvplan::catalog::find(model).ok());
    let own_layers = found.is_none_or(|found| !found.model.mtp_layers.is_empty());
    let lower = path.as_deref().unwrap_or("").to_ascii_lowercase();
    let whole = said.draft.as_ref().map(|(path, _)| path.clone());
    if algorithm.contains("eagle3") || lower.contains("eagle3") {
        // A repository's name passes as it is, where it says the kind.
        let named = |path: &String| {
            path.contains('/') && crate::scenario::model::names_head(path) == Some("eagle3")
        };
        let whole = whole.filter(named);
        return Some(whole.unwrap_or_else(|| "eagle3".to_string()));
    }
    let nextn = ["mtp", "nextn"].iter().any(|word| algorithm.contains(word));
    if lower == "mtp" || nextn || (path.is_none() && algorithm.contains("eagle")) {
        return own_layers.then(|| "mtp".to_string());
    }
    // A small model of the catalogue drafts under its own name.
    whole.map(|path| match kvplan::catalog::find(&path) {
        Ok(_) if !lower.ends_with("-mtp") => path,
        _ => "DRAFT".to_string(),
    })
}

/// A topology alone: what its links are worth.
fn simulate_line(files: &[Facts]) -> Option<Next> {
    let mut line = Words {
        words: vec!["cargo xtask simulate".to_string()],
        ..Words::default()
    };
    let boxed = files.iter().find(|facts| facts.kinds.contains(&"box-file"));
    if let Some(facts) = boxed {
        line.file("--box", facts);
        return Some(line.next());
    }
    wiring(files)?;
    line.topology(files);
    gpu(&mut line, files);
    Some(line.next())
}

/// The text that shows how the GPUs are joined; one of peer access alone where there is no other.
fn wiring(files: &[Facts]) -> Option<&Facts> {
    let joined = files
        .iter()
        .find(|facts| wired(facts) && !states_alone(facts));
    joined.or_else(|| files.iter().find(wired))
}

/// A matrix of peer access without one of links.
fn states_alone(facts: &Facts) -> bool {
    facts.kinds.contains(&"topo-matrix")
        && facts.get("p2p").is_some()
        && facts.get("farthest_link").is_none()
        && facts.get("nvlink").is_none()
}

/// A text that shows how the GPUs of one box are wired, as `--topology` reads it.
fn wired(facts: &&Facts) -> bool {
    facts.wired && facts.get("different_topologies").is_none()
}

/// An nccl-tests table of all-reduces.
fn all_reduce_table(facts: &Facts) -> bool {
    facts.kinds.contains(&"nccl-tests")
        && facts.text("op").is_none_or(|op| op == "all_reduce")
        && facts.get("smallest_time_us").is_some()
}

/// The card by its catalogue name.
fn card(files: &[Facts]) -> Option<String> {
    files
        .iter()
        .filter_map(|facts| crate::gpus::find(facts.text("gpu")?).ok())
        .map(|gpu| gpu.name.clone())
        .next()
}

/// The last part of a path or repository name.
fn model_name(path: &str) -> String {
    path.trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or(path)
        .to_string()
}

/// Three decimals, without an empty tail.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}
