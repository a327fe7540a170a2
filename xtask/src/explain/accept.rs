//! What a log says of acceptance, in the unit it says it in, for `--accept LOG`.

use super::look_up::{self, AllPasses};
use super::text::{Doc, leading_number, number_after};
use super::{facts::Facts, facts_from_doc};

/// What was measured. All lengths count the bonus token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AcceptReading {
    /// Cumulative acceptance by position (vLLM): rate i is the share of drafts whose first i
    /// tokens were accepted. Mean over the intervals that the log prints, weighted by the tokens
    /// drafted where it prints counts.
    Rates(Vec<f64>),
    /// Mean accept length (tokens per target forward) at the depth drafted, where known.
    Length {
        /// Tokens per target forward, bonus included.
        accept_length: f64,
        /// Draft steps.
        depth: Option<u32>,
    },
    /// Totals: `accept_length = 1 + accepted / drafts`.
    Counts {
        /// Draft tokens accepted.
        accepted: f64,
        /// Draft tokens proposed.
        drafted: f64,
        /// Draft steps.
        depth: Option<u32>,
    },
}

/// Acceptance read from a log.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogAcceptance {
    /// The figures.
    pub(crate) reading: AcceptReading,
    /// Mean accept length that they amount to, bonus included.
    pub(crate) accept_length: f64,
    /// Draft steps, where the log says.
    pub(crate) depth: Option<u32>,
    /// Tokens verified per sequence (root included), where the log says.
    pub(crate) draft_tokens: Option<u32>,
    /// Tree width, where the log says.
    pub(crate) topk: Option<u32>,
    /// Intervals or lines averaged.
    pub(crate) intervals: usize,
    /// Verify passes behind it, where the log prints counts.
    pub(crate) passes: Option<f64>,
    /// Whether passes without a draft are not counted (vLLM).
    pub(crate) counts_drafts: bool,
    /// What the totals beside it say of all passes.
    pub(crate) all_passes: Option<AllPasses>,
    /// `file:line` of the last one.
    pub(crate) source: String,
    /// Why they are none of the model's: the server was told them, or has random weights.
    pub(crate) forced: Option<String>,
    /// What was left out and why.
    pub(crate) notes: Vec<String>,
    /// Tensor-parallel size of its server, where the log says.
    pub(crate) tp: Option<u32>,
    /// Tokens that a request held, where the log says.
    pub(crate) held_tokens: Option<f64>,
    /// Speeds by load of the same run.
    pub(crate) speeds: Vec<super::speeds::LoadSpeed>,
}

impl LogAcceptance {
    /// The depth that the log says, else the one said of it (`FILE@STEPS`); an error where the two differ.
    pub(crate) fn depth_or(&self, said: Option<u32>, name: &str) -> anyhow::Result<Option<u32>> {
        match (self.depth, said) {
            (Some(logged), Some(said)) if logged != said => Err(crate::input::error(format!(
                "--accept {name}@{said}: {name} itself is of {logged} draft step{}; leave @{said} out, or give \
                 the file of that run",
                if logged == 1 { "" } else { "s" }
            ))),
            (logged, said) => Ok(logged.or(said)),
        }
    }
}

/// Reads the acceptance in a log of SGLang, vLLM or a bench; an error in one line where it says
/// nothing of it.
pub(crate) fn accept_from_log(text: &str, name: &str) -> anyhow::Result<LogAcceptance> {
    let doc = Doc::new(text);
    let facts = facts_from_doc(&doc, text, name);
    let depth = whole(&facts, "spec_steps").or_else(|| whole(&facts, "spec_tokens"));
    let from = facts.run_line;
    let found = vllm_intervals(&doc, from, facts.number("spec_tokens"))
        .or_else(|| vllm_v0_counts(&doc, from))
        .or_else(|| sglang_lines(&doc, from))
        .or_else(|| counters(text, &facts));
    let found = match found {
        Some(found) => found,
        None => {
            // Of several bench results the facts are of the last, which may be a plain one.
            let names = ["accept_length", "bench_accept_length"];
            let told = names.iter().find(|told| facts.get(told).is_some());
            let told = told.ok_or_else(|| nothing_accepted(&facts, name))?;
            let fact = facts.get(told);
            let fact = fact.ok_or_else(|| nothing_accepted(&facts, name))?;
            let accept_length = facts.number(told).unwrap_or(1.0);
            let reading = AcceptReading::Length {
                accept_length,
                depth: None,
            };
            Found {
                passes: super::llamacpp::passes(&doc),
                ..Found::new(reading, accept_length, fact.line)
            }
        }
    };
    let reading = with_depth(found.reading, depth);
    let depth = depth.or(match &reading {
        AcceptReading::Rates(rates) => u32::try_from(rates.len()).ok(),
        AcceptReading::Counts { depth, .. } => *depth,
        AcceptReading::Length { depth, .. } => *depth,
    });
    let forced = super::forced::words(&facts);
    let said = forced
        .as_ref()
        .map(|why| format!("{name}: {why}: not measured of the model"));
    let source = facts.text("accept_length_source").unwrap_or_default();
    let page = source == "vllm counters";
    let all_passes = match page {
        true => look_up::of_page(text),
        false => look_up::of_lines(&doc, from),
    };
    let found = LogAcceptance {
        reading,
        accept_length: found.accept_length,
        depth,
        draft_tokens: whole(&facts, "spec_draft_tokens"),
        topk: whole(&facts, "spec_topk"),
        intervals: found.intervals,
        passes: found.passes,
        counts_drafts: page || facts.text("engine") == Some("vllm"),
        all_passes,
        source: format!("{name}:{}", found.line),
        notes: found.notes.into_iter().chain(said).collect(),
        forced,
        tp: whole(&facts, "tp"),
        held_tokens: ["held_tokens_per_request", "bench_held_tokens"]
            .iter()
            .find_map(|held| facts.number(held).filter(|tokens| *tokens > 0.0)),
        speeds: super::scenario::speeds_of_drafts(&facts),
    };
    Ok(match look_up::told(&facts) {
        true => found.of_look_up(),
        false => found,
    })
}

/// Why a file cannot be taken, and what to give instead.
fn nothing_accepted(facts: &Facts, name: &str) -> anyhow::Error {
    crate::input::error(match facts.sweep {
        Some(_) => format!(
            "--accept {name}: speeds without an accept length, and what a draft gains is not reckoned from \
             speeds alone; give the two servers' logs under these loads (--from-log SPECULATIVE.log \
             --baseline PLAIN.log), or bench outputs that print an accept length, or `--accept 2.3@3`"
        ),
        None => format!(
            "--accept {name}: no acceptance in it; it is printed while requests run \
             (SGLang `accept len`, vLLM `SpecDecoding metrics`), so give a log or the \
             /metrics of the server under load, or `--accept 2.3@3`"
        ),
    })
}

/// vLLM's counters on a page of `/metrics`.
fn counters(text: &str, facts: &Facts) -> Option<Found> {
    let (rates, length, drafts) = super::prometheus::rates(text)?;
    let line = facts.get("accept_length").map_or(1, |fact| fact.line);
    let notes = vec!["means since the server's start, warm-up included".to_string()];
    Some(Found {
        passes: Some(drafts),
        notes,
        ..Found::new(AcceptReading::Rates(rates), length, line)
    })
}

/// What lines of one form amount to.
struct Found {
    reading: AcceptReading,
    accept_length: f64,
    intervals: usize,
    passes: Option<f64>,
    line: usize,
    notes: Vec<String>,
}

impl Found {
    fn new(reading: AcceptReading, accept_length: f64, line: usize) -> Self {
        Self {
            reading,
            accept_length,
            intervals: 1,
            passes: None,
            line,
            notes: Vec::new(),
        }
    }
}

/// vLLM's speculation lines, summed up.
#[derive(Debug, Clone)]
pub(crate) struct VllmAcceptance {
    /// Whether the log prints it by position.
    pub(crate) by_position: bool,
    /// Mean accept length, bonus included.
    pub(crate) accept_length: f64,
    /// Positions drafted, where the lines say.
    pub(crate) depth: Option<u32>,
    /// Intervals averaged.
    pub(crate) intervals: usize,
    /// Line of the last.
    pub(crate) line: usize,
    /// Which metric.
    pub(crate) source: &'static str,
}

/// The acceptance in vLLM's lines of either generation, from a line on.
pub(crate) fn vllm_acceptance(
    doc: &Doc,
    from: usize,
    depth: Option<f64>,
) -> Option<VllmAcceptance> {
    let (found, source) = match vllm_intervals(doc, from, depth) {
        Some(found) => (found, "vllm mean acceptance length"),
        None => (
            vllm_v0_counts(doc, from)?,
            "vllm v0 emitted tokens over drafts",
        ),
    };
    let by_position = matches!(found.reading, AcceptReading::Rates(_));
    let depth = match found.reading {
        AcceptReading::Rates(rates) => u32::try_from(rates.len()).ok(),
        AcceptReading::Counts { depth, .. } | AcceptReading::Length { depth, .. } => depth,
    };
    Some(VllmAcceptance {
        accept_length: found.accept_length,
        depth,
        by_position,
        intervals: found.intervals,
        line: found.line,
        source,
    })
}

fn whole(facts: &Facts, name: &str) -> Option<u32> {
    let number = facts.number(name)?;
    (number.fract() == 0.0 && (0.0..=f64::from(u16::MAX)).contains(&number))
        .then_some(number as u32)
}

fn with_depth(reading: AcceptReading, known: Option<u32>) -> AcceptReading {
    match reading {
        AcceptReading::Length {
            accept_length,
            depth,
        } => AcceptReading::Length {
            accept_length,
            depth: depth.or(known),
        },
        other => other,
    }
}

/// Places behind a phrase, from a line on: an earlier start ran with other settings.
fn own<'a>(doc: &'a Doc, phrase: &'a str, from: usize) -> impl Iterator<Item = usize> + 'a {
    doc.after_all(phrase)
        .filter(move |at| doc.line_at(*at) >= from)
}

/// vLLM V1: `SpecDecoding metrics: Mean acceptance length: …, Accepted: N tokens, Drafted: N
/// tokens, Per-position acceptance rate: …`.
fn vllm_intervals(doc: &Doc, from: usize, depth: Option<f64>) -> Option<Found> {
    let mut sums: Vec<f64> = Vec::new();
    let (mut weight_sum, mut lengths, mut intervals, mut line) = (0.0, 0.0, 0, 0);
    let (mut tiny, mut passes) = (0, 0.0);
    for at in own(doc, "SpecDecoding metrics:", from) {
        let window = doc.window(at, 4000);
        let window = window.split("SpecDecoding metrics:").next().unwrap_or("");
        let rates = number_list_after(window, "Per-position acceptance rate:");
        let drafted = number_after(window, "Drafted:");
        let Some(length) = number_after(window, "Mean acceptance length:")
            .or_else(|| (!rates.is_empty()).then(|| 1.0 + rates.iter().sum::<f64>()))
            .or_else(|| {
                // 0.8: counts alone; the depth is among the server's arguments.
                let (accepted, drafted) = (number_after(window, "Accepted:")?, drafted?);
                let depth = depth.filter(|depth| *depth >= 1.0)?;
                (drafted > 0.0 && (0.0..=drafted).contains(&accepted))
                    .then(|| 1.0 + accepted * depth / drafted)
            })
        else {
            continue;
        };
        let positions = depth.unwrap_or(0.0).max(rates.len().max(1) as f64);
        if drafted.is_some_and(|n| n <= 2.0 * positions) {
            tiny += 1;
            continue;
        }
        if depth.is_some() || !rates.is_empty() {
            passes += drafted.unwrap_or(0.0) / positions;
        }
        let weight = drafted.unwrap_or(1.0);
        if sums.len() < rates.len() {
            sums.resize(rates.len(), 0.0);
        }
        for (sum, rate) in sums.iter_mut().zip(&rates) {
            *sum += weight * rate;
        }
        weight_sum += weight;
        lengths += weight * length;
        intervals += 1;
        line = doc.line_at(at);
    }
    if intervals == 0 || weight_sum <= 0.0 {
        return None;
    }
    let mean: Vec<f64> = sums.iter().map(|sum| sum / weight_sum).collect();
    let notes = if tiny > 0 {
        vec![format!("{tiny} intervals of one or two drafts left out")]
    } else {
        Vec::new()
    };
    let length = lengths / weight_sum;
    let reading = if mean.is_empty() {
        AcceptReading::Length {
            accept_length: length,
            depth: None,
        }
    } else {
        AcceptReading::Rates(mean)
    };
    Some(Found {
        intervals,
        passes: Some(passes).filter(|passes| *passes >= 1.0),
        notes,
        ..Found::new(reading, length, line)
    })
}

/// vLLM V0: running totals, so the last line counts. The acceptance rate of V0 counts tokens
/// after the first rejection; emitted tokens per draft is the accept length.
fn vllm_v0_counts(doc: &Doc, from: usize) -> Option<Found> {
    let at = own(doc, "Speculative metrics:", from).last()?;
    let window = doc.window(at, 600);
    let depth = number_after(window, "Number of speculative tokens:")?;
    let drafted = number_after(window, "Number of draft tokens:")?;
    let emitted = number_after(window, "Number of emitted tokens:")?;
    if depth < 1.0 || drafted <= 0.0 || emitted < 0.0 || depth > 1e4 {
        return None;
    }
    let drafts = drafted / depth;
    let length = emitted / drafts;
    let reading = AcceptReading::Counts {
        accepted: (emitted - drafts).max(0.0),
        drafted,
        depth: Some(depth as u32),
    };
    Some(Found {
        passes: Some(drafts),
        ..Found::new(reading, length, doc.line_at(at))
    })
}

/// SGLang decode lines: the mean over lines, weighted by the requests running.
fn sglang_lines(doc: &Doc, from: usize) -> Option<Found> {
    let (mut sum, mut weight_sum, mut count, mut line) = (0.0, 0.0, 0, 0);
    for at in own(doc, "Decode batch", from) {
        let window = doc.window(at, 600);
        let window = window.split(" batch").next().unwrap_or("");
        let Some(length) = number_after(window, "accept len:") else {
            continue;
        };
        let running = number_after(window, "#running-req:").unwrap_or(1.0);
        let weight = running.clamp(1.0, 1e6);
        sum += weight * length;
        weight_sum += weight;
        count += 1;
        line = doc.line_at(at);
    }
    if count == 0 {
        return None;
    }
    let length = sum / weight_sum;
    let reading = AcceptReading::Length {
        accept_length: length,
        depth: None,
    };
    Some(Found {
        intervals: count,
        ..Found::new(reading, length, line)
    })
}

/// `0.706, 0.488, 0.328` behind `key`.
fn number_list_after(text: &str, key: &str) -> Vec<f64> {
    let mut rates = Vec::new();
    let Some(mut rest) = text.find(key).and_then(|at| text.get(at + key.len()..)) else {
        return rates;
    };
    while let Some((value, tail)) = leading_number(rest) {
        rates.push(value);
        match tail.strip_prefix(',') {
            Some(next) if rates.len() < 256 => rest = next,
            _ => break,
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verify_passes_are_those_that_the_lines_of_an_engine_count() {
        let passes = |text: &str| accept_from_log(text, "f").ok().and_then(|a| a.passes);
        let line = "SpecDecoding metrics: Mean acceptance length: 2.31, Accepted: 612 tokens, Drafted: \
            1401 tokens, Per-position acceptance rate: 0.664, 0.405, 0.241\n";
        assert_eq!(passes(line), Some(467.0));
        assert_eq!(passes(&line.repeat(2)), Some(934.0));
        let v0 = "Speculative metrics: Number of speculative tokens: 2, Number of accepted tokens: 6455, \
            Number of draft tokens: 18802, Number of emitted tokens: 13783.";
        assert_eq!(passes(v0), Some(9401.0));
        let sglang =
            "Decode batch. #running-req: 8, #token: 900, accept len: 2.31, gen throughput: 9\n";
        assert_eq!(passes(sglang), None);
        let llama = "statistics draft-mtp: #calls(b,g,a) = 1 12 12, #gen drafts = 12, #acc drafts = 11, \
            #gen tokens = 33, #acc tokens = 26, dur(b,g,a) = 0.009, 95.186, 0.056 ms\n";
        assert_eq!(passes(llama), Some(12.0));
    }
}
