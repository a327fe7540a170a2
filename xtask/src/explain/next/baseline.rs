//! The plain sweep among the files, as `--baseline` takes it.

use super::{PIPED, Words};
use crate::explain::facts::Facts;

/// A plain sweep among the files.
pub(super) struct Baseline {
    /// The files of it.
    files: Vec<String>,
    /// The bench does not say at which load it ran.
    nameless: bool,
    pub(super) loads: Vec<f64>,
    pub(super) held_tokens: Option<f64>,
    /// Why there is none, where a bench was given.
    none: Option<String>,
    /// Files that are not of it, and why.
    others: Vec<String>,
    /// Nothing says whether it ran with speculation.
    unsaid: bool,
}

impl Baseline {
    /// One file, of which nothing is said yet.
    fn of(facts: &Facts) -> Self {
        Self {
            files: vec![facts.file.clone()],
            nameless: false,
            others: Vec::new(),
            loads: Vec::new(),
            held_tokens: None,
            none: None,
            unsaid: false,
        }
    }

    /// Takes another file for a part of the sweep where it adds loads, with requests of about the same
    /// length; says why not otherwise.
    fn join(&mut self, facts: &Facts, unsaid: bool) {
        let Some(sweep) = &facts.sweep else {
            return;
        };
        let again = sweep.points.iter().any(|p| self.loads.contains(&p.0));
        let lengths = self.held_tokens.zip(sweep.held_tokens);
        let other = lengths.is_some_and(|(a, b)| a.max(b) > 1.1 * a.min(b));
        let first = self.files.join(",");
        let commas = self
            .files
            .iter()
            .chain([&facts.file])
            .any(|f| f.contains(','));
        let why = match (again, other, commas) {
            (true, ..) => format!("its loads are in {first} too"),
            (_, true, _) => format!("its requests have another length than those of {first}"),
            (_, _, true) => "commas stand between files, and in one's name".to_string(),
            _ => {
                self.files.push(facts.file.clone());
                self.loads.extend(sweep.points.iter().map(|point| point.0));
                self.loads.sort_by(f64::total_cmp);
                self.held_tokens = self.held_tokens.or(sweep.held_tokens);
                self.unsaid |= unsaid;
                return;
            }
        };
        self.others
            .push(format!("--baseline {}: {why}", facts.file));
    }

    /// The sweep, where none of its files says the KV format that it ran with.
    pub(super) fn formats_unsaid(&self, files: &[Facts]) -> Option<String> {
        let mut own = files
            .iter()
            .filter(|facts| self.files.contains(&facts.file));
        let says = own.any(|facts| facts.get("kv_dtype").is_some());
        let piped = |file: &String| file == crate::explain::STANDARD_INPUT;
        let unsaid = self.none.is_none() && !says && !self.files.iter().any(piped);
        unsaid.then(|| format!("--baseline {}", self.files.join(",")))
    }

    pub(super) fn add(self, line: &mut Words) {
        if let Some(why) = self.none {
            line.left_out.push(why);
            return;
        }
        if self.unsaid {
            line.provided.push(format!(
                "--baseline is right if {} ran without speculation, which nothing here says (if it drafted, \
                 give that server's log to --accept instead)",
                self.files.join(" and ")
            ));
        }
        line.left_out.extend(self.others);
        let is_piped = |file: &String| file == crate::explain::STANDARD_INPUT;
        let piped = self.files.iter().any(is_piped);
        let at = if self.nameless { "@USERS" } else { "" };
        let word = |file: &String| match is_piped(file) {
            true => format!("FILE{at}"),
            false => format!("{file}{at}"),
        };
        let words: Vec<String> = self.files.iter().map(word).collect();
        line.push("--baseline", Some(words.join(",")));
        if piped {
            line.fill_in.push(PIPED.to_string());
        }
        if self.nameless {
            line.fill_in
                .push("the requests it ran at a time for USERS".to_string());
        }
    }
}

/// Whether a text shows speculation.
fn drafts(facts: &Facts) -> bool {
    let named = ["spec_algorithm", "accept_length"];
    named.iter().any(|name| facts.get(name).is_some())
}

/// A bench without speculation, else the speeds of a plain server's own log.
pub(super) fn baseline(files: &[Facts]) -> Option<Baseline> {
    if let Some(log) = like_the_drafted(files) {
        return Some(log);
    }
    let benches = || files.iter().filter(|f| f.get("bench_points").is_some());
    // Tools that print no accept length, beside server lines that do.
    let plain = |facts: &&Facts| {
        facts.get("accept_length").is_none() || facts.get("bench_accept_length").is_some()
    };
    let speculates = files
        .iter()
        .find(|facts| facts.get("bench_points").is_none() && drafts(facts));
    // The log of a plain server says it, or a bench of that tool that prints accept lengths where there
    // are any; llama-bench never drafts.
    let said = |bench: &Facts| {
        let prints = |facts: &Facts| {
            let tool = |kind| facts.kinds.contains(kind);
            facts.get("bench_accept_length").is_some() && bench.kinds.iter().any(tool)
        };
        bench.kinds.contains(&"llama-bench")
            || files.iter().any(prints)
            || files
                .iter()
                .any(|facts| facts.text("engine").is_some() && !drafts(facts))
    };
    let swept = benches().filter(plain).find(|f| f.sweep.is_some());
    // Of a table nobody but the reader knows what ran; a bench beside a log was most likely of that server.
    let of_which = swept.filter(|facts| !facts.kinds.contains(&"csv"));
    if let (Some(facts), Some(log), None) = (
        of_which,
        speculates,
        benches().find(|f| f.get("bench_accept_length").is_some()),
    ) {
        return Some(Baseline {
            none: Some(format!(
                "--baseline {}: the server of {} speculates, and no accept length in the bench says \
                 which of the two it is; right if it ran against a plain server",
                facts.file, log.file
            )),
            ..Baseline::of(facts)
        });
    }
    if let Some((facts, sweep)) = swept.and_then(|f| Some((f, f.sweep.as_ref()?))) {
        let mut whole = Baseline {
            loads: sweep.points.iter().map(|point| point.0).collect(),
            held_tokens: sweep.held_tokens,
            unsaid: !said(facts),
            ..Baseline::of(facts)
        };
        for more in benches().filter(plain).filter(|f| f.file != facts.file) {
            whole.join(more, !said(more));
        }
        return Some(whole);
    }
    if let Some(facts) = benches().filter(plain).find(|f| f.nameless_sweep) {
        return Some(Baseline {
            nameless: true,
            unsaid: !said(facts),
            ..Baseline::of(facts)
        });
    }
    let own = plain_log(files).or_else(|| plain_pool(files));
    let Some(own) = own else {
        return without_graphs(files);
    };
    Some(Baseline {
        loads: own.speeds.iter().map(|speed| speed.running).collect(),
        ..Baseline::of(own)
    })
}

/// The log of a plain server that captured no CUDA graphs, which `predict` leaves aside.
fn without_graphs(files: &[Facts]) -> Option<Baseline> {
    let log = files.iter().find(|facts| plain_speeds(facts))?;
    let line = log.eager()?.line;
    Some(Baseline {
        none: Some(format!(
            "--baseline {}: its server captured no CUDA graphs (line {line}), which predict leaves aside: the answer \
             is of one that does; run it with graphs",
            log.file
        )),
        ..Baseline::of(log)
    })
}

/// The log of a plain server whose load never held, beside one of the same model that drafts: its pool
/// is the one without the draft.
fn plain_pool(files: &[Facts]) -> Option<&Facts> {
    let pooled = |facts: &&Facts| facts.get("kv_tokens").is_some();
    let drafted = files.iter().filter(pooled).find(|facts| drafts(facts))?;
    let same = |facts: &Facts, name: &str| {
        let own = facts.text(name);
        own.is_some() && own == drafted.text(name)
    };
    let alike = |facts: &&Facts| same(facts, "engine") && same(facts, "model");
    let mut plain = files.iter().filter(pooled).filter(|facts| !drafts(facts));
    plain.find(|facts| alike(facts) && facts.eager().is_none())
}

/// The log of a plain server that shows speeds.
fn plain_log(files: &[Facts]) -> Option<&Facts> {
    let mut plain = files.iter().filter(|facts| plain_speeds(facts));
    plain.find(|facts| facts.eager().is_none())
}

fn plain_speeds(facts: &Facts) -> bool {
    !facts.speeds.is_empty()
        && facts.speed_printers < 2
        && facts.get("spec_algorithm").is_none()
        && facts.get("accept_length").is_none()
}

/// The plain server's log where the speeds with a draft are lines of a log too, and not of a bench: the
/// two can be set against each other.
fn like_the_drafted(files: &[Facts]) -> Option<Baseline> {
    let by_lines = |facts: &Facts| drafts(facts) && !facts.speeds.is_empty();
    let benched = files.iter().any(|facts| !facts.drafted_bench().is_empty());
    let drafted = files.iter().find(|facts| by_lines(facts) && !benched)?;
    let own = plain_log(files)?;
    let benches = files.iter().filter(|facts| facts.sweep.is_some());
    let others = benches.map(|bench| {
        format!(
            "--baseline {}: lines of {} are set against lines of {}",
            bench.file, drafted.file, own.file
        )
    });
    Some(Baseline {
        loads: own.speeds.iter().map(|speed| speed.running).collect(),
        others: others.collect(),
        ..Baseline::of(own)
    })
}
