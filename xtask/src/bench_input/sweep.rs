//! Bench results, CSV or a server's log as a plain sweep for `--baseline`.

use std::collections::BTreeMap;

use super::{BenchPoint, Found, csv, decode, points_from_doc};
use crate::explain::speeds::{By, LoadSpeed};
use crate::explain::starts::{self, Start};
use crate::explain::text::Doc;
use crate::explain::{Facts, facts_from_text};
use crate::input;

/// A plain sweep, and how it was read.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sweep {
    /// (users, tokens a second over all users), by rising load.
    pub(crate) points: Vec<(f64, f64)>,
    /// Tokens that a request held meanwhile, where the file says.
    pub(crate) held_tokens: Option<f64>,
    /// Which figures were taken, and what looks odd.
    pub(crate) notes: Vec<String>,
    /// Tokens of context, where the bench sweeps it.
    pub(crate) context: Option<f64>,
    /// The same at longer contexts, by rising context.
    pub(crate) longer: Vec<Sweep>,
    /// What the file says of the server.
    pub(crate) ran_on: RanOn,
    /// The points with what each was measured by, where the file says.
    pub(crate) seen: Vec<LoadSpeed>,
    /// A bench of a tool that says nothing of the server behind it: it may have drafted.
    pub(crate) may_draft: bool,
}

/// The server behind a sweep, as far as its file says; each with its line.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RanOn {
    /// Its model, as it names it.
    pub(crate) model: Option<String>,
    /// The class that its engine loads.
    pub(crate) class: Option<(String, usize)>,
    /// Tensor-parallel size.
    pub(crate) tp: Option<(u32, usize)>,
    /// Hosts that it spans, in words, where it spans several.
    pub(crate) hosts: Option<(String, usize)>,
    /// The card.
    pub(crate) gpu: Option<(String, usize)>,
    /// Format of its KV cache.
    pub(crate) kv_dtype: Option<(String, usize)>,
    /// Its KV pool.
    pub(crate) pool: Option<PlainPool>,
    /// What spreads its requests over ranks, in words.
    pub(crate) data_parallel: Option<(String, usize)>,
    /// Line that says that it captures no CUDA graphs.
    pub(crate) eager: Option<usize>,
}

/// The pool of a plain server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlainPool {
    /// Engine and model, as its log names them.
    pub(crate) of: (String, String),
    pub(crate) tokens: u64,
    /// The fraction that it ran with.
    pub(crate) fraction: Option<f64>,
    /// What its graphs took, those of prefills left out, GiB.
    pub(crate) graph_gib: Option<f64>,
}

impl PlainPool {
    fn of(facts: &Facts) -> Option<Self> {
        let seen = crate::explain::scenario_from_facts(facts);
        let (tokens, _) = seen.kv_tokens.filter(|(tokens, _)| *tokens < 1e15)?;
        Some(Self {
            of: (seen.engine?.0, seen.model?.0),
            tokens: tokens as u64,
            fraction: seen.mem_fraction.map(|(fraction, _)| fraction),
            graph_gib: seen.graph_gib.map(|(gib, _)| gib),
        })
    }
}

impl RanOn {
    fn of(facts: &Facts) -> Self {
        let line = |name: &str| facts.get(name).map_or(0, |fact| fact.line);
        let tp = facts
            .number("tp")
            .filter(|tp| (1.0..=65_536.0).contains(tp));
        Self {
            model: facts.text("model").map(str::to_string),
            class: crate::explain::scenario_from_facts(facts).class,
            tp: tp.map(|tp| (tp as u32, line("tp"))),
            hosts: crate::explain::hosts_of_server(facts),
            gpu: facts.text("gpu").map(|gpu| (gpu.to_string(), line("gpu"))),
            kv_dtype: facts
                .text("kv_dtype")
                .map(|dtype| (dtype.to_string(), line("kv_dtype"))),
            pool: PlainPool::of(facts),
            data_parallel: crate::explain::scenario_from_facts(facts).data_parallel,
            eager: facts.eager().map(|fact| fact.line),
        }
    }

    /// Of a start line that stands beside bench results.
    fn of_start(start: &Start) -> Self {
        Self {
            tp: start.tp().map(|tp| (tp, start.line)),
            kv_dtype: start.kv_dtype().map(|kv| (kv.to_string(), start.line)),
            data_parallel: start.data_parallel().map(|what| (what, start.line)),
            eager: start.eager().then_some(start.line),
            ..Self::default()
        }
    }
}

/// The points of [`sweep_with_notes`].
pub(crate) fn sweep_from_text(text: &str, name: &str) -> anyhow::Result<Vec<(f64, f64)>> {
    let read = sweep_with_notes(text, name, None)?;
    match read.points.is_empty() {
        true => Err(no_speed(name)),
        false => Ok(read.points),
    }
}

/// The error on the log of a plain server that has nothing to calibrate with.
pub(crate) fn no_speed(name: &str) -> anyhow::Error {
    input::error(format!(
        "--baseline {name}: the log shows no speed at a load that held for two lines; give CSV lines \
         `concurrency,tok_s`, or a bench run against this server"
    ))
}

/// A plain sweep for `--baseline`, the last measurement of a concurrency winning. Points that ran
/// with speculation are left out; where several contexts were measured, the points are those of the
/// shortest. `users` is the load of results that do not say it. The log of a server whose load never held
/// has no points.
///
/// # Errors
/// No sweep in it, or a row of a CSV that cannot be read, by its line.
pub(crate) fn sweep_with_notes(
    text: &str,
    name: &str,
    users: Option<f64>,
) -> anyhow::Result<Sweep> {
    let doc = Doc::new(text);
    let Found { mut points, fault } = points_from_doc(&doc, text);
    points.retain(|point| point.tool != "csv");
    if !points.is_empty() {
        let told = points.iter().any(|point| point.accept_length.is_some());
        let server = ["SpecDecoding metrics:", "accept len:"];
        if !told && server.iter().any(|phrase| doc.flat.contains(phrase)) {
            return Err(input::error(format!(
                "--baseline {name}: the server lines in it show speculation; a baseline is the same \
                 bench without it"
            )));
        }
        let mut sweep = sweep_of_points(&points, name, users)?;
        sweep.notes.extend(fault);
        if let Some(start) = starts::plain(&doc) {
            sweep.ran_on = RanOn::of_start(&start);
            sweep.may_draft = false;
        }
        return Ok(sweep);
    }
    if let Some(fault) = fault {
        return Err(input::error(format!("--baseline {name}: {fault}")));
    }
    let Some(table) = csv::table(&doc, name).transpose()? else {
        return of_log(&facts_from_text(text, name), name);
    };
    let mut sweep = match table.sweeps_contexts() {
        true => sweep_of_points(&table.points(), name, users)?,
        false => {
            let notes = table.guessed.into_iter().collect();
            finished(table.rows, None, notes, (name, table.summed))?
        }
    };
    sweep.ran_on = starts::plain(&doc).map_or_else(RanOn::default, |start| RanOn::of_start(&start));
    Ok(sweep)
}

/// One measurement a load, checked; `summed` where the text says that the speeds are of all users.
fn finished(
    rows: Vec<csv::Row>,
    held_tokens: Option<f64>,
    mut notes: Vec<String>,
    (name, summed): (&str, bool),
) -> anyhow::Result<Sweep> {
    if rows.is_empty() {
        return Err(input::error(format!(
            "--baseline {name}: no rows are in it; give lines `concurrency,tok_s` such as 8,420"
        )));
    }
    // The bits of positive floats are in the order of the floats.
    let by_load: BTreeMap<u64, f64> = rows.iter().map(|r| (r.0.to_bits(), r.1)).collect();
    let points: Vec<(f64, f64)> = by_load
        .into_iter()
        .map(|(bits, tok_s)| (f64::from_bits(bits), tok_s))
        .collect();
    if !summed {
        csv::over_all_users(&points, name)?;
    }
    notes.extend(csv::oddities(&rows, &points, summed));
    Ok(Sweep {
        points,
        held_tokens,
        notes,
        ..Sweep::default()
    })
}

/// Most contexts that a bench sweeps: each is a sweep of its own.
const MOST_CONTEXTS: usize = 64;

/// The sweep in bench results.
///
/// # Errors
/// None of them is a plain run at a known load.
pub(crate) fn sweep_of_points(
    points: &[BenchPoint],
    name: &str,
    users: Option<f64>,
) -> anyhow::Result<Sweep> {
    let speculative = points.iter().filter(|p| p.accept_length.is_some()).count();
    let mut usable: Vec<(f64, f64, &BenchPoint)> = Vec::new();
    let mut nameless = 0;
    for point in points.iter().filter(|p| p.accept_length.is_none()) {
        // Sent all at once without a limit: what ran at a time on average.
        let average = point.real_concurrency.filter(|_| !point.paced);
        let load = point.concurrency.or(users).or(average.map(f64::round));
        let (Some(concurrency), Some(tok_s)) = (load, point.output_tok_s) else {
            nameless += 1;
            continue;
        };
        if concurrency >= 1.0 && tok_s > 0.0 {
            usable.push((concurrency, tok_s, point));
        }
    }
    if usable.is_empty() {
        let why = if speculative > 0 {
            "its runs were made with speculation on; a baseline is the same bench without it (--accept takes \
             this one)"
                .to_string()
        } else if nameless > 0 {
            format!(
                "its results do not say at which concurrency they ran; give it as {name}@USERS, or \
                 CSV lines `concurrency,tok_s`"
            )
        } else {
            "none of its points has a concurrency of at least 1 and a throughput above 0"
                .to_string()
        };
        return Err(input::error(format!("--baseline {name}: {why}")));
    }
    let mut contexts: Vec<f64> = usable.iter().filter_map(|p| p.2.context).collect();
    contexts.retain(|tokens| tokens.is_finite());
    contexts.sort_by(f64::total_cmp);
    contexts.dedup();
    let measured = contexts.len();
    contexts.truncate(MOST_CONTEXTS);
    let at = |wanted: Option<f64>, nowhere: bool| {
        let of_it = |p: &&(f64, f64, &BenchPoint)| {
            p.2.context == wanted || (nowhere && p.2.context.is_none())
        };
        let found: Vec<_> = usable.iter().filter(of_it).copied().collect();
        at_one_context(&found, wanted, name)
    };
    let mut shortest = at(contexts.first().copied(), true)?;
    let longer = contexts
        .iter()
        .skip(1)
        .map(|tokens| at(Some(*tokens), false));
    shortest.longer = longer.collect::<anyhow::Result<_>>()?;
    if measured > MOST_CONTEXTS {
        let note =
            format!("{measured} contexts are measured, the {MOST_CONTEXTS} shortest are read");
        for row in &mut shortest.longer {
            row.notes.push(note.clone());
        }
        shortest.notes.push(note);
    }
    Ok(shortest)
}

/// The sweep at one of the contexts: (users, throughput, point).
fn at_one_context(
    points: &[(f64, f64, &BenchPoint)],
    context: Option<f64>,
    name: &str,
) -> anyhow::Result<Sweep> {
    let mut read: Vec<_> = points
        .iter()
        .map(|(users, tok_s, point)| (*users, decode::speed(point, *users, *tok_s), *point))
        .collect();
    read.sort_by(|a, b| a.0.total_cmp(&b.0));
    let rows: Vec<csv::Row> = read.iter().map(|r| (r.0, r.1.tok_s, r.2.line)).collect();
    // Of a load that is measured again the last is taken.
    let last = |at: usize| {
        rows.get(at + 1)
            .is_none_or(|next| Some(next.0) != rows.get(at).map(|row| row.0))
    };
    let taken = || read.iter().enumerate().filter(|(at, _)| last(*at));
    let mut notes: Vec<String> = taken().filter_map(|(_, r)| r.1.note.clone()).collect();
    notes.truncate(4);
    let held: Vec<f64> = taken().filter_map(|(_, r)| r.2.held_tokens()).collect();
    let found: Vec<(f64, f64)> = taken().map(|(_, r)| (r.0, r.1.tok_s)).collect();
    csv::plausible(&found, name)?;
    let summed = points.iter().all(|point| point.2.summed);
    let held = crate::score::quantile(&held, 0.5);
    let told = taken().filter(|(_, r)| r.2.tool != "csv");
    let seen = told.filter_map(|(_, r)| r.2.load_speed(r.0)).collect();
    // A list is the user's own word, and llama-bench never drafts.
    let may_draft = taken().any(|(_, r)| !matches!(r.2.tool, "csv" | "llama-bench"));
    let sweep = finished(rows, held, notes, (name, summed))?;
    Ok(Sweep {
        context,
        seen,
        may_draft,
        ..sweep
    })
}

/// The sweep in a server's log: generation speed by requests running, where it ran without
/// speculation.
fn of_log(facts: &Facts, name: &str) -> anyhow::Result<Sweep> {
    let no = |why: &str| Err(input::error(format!("--baseline {name}: {why}")));
    let Some(engine) = facts.text("engine") else {
        return no(
            "no bench result in it; give CSV lines `concurrency,tok_s`, the output of bench_serving, \
             vllm bench serve, aiperf, guidellm or llm-decode-bench, or the log of a server without \
             speculation",
        );
    };
    let speculates = ["accept_length", "spec_algorithm"]
        .iter()
        .any(|fact| facts.get(fact).is_some());
    if speculates {
        return no(&format!(
            "the {engine} log of a server with speculation, so its speeds are no baseline; give the \
             log or a bench of the same server without it (this log serves --accept and --from-log)"
        ));
    }
    if facts.speed_printers > 1 {
        return no(&format!(
            "the log of {} data-parallel ranks, each of which prints its own requests and speed; give \
             a bench of the whole server",
            facts.speed_printers
        ));
    }
    if facts.speeds.is_empty() {
        // What it says of memory may serve all the same.
        return Ok(Sweep {
            ran_on: RanOn::of(facts),
            ..Sweep::default()
        });
    }
    let loads: Vec<String> = facts.speeds.iter().map(|s| s.running.to_string()).collect();
    let lines: usize = facts.speeds.iter().map(|s| s.lines).sum();
    let note = format!(
        "speeds of the server's own log at {} running, {lines} lines whose load held: prompts that \
         came in between slow them a little",
        loads.join(", ")
    );
    let held: Vec<f64> = facts.speeds.iter().filter_map(|s| s.held_tokens).collect();
    let rows = facts
        .speeds
        .iter()
        .map(|s| (s.running, s.tok_s, s.line))
        .collect();
    // As `--from-log` takes it from the same log.
    let told = facts.number("held_tokens_per_request");
    let sweep = finished(
        rows,
        told.or_else(|| crate::score::quantile(&held, 0.5)),
        vec![note],
        (name, true),
    )?;
    Ok(Sweep {
        ran_on: RanOn::of(facts),
        seen: facts.speeds.clone(),
        ..sweep
    })
}

impl BenchPoint {
    /// The speed at a load, and what it was measured by.
    pub(crate) fn load_speed(&self, running: f64) -> Option<LoadSpeed> {
        let output_tok_s = self.output_tok_s.filter(|tok_s| *tok_s > 0.0)?;
        let tpot_ms = self.mean_tpot_ms.or(self.median_tpot_ms);
        let decode = decode::speed(self, running, output_tok_s);
        Some(LoadSpeed {
            running,
            tok_s: decode.tok_s,
            held_tokens: self.held_tokens(),
            held_line: self.line,
            accept_length: self.accept_length,
            lines: 1,
            line: self.line,
            by: match self.paced || self.all_at_once {
                true => By::Unlimited,
                false => By::Bench {
                    tpot_ms: tpot_ms.filter(|ms| ms.is_finite() && *ms > 0.0),
                    output_tok_s,
                    holds_prompts: decode.holds_prompts,
                },
            },
        })
    }

    /// Tokens that a request held while it decoded, the mean: its prompt and half its output, or
    /// the context of the tool's own sweep.
    pub(crate) fn held_tokens(&self) -> Option<f64> {
        let half = self.generated_tokens.map_or(0.0, |tokens| tokens / 2.0);
        let prompt = self
            .prompt_tokens
            .or(self.context.filter(|tokens| *tokens > 0.0));
        prompt.map(|prompt| prompt + half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_names_the_rate_first_turns_the_columns() {
        let turned = sweep_from_text("tok_s,concurrency\n90,1\n500,8\n", "a.csv");
        let plain = sweep_from_text("concurrency,tok_s\n1,90\n8,500\n", "a.csv");
        assert_eq!(turned.expect("a sweep"), plain.expect("a sweep"));
    }

    fn decode_log(accept: &str) -> String {
        let line = |running: u32, speed: f64| {
            format!(
                "[2025-01-23 19:35:35 TP0] Decode batch. #running-req: {running}, #token: {}, token \
                 usage: 0.01, {accept}cuda graph: True, gen throughput (token/s): {speed}, \
                 #queue-req: 0\n",
                running * 500
            )
        };
        [(1, 5.0), (1, 60.0), (1, 61.0), (8, 300.0), (8, 390.0)]
            .map(|(running, speed)| line(running, speed))
            .concat()
    }

    #[test]
    fn a_plain_servers_log_is_a_sweep_and_a_speculative_ones_is_refused() {
        let sweep = sweep_with_notes(&decode_log(""), "srv.log", None).expect("a sweep");
        assert_eq!(sweep.points, [(1.0, 60.5), (8.0, 390.0)]);
        assert_eq!(sweep.held_tokens, Some(500.0));
        let spec = decode_log("accept len: 2.31, ");
        let why = sweep_with_notes(&spec, "srv.log", None).expect_err("speculative");
        let why = why.to_string();
        assert!(why.contains("server with speculation") && why.contains("--accept"));
    }

    #[test]
    fn a_load_measured_again_is_told_by_its_lines_in_json_and_beside_a_context() {
        let result = |tok_s: f64| {
            format!(
                "{{\"max_concurrency\": 8, \"output_throughput\": {tok_s}, \"completed\": 80}}\n"
            )
        };
        let json = result(500.0) + &result(520.0);
        let table = "users,context,tok_s\n8,2k,500\n8,2k,520\n".to_string();
        for (text, lines) in [(json, [1, 2]), (table, [2, 3])] {
            let sweep = sweep_with_notes(&text, "f", None).expect("a sweep");
            assert_eq!(sweep.points, [(8.0, 520.0)]);
            let [first, again] = lines;
            let told = format!(
                "8 users stand in line {first} (500 tok/s) and again in line {again} (520 tok/s): the last \
                 is taken"
            );
            assert_eq!(sweep.notes, [told], "{text}");
        }
    }

    #[test]
    fn a_bench_that_does_not_say_its_load_takes_the_one_given() {
        let text = "Request Throughput (req/sec):  0.2678\n\
                    Total Output Throughput (tokens/sec): 274.18\n";
        assert!(
            sweep_with_notes(text, "b.txt", None)
                .is_err_and(|e| e.to_string().contains("b.txt@USERS"))
        );
        let sweep = sweep_with_notes(text, "b.txt", Some(16.0)).expect("a sweep");
        assert_eq!(sweep.points, [(16.0, 274.18)]);
    }
}
