//! What collectors of logs put around a line: compose and rank names, journal and container
//! stamps, JSON records.

use serde_json::{Map, Value};

use super::strip_escapes;

type Line = (usize, String);

/// Nested wrappers taken off a line: a journal around compose around a container's stamp.
const MOST_LAYERS: usize = 4;

/// The lines as the program printed them, each with the number of the line it was in.
pub(super) fn unwrapped(lines: Vec<Line>) -> Vec<Line> {
    let mut plain: Vec<Line> = Vec::with_capacity(lines.len());
    for (number, line) in lines {
        match record_text(&line) {
            Some(text) => plain.extend(pieces(number, &text)),
            None => plain.push((number, line)),
        }
    }
    for (_, line) in &mut plain {
        let stamped = without_stamps(line);
        if stamped.len() < line.len() {
            *line = stamped.to_string();
        }
    }
    if let Some(mark) = common_mark(&plain) {
        for (_, line) in &mut plain {
            if let Some((_, rest)) = labelled(line, mark) {
                *line = without_stamps(rest).to_string();
            }
        }
    }
    plain.retain(|(_, line)| !line.trim().is_empty());
    plain
}

/// Names told apart by [`by_name`].
const MOST_NAMES: usize = 16;

/// A text that collects several programs' output, each line behind a name (`vllm-1  | …`,
/// `[pod/vllm-0/vllm] …`), taken apart: the name and the text with the others' lines left empty, so
/// that line numbers stay. Empty where lines have no names, or one name.
pub(crate) fn by_name(text: &str) -> Vec<(&str, String)> {
    let named = |line| match labelled(line, Mark::Bar) {
        Some((name, _)) => Some(name),
        None => pod_tag(line).and_then(|rest| line.get(5..line.len() - rest.len() - 2)),
    };
    let first = text.lines().find(|line| !line.trim().is_empty());
    if first.and_then(named).is_none() {
        return Vec::new();
    }
    let mut names: Vec<&str> = Vec::new();
    let (mut lines, mut marked) = (0, 0);
    for line in text.lines() {
        lines += 1;
        let Some(name) = named(line) else { continue };
        marked += 1;
        if !names.contains(&name) {
            names.push(name);
            if names.len() > MOST_NAMES {
                return Vec::new();
            }
        }
    }
    if names.len() < 2 || marked * 10 < lines * 9 {
        return Vec::new();
    }
    let own = |name: &str| {
        let mut out = String::with_capacity(text.len() / names.len());
        for line in text.lines() {
            if named(line).is_none_or(|other| other == name) {
                out.push_str(line);
            }
            out.push('\n');
        }
        out
    };
    names.iter().map(|name| (*name, own(name))).collect()
}

fn pieces(number: usize, text: &str) -> Vec<Line> {
    text.split(['\n', '\r'])
        .map(|piece| (number, strip_escapes(piece)))
        .filter(|(_, piece)| !piece.trim().is_empty())
        .collect()
}

/// The message in a collector's JSON record: Docker's and Kubernetes' `{"log": …, "stream": …}`,
/// journald's `{"MESSAGE": …, "_PID": …}`, structured loggers' `{"message": …, "level": …}`.
fn record_text(line: &str) -> Option<String> {
    const TEXTS: [&str; 6] = ["log", "MESSAGE", "message", "msg", "textPayload", "line"];
    const BESIDE: [&str; 14] = [
        "stream",
        "time",
        "timestamp",
        "@timestamp",
        "ts",
        "level",
        "severity",
        "kubernetes",
        "_PID",
        "PRIORITY",
        "__REALTIME_TIMESTAMP",
        "container_name",
        "labels",
        "asctime",
    ];
    let trimmed = line.trim();
    if !trimmed.starts_with('{') || !trimmed.ends_with('}') {
        return None;
    }
    let quoted = |key: &&str| trimmed.contains(&format!("\"{key}\""));
    if !(TEXTS.iter().any(quoted) && BESIDE.iter().any(quoted)) {
        return None;
    }
    let record: Map<String, Value> = serde_json::from_str(trimmed).ok()?;
    if !BESIDE.iter().any(|key| record.contains_key(*key)) {
        return None;
    }
    TEXTS.iter().find_map(|key| match record.get(*key)? {
        Value::String(text) => Some(text.clone()),
        // journald writes a message with colours as its bytes.
        Value::Array(bytes) => {
            let bytes: Option<Vec<u8>> = bytes
                .iter()
                .map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()))
                .collect();
            bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        }
        _ => None,
    })
}

/// Without the stamps that a line can be told by alone.
fn without_stamps(line: &str) -> &str {
    let mut rest = line;
    for _ in 0..MOST_LAYERS {
        let inner = mpi_tag(rest)
            .or_else(|| rank_tag(rest))
            .or_else(|| job_tag(rest))
            .or_else(|| pod_tag(rest))
            .or_else(|| container_stamp(rest))
            .or_else(|| journal_stamp(rest));
        match inner {
            Some(inner) => rest = inner,
            None => break,
        }
    }
    rest
}

/// `[1,0]<stdout>:` of mpirun.
fn mpi_tag(line: &str) -> Option<&str> {
    let inside = line.trim_start().strip_prefix('[')?;
    let (job, rest) = inside.split_once(']')?;
    let digits = |c: char| c.is_ascii_digit() || c == ',';
    if job.is_empty() || job.len() > 24 || !job.chars().all(digits) {
        return None;
    }
    let rest = rest
        .strip_prefix("<stdout>:")
        .or_else(|| rest.strip_prefix("<stderr>:"));
    rest.map(|rest| rest.strip_prefix(' ').unwrap_or(rest))
}

/// `[rank0]: ` and `[default0]:` of torchrun.
fn rank_tag(line: &str) -> Option<&str> {
    let inside = line
        .strip_prefix("[rank")
        .or_else(|| line.strip_prefix("[default"))?;
    let (rank, rest) = inside.split_once("]:")?;
    let digits = !rank.is_empty() && rank.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| rest.strip_prefix(' ').unwrap_or(rest))
}

/// `job<TAB>step<TAB>2025-09-12T07:27:14.1234567Z ` of a CI's downloaded log; the stamp stays.
fn job_tag(line: &str) -> Option<&str> {
    let mut fields = line.splitn(3, '\t');
    let (job, step, rest) = (fields.next()?, fields.next()?, fields.next()?);
    let short = job.len() < 120 && step.len() < 120;
    let rest = rest.trim_start_matches('\u{feff}');
    (short && container_stamp(rest).is_some()).then_some(rest)
}

/// `[pod/vllm-0/vllm] ` of kubectl.
fn pod_tag(line: &str) -> Option<&str> {
    let inside = line.strip_prefix("[pod/")?;
    inside.split_once("] ").map(|(_, rest)| rest)
}

/// `2025-11-29T18:29:32.123456789Z `, perhaps with `stdout F ` behind it.
fn container_stamp(line: &str) -> Option<&str> {
    let (stamp, rest) = line.split_once(' ')?;
    let bytes = stamp.as_bytes();
    let shape = b"0000-00-00T00:00:00";
    let like = shape.iter().zip(bytes).all(|(want, have)| match want {
        b'0' => have.is_ascii_digit(),
        other => other == have,
    });
    let tail = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | ':' | '+' | '-' | 'Z');
    if bytes.len() < shape.len() || !like || !stamp.chars().skip(shape.len()).all(tail) {
        return None;
    }
    let streams = ["stdout F ", "stderr F ", "stdout P ", "stderr P "];
    let inner = streams.iter().find_map(|mark| rest.strip_prefix(*mark));
    Some(inner.unwrap_or(rest))
}

/// `Nov 29 18:29:32 host vllm[123]: `.
fn journal_stamp(line: &str) -> Option<&str> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    if !MONTHS.iter().any(|month| line.starts_with(month)) {
        return None;
    }
    let (stamp, rest) = (line.get(..16)?, line.get(16..)?);
    let clock = stamp.get(7..15)?;
    let clocked = clock.bytes().zip(b"00:00:00").all(|(have, want)| {
        if *want == b'0' {
            have.is_ascii_digit()
        } else {
            have == *want
        }
    });
    if !clocked || !stamp.ends_with(' ') {
        return None;
    }
    let (_host, rest) = rest.split_once(' ')?;
    let (program, rest) = rest.split_once(": ")?;
    (program.len() < 80 && !program.contains(' ')).then_some(rest)
}

/// How a collector sets a name apart from the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// `vllm-1  | line`.
    Bar,
    /// `0: line`.
    Colon,
}

/// A name at the beginning, and the line behind its mark.
fn labelled(line: &str, mark: Mark) -> Option<(&str, &str)> {
    let (name, rest) = match mark {
        Mark::Bar => line.split_once('|')?,
        Mark::Colon => line.split_once(':')?,
    };
    let blank = |c: char| c == ' ';
    let name = if mark == Mark::Bar {
        name.trim_end_matches(blank)
    } else {
        name
    };
    let good = |c: char| match mark {
        Mark::Bar => c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'),
        // Words with a colon are labels and functions; `srun -l` writes rank numbers.
        Mark::Colon => c.is_ascii_digit(),
    };
    let fits = !name.is_empty() && name.len() < 64 && name.chars().all(good);
    let rest = rest.strip_prefix(' ').or(rest.is_empty().then_some(""))?;
    fits.then_some((name, rest))
}

/// The mark by which nearly every line is set apart from one of few names.
fn common_mark(lines: &[Line]) -> Option<Mark> {
    const LEAST_LINES: usize = 6;
    [Mark::Bar, Mark::Colon].into_iter().find(|mark| {
        let mut names: Vec<&str> = Vec::new();
        let mut marked = 0;
        for (_, line) in lines {
            let Some((name, _)) = labelled(line, *mark) else {
                continue;
            };
            marked += 1;
            if !names.contains(&name) {
                names.push(name);
                if names.len() > MOST_NAMES {
                    return false;
                }
            }
        }
        marked >= LEAST_LINES && marked * 10 >= lines.len() * 9 && names.len() * 3 <= marked
    })
}

#[cfg(test)]
mod tests {
    use super::super::Doc;

    fn lines(text: &str) -> Vec<String> {
        Doc::new(text)
            .lines
            .into_iter()
            .map(|line| line.1)
            .collect()
    }

    #[test]
    fn collectors_wrappers_are_taken_off() {
        for wrapped in [
            "Nov 29 18:29:32 box vllm[812]: Max ITL (ms): 3.0",
            "2025-11-29T18:29:32.123456789Z Max ITL (ms): 3.0",
            "2025-11-29T18:29:32.123+01:00 stderr F Max ITL (ms): 3.0",
            "[pod/vllm-0/vllm] Max ITL (ms): 3.0",
            "[1,0]<stdout>:Max ITL (ms): 3.0",
            "[rank0]: Max ITL (ms): 3.0",
            "bench\tRun it\t2025-11-29T18:29:32.1234567Z Max ITL (ms): 3.0",
            r#"{"log":"Max ITL (ms): 3.0\n","stream":"stderr","time":"2025-11-29T18:29:32Z"}"#,
            r#"{"_PID":"8","MESSAGE":[27,91,51,54,109,77,97,120,32,73,84,76,32,40,109,115,41,58,32,51,46,48]}"#,
        ] {
            assert_eq!(lines(wrapped), ["Max ITL (ms): 3.0"], "{wrapped}");
        }
    }

    #[test]
    fn a_compose_or_rank_name_before_every_line_is_taken_off() {
        for mark in ["sglang-1  | ", "0: "] {
            let text = format!("{mark}a b\n").repeat(8);
            assert_eq!(lines(&text), vec!["a b".to_string(); 8]);
        }
        let labels =
            "Mean TTFT (ms): 3\nMean ITL (ms): 4\nConcurrency: 1\nA: 1\nB: 2\nC: 3\nD: 4\n";
        assert_eq!(lines(labels)[2], "Concurrency: 1");
    }

    #[test]
    fn a_json_result_is_no_log_record() {
        let text = r#"{"date": "x", "request_throughput": 1.0, "output_throughput": 5.0}"#;
        assert_eq!(lines(text), [text]);
    }
}
