//! Which versions of an engine print the lines that a log has, where it does not name its version.

use super::facts::Facts;
use super::text::Doc;

/// A version of an engine.
type Version = (u32, u32, u32);

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

/// When a version of SGLang came out: (version, year and month).
const SGLANG_DATES: &[(Version, (u32, u32))] = &[
    ((0, 2, 0), (2024, 7)),
    ((0, 4, 0), (2024, 12)),
    ((0, 4, 6), (2025, 4)),
    ((0, 5, 3), (2025, 10)),
    ((0, 5, 13), (2026, 6)),
];

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
    }
    // Lines of two builds in one file say nothing.
    if from
        .zip(before)
        .is_some_and(|(from, before)| from.0 >= before.0)
    {
        return;
    }
    let month = month(doc).filter(|_| engine == "sglang");
    write(from, before, month, facts);
}

/// The first release that loads the draft before it sizes the pool.
const COUNTED: Version = (0, 5, 13);
/// The last one that did not.
const NOT_COUNTED: Version = (0, 5, 12);

/// Since 0.5.13 the draft is loaded before the pool is sized.
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

fn write(from: Seen, before: Seen, month: Option<((u32, u32), usize)>, facts: &mut Facts) {
    let show = |(a, b, c): Version| format!("{a}.{b}.{c}");
    let mut words = Vec::new();
    if let Some((version, _)) = from {
        words.push(format!("{} or later", show(version)));
    }
    if let Some((version, _)) = before {
        words.push(format!("before {}", show(version)));
    }
    if let Some(((year, month), _)) = month {
        words.push(format!("out by {year}-{month:02}"));
    }
    let line = [from.map(|f| f.1), before.map(|b| b.1), month.map(|m| m.1)];
    let Some(line) = line.into_iter().flatten().next() else {
        return;
    };
    let how = "by the lines it prints and their dates";
    facts.derive("engine_version_range", words.join(", "), line, how);
    let dated = month.map(|(month, _)| month);
    let released = |version: Version| {
        let known = SGLANG_DATES.iter().find(|(v, _)| *v == version);
        known.map(|(_, month)| *month)
    };
    let too_new = |month: (u32, u32)| {
        before.is_some_and(|(version, _)| released(version).is_some_and(|out| month >= out))
    };
    let too_old = |month: (u32, u32)| {
        from.is_some_and(|(version, _)| released(version).is_some_and(|out| month < out))
    };
    let taken = match (dated, before, from) {
        (Some(month), _, _) if !too_new(month) && !too_old(month) => {
            Some(format!("{}-{:02}", month.0, month.1))
        }
        (_, Some((version, _)), from) => Some(show(last_before(version, from.map(|from| from.0)))),
        (Some(_), None, Some((version, _))) => Some(show(version)),
        _ => None,
    };
    if let Some(taken) = taken {
        facts.derive("engine_version_taken", taken, line, how);
    }
}

/// The release to take for a log of before one of the versions that [`SIGNS`] name, and of `from` or
/// later.
fn last_before(version: Version, from: Option<Version>) -> Version {
    let last = SIGNS
        .iter()
        .find(|sign| sign.before == Some(version))
        .and_then(|sign| sign.last)
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
    fn a_draft_loaded_behind_the_pool_is_of_before_0_5_13() {
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
        assert_eq!(version.as_deref(), Some("0.5.12"));
        let (range, version) = taken(&format!("{target}{}{pool}", load(60.0, 58.0)));
        assert_eq!(range.as_deref(), Some("0.5.13 or later, out by 2026-08"));
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
        let dated = |version: &Version| SGLANG_DATES.iter().any(|(known, _)| known == version);
        let sglang = SIGNS.iter().filter(|sign| sign.engine == "sglang");
        let ends = sglang.filter_map(|sign| sign.before).chain([COUNTED]);
        for end in ends {
            assert!(
                dated(&end),
                "{end:?} has no date: a month cannot contradict it"
            );
        }
    }

    #[test]
    fn budget_lines_of_v0_are_of_their_versions() {
        let text = "Memory profiling results: total_gpu_memory=39.56GiB kv_cache_size=26.60GiB \
            gpu_memory_utilization=0.90\n";
        let range = "0.6.4 or later, before 0.7.0".to_string();
        assert_eq!(taken(text), (Some(range), Some("0.6.6".to_string())));
    }
}
