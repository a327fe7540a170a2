//! Which versions of an engine print the lines that a log has, where it does not name its version.

use super::arguments::{self, Version};
use super::facts::Facts;
use super::text::Doc;

/// A version and the line that shows it.
type Seen = Option<(Version, usize)>;

/// A line and the versions that print it.
struct Sign {
    engine: &'static str,
    phrase: &'static str,
    /// First version that prints it.
    from: Option<Version>,
    /// First version that no longer does.
    before: Option<Version>,
    /// The release whose rules are taken for a log that such a version did not print: the last one
    /// before it, of vLLM's V0 the last that had it as its default.
    last: Option<Version>,
}

const fn since(engine: &'static str, phrase: &'static str, from: Version) -> Sign {
    Sign {
        engine,
        phrase,
        from: Some(from),
        before: None,
        last: None,
    }
}

const fn until(engine: &'static str, phrase: &'static str, before: Version, last: Version) -> Sign {
    Sign {
        engine,
        phrase,
        from: None,
        before: Some(before),
        last: Some(last),
    }
}

/// From the engines' sources: SGLang's scheduler_metrics_mixin.py, model_runner.py and their
/// predecessors, vLLM's worker.py, gpu_worker.py, kv_cache_utils.py.
const SIGNS: &[Sign] = &[
    until("sglang", "[gpu=0", (0, 4, 0), (0, 3, 6)),
    until("sglang", "Decode batch. ", (0, 5, 3), (0, 5, 2)),
    since("sglang", "Decode batch, ", (0, 5, 3)),
    since("sglang", "Decode batch [", (0, 5, 3)),
    since("sglang", "accept rate:", (0, 5, 3)),
    since("sglang", "cuda graph:", (0, 4, 6)),
    since("sglang", "Load weight end. elapsed=", (0, 5, 3)),
    since("sglang", "minimum viable", (0, 5, 13)),
    since("vllm", "Memory profiling results:", (0, 6, 4)),
    until("vllm", "Memory profiling results:", (0, 7, 0), (0, 6, 6)),
    since("vllm", "the current vLLM instance can use", (0, 7, 0)),
    until(
        "vllm",
        "the current vLLM instance can use",
        (0, 11, 0),
        (0, 8, 5),
    ),
    until("vllm", "gpu_executor.py", (0, 7, 0), (0, 6, 6)),
    until("vllm", "llm_engine.py:70]", (0, 2, 0), (0, 1, 7)),
    since("vllm", "Available KV cache memory:", (0, 8, 0)),
    since("vllm", "GPU KV cache size:", (0, 8, 0)),
    since("vllm", "(EngineCore_", (0, 10, 1)),
    since("vllm", "(APIServer pid=", (0, 10, 1)),
    since("vllm", "GiB memory and", (0, 12, 0)),
];

/// The release of SGLang from which on its flags go by the names that they have now: the batches of its
/// graphs, and what a draft on a hybrid wants.
const RENAMED: Version = (0, 5, 14);

/// Sets `engine_version_range` and, where it settles which rules hold, `engine_version_taken`.
pub(super) fn read(doc: &Doc, facts: &mut Facts) {
    let Some(engine) = facts.text("engine").map(str::to_string) else {
        return;
    };
    if facts.get("engine_version").is_some() {
        return;
    }
    let (mut from, mut before): (Seen, Seen) = (None, None);
    let signs: Vec<&Sign> = SIGNS.iter().filter(|sign| sign.engine == engine).collect();
    let phrases: Vec<&str> = signs.iter().map(|sign| sign.phrase).collect();
    let mut seen = vec![false; signs.len()];
    for (at, _, index) in doc.find_all(&phrases) {
        let (Some(sign), Some(known)) = (signs.get(index), seen.get_mut(index)) else {
            continue;
        };
        if std::mem::replace(known, true) {
            continue;
        }
        let line = doc.line_at(at);
        if let Some(version) = sign
            .from
            .filter(|v| from.is_none_or(|(known, _)| *v > known))
        {
            from = Some((version, line));
        }
        if let Some(version) = sign
            .before
            .filter(|v| before.is_none_or(|(known, _)| *v < known))
        {
            before = Some((version, line));
        }
    }
    if engine == "sglang" {
        draft_order(facts, &mut from, &mut before);
        by_arguments(facts, &mut from, &mut before);
    }
    let month = month(doc).filter(|_| engine == "sglang");
    let older = month.zip(arguments::built(RENAMED));
    facts.version_open = engine == "sglang"
        && before.is_none()
        && from.is_none_or(|(from, _)| from < RENAMED)
        && older.is_none_or(|((month, _), renamed)| month >= renamed);
    // Lines of two builds in one file say nothing.
    if from
        .zip(before)
        .is_some_and(|(from, before)| from.0 >= before.0)
    {
        return;
    }
    write(from, before, month, facts);
}

/// The first release that loads the draft before it sizes the pool.
const COUNTED: Version = (0, 5, 14);
/// The last one that did not.
const NOT_COUNTED: Version = (0, 5, 13);

/// Since 0.5.14 the draft is loaded before the pool is sized.
fn draft_order(facts: &Facts, from: &mut Seen, before: &mut Seen) {
    match (facts.get("draft_weights_gib"), facts.get("kv_gib")) {
        (Some(draft), Some(pool)) if draft.line < pool.line => {
            *from = Some((COUNTED, draft.line)).max(*from);
        }
        (Some(draft), Some(_)) => {
            let old = before.unwrap_or((COUNTED, draft.line));
            *before = Some(old.min((COUNTED, draft.line)));
        }
        _ => {}
    }
}

/// A server prints all of its arguments.
fn by_arguments(facts: &Facts, from: &mut Seen, before: &mut Seen) {
    let Some(((first, end), line)) = facts.printed_by else {
        return;
    };
    *from = first.map(|first| (first, line)).max(*from);
    let both = [end.map(|end| (end, line)), *before];
    *before = both.into_iter().flatten().min();
}

fn write(from: Seen, before: Seen, month: Option<((u32, u32), usize)>, facts: &mut Facts) {
    let show = |(a, b, c): Version| format!("{a}.{b}.{c}");
    let built = |seen: Seen| arguments::built(seen?.0);
    // A build from before the end still runs later: its date says nothing.
    let dated = month.filter(|(month, _)| built(before).is_none_or(|end| *month < end));
    let mut words = Vec::new();
    if let Some((version, _)) = from {
        words.push(format!("{} or later", show(version)));
    }
    if let Some((version, _)) = before {
        words.push(format!("before {}", show(version)));
    }
    if let Some(((year, month), _)) = dated {
        words.push(format!("out by {year}-{month:02}"));
    }
    let line = [before.map(|b| b.1), from.map(|f| f.1), dated.map(|m| m.1)];
    let Some(line) = line.into_iter().flatten().next() else {
        return;
    };
    let how = "by the lines it prints and their dates";
    facts.derive("engine_version_range", words.join(", "), line, how);
    let last = before.map(|(end, _)| last_before(end, from.map(|from| from.0)));
    let first = from.map(|from| from.0);
    let taken = match (dated, last, first) {
        (_, Some(last), Some(first)) if first == last => Some(show(last)),
        (Some((month, _)), _, Some(first)) if built(from).is_some_and(|out| month <= out) => {
            Some(show(first))
        }
        (Some(((year, month), _)), _, _) => Some(format!("{year}-{month:02}")),
        (None, last, _) => last.map(show),
    };
    if let Some(taken) = taken {
        facts.derive("engine_version_taken", taken, line, how);
    }
}

/// The release to take for a log of before one of the versions that [`SIGNS`] name or the arguments
/// show, and of `from` or later.
fn last_before(version: Version, from: Option<Version>) -> Version {
    let signs = SIGNS.iter().find(|sign| sign.before == Some(version));
    let last = signs
        .and_then(|sign| sign.last)
        .or_else(|| arguments::last_before(version))
        .unwrap_or(NOT_COUNTED);
    from.map_or(last, |from| last.max(from))
}

/// The year and month of the first line stamped `[2025-09-11 10:25:43`, and its line.
fn month(doc: &Doc) -> Option<((u32, u32), usize)> {
    const LOOKED_AT: usize = 2000;
    doc.lines.iter().take(LOOKED_AT).find_map(|(number, line)| {
        let at = line.find("[20")?;
        let stamp = line.get(at + 1..at + 12)?;
        let mut parts = stamp.split(['-', ' ', 'T']);
        let figure = |part: Option<&str>| part?.parse::<u32>().ok();
        let (year, month) = (figure(parts.next())?, figure(parts.next())?);
        let day = figure(parts.next())?;
        let good = (2023..2100).contains(&year) && (1..=12).contains(&month) && day <= 31;
        good.then_some(((year, month), *number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::facts_from_text;

    fn taken(text: &str) -> (Option<String>, Option<String>) {
        let facts = facts_from_text(text, "f");
        let word = |name: &str| facts.text(name).map(str::to_string);
        (word("engine_version_range"), word("engine_version_taken"))
    }

    #[test]
    fn a_log_without_a_version_is_dated_by_its_lines() {
        let decode = "[2025-09-11 10:26:22 TP0] Decode batch. #running-req: 1, #token: 48, token \
            usage: 0.00, cuda graph: True, gen throughput (token/s): 1.88, #queue-req: 0,\n";
        let (range, version) = taken(decode);
        let words = "0.4.6 or later, before 0.5.3, out by 2025-09";
        assert_eq!(range.as_deref(), Some(words));
        assert_eq!(version.as_deref(), Some("2025-09"));
        // An old build that still runs: its lines win over the date.
        let (_, version) = taken(&decode.replace("2025-09", "2026-08"));
        assert_eq!(version.as_deref(), Some("0.5.2"));
        let named = format!("sglang version: 0.5.1\n{decode}");
        assert_eq!(taken(&named), (None, None));
    }

    #[test]
    fn a_draft_loaded_behind_the_pool_is_of_before_0_5_14() {
        let pool = "[2026-08-01 10:00:02] KV Cache is allocated. #tokens: 1000, KV size: 1.00 GB\n\
            [2026-08-01 10:00:02] Memory pool end. avail mem=50.00 GB\n";
        let load = |before: f64, after: f64| {
            format!(
                "[2026-08-01 10:00:01] Load weight begin. avail mem={before} GB\n\
                 [2026-08-01 10:00:01] Load weight end. type=X, avail mem={after} GB, mem usage={} GB.\n",
                before - after
            )
        };
        let (target, draft) = (load(90.0, 60.0), load(50.0, 48.0));
        let (_, version) = taken(&format!("{target}{pool}{draft}"));
        assert_eq!(version.as_deref(), Some("0.5.13"));
        let (range, version) = taken(&format!("{target}{}{pool}", load(60.0, 58.0)));
        assert_eq!(range.as_deref(), Some("0.5.14 or later, out by 2026-08"));
        assert_eq!(version.as_deref(), Some("2026-08"));
    }

    #[test]
    fn the_version_taken_prints_every_line_that_was_seen() {
        let before: Vec<&Sign> = SIGNS.iter().filter(|sign| sign.before.is_some()).collect();
        for until in &before {
            let (end, last) = (
                until.before.expect("an end"),
                until.last.expect("a release"),
            );
            assert!(last < end, "{}", until.phrase);
            // The table is looked up by the version: it says one release for each.
            let same = before.iter().filter(|sign| sign.before == until.before);
            for sign in same {
                assert_eq!(sign.last, until.last, "{}", until.phrase);
            }
            for since in SIGNS.iter().filter(|sign| sign.engine == until.engine) {
                let Some(from) = since.from.filter(|from| *from < end) else {
                    continue;
                };
                let taken = last_before(end, Some(from));
                assert!(
                    from <= taken && taken < end,
                    "{} and {}",
                    until.phrase,
                    since.phrase
                );
            }
        }
        assert!(NOT_COUNTED < COUNTED && last_before(COUNTED, None) == NOT_COUNTED);
        let sglang = SIGNS.iter().filter(|sign| sign.engine == "sglang");
        let ends = sglang.filter_map(|sign| sign.before).chain([COUNTED]);
        for end in ends {
            assert!(
                arguments::built(end).is_some(),
                "{end:?} has no date: a month cannot contradict it"
            );
        }
    }

    #[test]
    fn a_sglang_log_is_dated_by_the_fields_of_its_server_arguments() {
        let log = |fields: &str, stamp: &str| {
            format!(
                "[{stamp} 09:00:01] server_args=ServerArgs(model_path='a/b', mem_fraction_static=0.8, \
                 tp_size=1{fields})\n[{stamp} 09:01:01] Decode batch, #running-req: 1, #token: 48\n"
            )
        };
        let open = |text: &str| facts_from_text(text, "f").version_open;
        let old = log(
            ", cuda_graph_max_bs=512, disable_radix_cache=False",
            "2026-11-30",
        );
        let (range, version) = taken(&old);
        assert_eq!(range.as_deref(), Some("0.5.3 or later, before 0.5.14"));
        assert_eq!(version.as_deref(), Some("0.5.13"));
        assert!(!open(&old));
        // Nothing that a release lost: it may be any, and its flags have had two names.
        let any = log("", "2026-11-30");
        let (range, version) = taken(&any);
        assert_eq!(range.as_deref(), Some("0.5.3 or later, out by 2026-11"));
        assert_eq!(version.as_deref(), Some("2026-11"));
        assert!(open(&any));
        let new = log(", cuda_graph_config={}", "2026-06-30");
        assert_eq!(taken(&new).1.as_deref(), Some("0.5.14"));
        assert!(!open(&new));
        // Another start in the same file says nothing of this one.
        let both = format!("{}{any}", log(", cuda_graph_max_bs=512", "2026-11-30"));
        assert!(open(&both), "{:?}", taken(&both));
    }

    #[test]
    fn budget_lines_of_v0_are_of_their_versions() {
        let text = "Memory profiling results: total_gpu_memory=39.56GiB kv_cache_size=26.60GiB \
            gpu_memory_utilization=0.90\n";
        let range = "0.6.4 or later, before 0.7.0".to_string();
        assert_eq!(taken(text), (Some(range), Some("0.6.6".to_string())));
    }
}
