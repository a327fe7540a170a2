//! Small languages of the flags: `32k`, `1,2,4`, `2.3@3`, `rates:.65,.40`, `sglang@0.5.9`, `1..8`.

use crate::input;

/// Largest context and list entry taken: beyond this a value is a slip of the keyboard.
pub(crate) const MAX_TOKENS: u64 = 100_000_000;
/// Largest number of requests at a time.
const MAX_CONCURRENCY: u32 = 100_000;
/// Longest list taken from one flag.
const MAX_LIST: usize = 256;

/// A count with an optional `k`, `m` or `g` (powers of 1024): `32k` is 32768.
pub(crate) fn count(flag: &str, text: &str) -> anyhow::Result<u64> {
    let trimmed = text.trim().to_ascii_lowercase();
    let (digits, shift) = match trimmed.as_bytes().last() {
        Some(b'k') => (&trimmed[..trimmed.len() - 1], 10),
        Some(b'm') => (&trimmed[..trimmed.len() - 1], 20),
        Some(b'g') => (&trimmed[..trimmed.len() - 1], 30),
        _ => (trimmed.as_str(), 0),
    };
    let cleaned = digits.replace(['_', ','], "");
    let value: u64 = cleaned.parse().map_err(|_| {
        input::error(format!(
            "{flag} {text}: not a count; give a whole number such as 32768 or 32k"
        ))
    })?;
    value
        .checked_mul(1 << shift)
        .ok_or_else(|| input::error(format!("{flag} {text}: too large")))
}

/// A count of tokens, for flags that are numbers only.
pub(crate) fn tokens(text: &str) -> Result<u64, String> {
    count("", text).map_err(|_| "not a whole number of 0 or more (32k is 32768)".to_string())
}

/// Tokens of context: a count from 0 up.
pub(crate) fn context(flag: &str, text: &str) -> anyhow::Result<u64> {
    let tokens = count(flag, text)?;
    if tokens > MAX_TOKENS {
        return Err(input::error(format!(
            "{flag} {text}: more than {MAX_TOKENS} tokens; give the context one request holds"
        )));
    }
    Ok(tokens)
}

/// Loads, rising, and the share of time at each where a distribution was given.
pub(crate) type Loads = (Vec<u32>, Option<Vec<f64>>);

/// Requests at a time: a list of counts from 1 up, sorted, without repeats. With a share behind
/// each (`1:60,8:30,64:10`, any scale) it is a distribution of load, and the shares are returned.
pub(crate) fn concurrency(flag: &str, text: &str) -> anyhow::Result<Loads> {
    let mut loads: Vec<(u32, Option<f64>)> = Vec::new();
    for part in split_list(flag, text, text)? {
        if part.contains('-') && !part.starts_with('-') || part.contains("..") {
            return Err(input::error(format!(
                "{flag} {text}: {part} is a range; list the loads, such as 1,4,16,64"
            )));
        }
        let (users, share) = match part.split_once(':') {
            Some((users, share)) => (users.trim(), Some(share.trim())),
            None => (part, None),
        };
        let users = match u32::try_from(count(flag, users)?) {
            Ok(v) if (1..=MAX_CONCURRENCY).contains(&v) => v,
            _ => {
                return Err(input::error(format!(
                    "{flag} {text}: {part} is not between 1 and {MAX_CONCURRENCY}"
                )));
            }
        };
        let share = share.map(|share| {
            share
                .parse::<f64>()
                .ok()
                .filter(|s| s.is_finite() && *s > 0.0)
                .ok_or_else(|| {
                    input::error(format!(
                        "{flag} {text}: the share in {part} is not a positive number"
                    ))
                })
        });
        let share = share.transpose()?;
        if share.is_some() && loads.iter().any(|load| load.0 == users) {
            return Err(input::error(format!(
                "{flag} {text}: {users} stands twice; give each load one share"
            )));
        }
        loads.push((users, share));
    }
    loads.sort_by_key(|load| load.0);
    loads.dedup_by_key(|load| load.0);
    let given = loads.iter().filter(|load| load.1.is_some()).count();
    if given != 0 && given != loads.len() {
        return Err(input::error(format!(
            "{flag} {text}: give a share to every load (1:60,8:40) or to none"
        )));
    }
    let shares: Option<Vec<f64>> = loads.iter().map(|load| load.1).collect();
    Ok((loads.into_iter().map(|load| load.0).collect(), shares))
}

/// Byte sizes: a list of counts from 1 up.
pub(crate) fn byte_sizes(flag: &str, text: &str) -> anyhow::Result<Vec<u64>> {
    let mut values = Vec::new();
    for part in split_list(flag, text, text)? {
        let lower = part.to_ascii_lowercase();
        let number = ["ib", "b"]
            .iter()
            .find_map(|unit| lower.strip_suffix(unit))
            .unwrap_or(&lower);
        let number = number.trim_end();
        let value = match fraction_of_a_unit(number) {
            Some(bytes) => bytes,
            None => count(flag, number)?,
        };
        if value == 0 || value > 1 << 40 {
            return Err(input::error(format!(
                "{flag} {text}: {part} is not between 1 byte and 1 TiB"
            )));
        }
        values.push(value);
    }
    Ok(values)
}

/// `10.4k` or `1.5m`, as sizes are printed, down to the whole byte.
fn fraction_of_a_unit(number: &str) -> Option<u64> {
    let shift = match number.as_bytes().last()? {
        b'k' => 10,
        b'm' => 20,
        b'g' => 30,
        _ => return None,
    };
    let digits = number.get(..number.len() - 1)?.trim_end();
    let value: f64 = digits.contains('.').then(|| digits.parse().ok())??;
    (0.0..1e6)
        .contains(&value)
        .then(|| (value * f64::from(1_u32 << shift)) as u64)
}

/// GPU numbers: a list such as `0,1,4,5`.
pub(crate) fn gpu_list(flag: &str, text: &str) -> anyhow::Result<Vec<usize>> {
    let mut values = Vec::new();
    for part in split_list(flag, text, text)? {
        let value: usize = part
            .parse()
            .map_err(|_| input::error(format!("{flag} {text}: {part} is not a GPU number")))?;
        if values.contains(&value) {
            return Err(input::error(format!("{flag} {text}: {part} stands twice")));
        }
        values.push(value);
    }
    Ok(values)
}

/// Depths: a range `1..8` (both ends included), a single number, or a list `1,2,4`, rising.
pub(crate) fn depths(flag: &str, text: &str) -> anyhow::Result<Vec<u32>> {
    let wrong = || {
        input::error(format!(
            "{flag} {text}: give depths as 1..8 or 1,2,4, from 1 to at most 64"
        ))
    };
    if text.contains(',') {
        let list: Result<Vec<u32>, _> = split_list(flag, text, text)?
            .into_iter()
            .map(str::parse)
            .collect();
        let mut list = list.map_err(|_| wrong())?;
        list.sort_unstable();
        list.dedup();
        return match (list.first(), list.last()) {
            (Some(1..), Some(..=64)) => Ok(list),
            _ => Err(wrong()),
        };
    }
    let (low, high) = text.split_once("..").unwrap_or((text, text));
    let low: u32 = low.trim().parse().map_err(|_| wrong())?;
    let high: u32 = high
        .trim()
        .trim_start_matches('=')
        .parse()
        .map_err(|_| wrong())?;
    if low < 1 || high > 64 || low > high {
        return Err(wrong());
    }
    Ok((low..=high).collect())
}

/// The files that commas join; one whose own name has a comma is taken as it is.
pub(super) fn files(path: &std::path::Path) -> Vec<std::path::PathBuf> {
    let text = path.to_string_lossy();
    if !text.contains(',') || path.exists() {
        return vec![path.to_path_buf()];
    }
    let parts = text.split(',').map(str::trim);
    parts
        .filter(|p| !p.is_empty())
        .map(std::path::PathBuf::from)
        .collect()
}

/// What `--accept` was given.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AcceptFlag {
    /// Accept length (bonus token included) measured at a depth of drafting.
    Length {
        /// Tokens a cycle, bonus included.
        accept_length: f64,
        /// Draft steps of that measurement.
        depth: u32,
    },
    /// Cumulative acceptance rate by position, as vLLM prints.
    Rates(Vec<f64>),
    /// Verify passes and the drafts accepted by position.
    Counts {
        /// Verify passes.
        cycles: u64,
        /// Accepted at each position.
        accepted: Vec<u64>,
    },
    /// A log file to read.
    File(std::path::PathBuf),
}

/// Reads `2.3@3`, `rates:.65,.40,.24` or a file name.
pub(crate) fn accept(flag: &str, text: &str) -> anyhow::Result<AcceptFlag> {
    if let Some(list) = text.strip_prefix("rates:") {
        return accept_rates(flag, text, list);
    }
    if let Some(list) = text.strip_prefix("alphas:") {
        return accept_alphas(flag, text, list);
    }
    if let Some(list) = text.strip_prefix("counts:") {
        return accept_counts(flag, text, list);
    }
    if let Some((length, depth)) = text.split_once('@')
        && let (Ok(accept_length), Ok(depth)) =
            (length.trim().parse::<f64>(), depth.trim().parse::<u32>())
    {
        if !(1..=64).contains(&depth) {
            return Err(input::error(format!(
                "{flag} {text}: depth {depth} is not between 1 and 64"
            )));
        }
        if !accept_length.is_finite()
            || accept_length < 1.0
            || accept_length > f64::from(depth) + 1.0
        {
            return Err(input::error(format!(
                "{flag} {text}: an accept length at depth {depth} lies between 1 and {} (the bonus \
                 token included)",
                depth + 1
            )));
        }
        return Ok(AcceptFlag::Length {
            accept_length,
            depth,
        });
    }
    if text.trim().parse::<f64>().is_ok() {
        return Err(input::error(format!(
            "{flag} {text}: say at which depth it was measured, as {text}@3"
        )));
    }
    Ok(AcceptFlag::File(text.into()))
}

/// Conditional acceptance by position, as cumulative rates.
fn accept_alphas(flag: &str, text: &str, list: &str) -> anyhow::Result<AcceptFlag> {
    let mut reached = 1.0;
    let mut rates = Vec::new();
    for part in split_list(flag, text, list)? {
        let alpha: f64 = part
            .parse()
            .ok()
            .filter(|a: &f64| (0.0..=1.0).contains(a))
            .ok_or_else(|| {
                input::error(format!("{flag} {text}: {part} is not a rate from 0 to 1"))
            })?;
        reached *= alpha;
        rates.push(reached);
    }
    Ok(AcceptFlag::Rates(rates))
}

/// `CYCLES:ACCEPTED1,ACCEPTED2,…`, tokens accepted by position.
fn accept_counts(flag: &str, text: &str, rest: &str) -> anyhow::Result<AcceptFlag> {
    let wrong = || {
        input::error(format!(
            "{flag} {text}: give counts:CYCLES:ACCEPTED1,ACCEPTED2,… as counts:1000:650,400,240"
        ))
    };
    let (cycles, list) = rest.split_once(':').ok_or_else(wrong)?;
    let accepted: Result<Vec<u64>, _> = split_list(flag, text, list)?
        .into_iter()
        .map(str::parse)
        .collect();
    Ok(AcceptFlag::Counts {
        cycles: cycles.trim().parse().map_err(|_| wrong())?,
        accepted: accepted.map_err(|_| wrong())?,
    })
}

fn accept_rates(flag: &str, text: &str, list: &str) -> anyhow::Result<AcceptFlag> {
    let mut rates: Vec<f64> = Vec::new();
    for part in split_list(flag, text, list)? {
        let rate: f64 = part
            .parse()
            .ok()
            .filter(|r: &f64| (0.0..=1.0).contains(r))
            .ok_or_else(|| {
                input::error(format!("{flag} {text}: {part} is not a rate from 0 to 1"))
            })?;
        if rates.last().is_some_and(|last| rate > *last) {
            return Err(input::error(format!(
                "{flag} {text}: cumulative rates cannot rise ({part}); vLLM prints them by position, \
                 each no higher than the one before"
            )));
        }
        rates.push(rate);
    }
    Ok(AcceptFlag::Rates(rates))
}

/// Whether a text names a release: a number with a point that is not a development build's 0.0, or
/// a month.
pub(crate) fn is_version(text: &str) -> bool {
    kvplan::Version::find(text)
        .is_some_and(|found| !matches!(found, kvplan::Version::Number(0, 0, _)))
}

/// Splits `name@version`.
pub(crate) fn engine(text: &str) -> (String, Option<String>) {
    match text.split_once('@') {
        // An `@` without a version is refused by the caller.
        Some((name, version)) if !version.trim().is_empty() => (
            name.trim().to_ascii_lowercase(),
            Some(version.trim().trim_start_matches('v').to_string()),
        ),
        Some((name, _)) => (name.trim().to_ascii_lowercase(), None),
        None => (text.trim().to_ascii_lowercase(), None),
    }
}

/// `text` is what was typed, for the message; `list` the part of it that is a list.
fn split_list<'a>(flag: &str, text: &str, list: &'a str) -> anyhow::Result<Vec<&'a str>> {
    let parts: Vec<&str> = list
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect();
    if parts.is_empty() {
        return Err(input::error(format!(
            "{flag} `{text}`: an empty list; separate entries by commas"
        )));
    }
    if parts.len() > MAX_LIST {
        return Err(input::error(format!(
            "{flag}: {} entries, more than {MAX_LIST}",
            parts.len()
        )));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_take_binary_suffixes() {
        assert_eq!(count("--context", "32k").unwrap(), 32768);
        assert_eq!(count("--bytes", "1m").unwrap(), 1 << 20);
        assert!(count("--context", "-5").is_err());
        assert!(count("--context", "99999999999g").is_err());
        assert!(count("--context", "").is_err());
    }

    #[test]
    fn an_accept_length_needs_its_depth_and_stays_below_depth_plus_one() {
        assert!(matches!(
            accept("--accept", "2.3@3").unwrap(),
            AcceptFlag::Length { depth: 3, .. }
        ));
        assert!(accept("--accept", "2.3").is_err());
        assert!(accept("--accept", "4.1@3").is_err());
        assert!(accept("--accept", "0.5@3").is_err());
        assert!(accept("--accept", "nan@3").is_err());
        assert!(accept("--accept", "rates:.65,.70").is_err());
        assert!(matches!(
            accept("--accept", "run@3.log").unwrap(),
            AcceptFlag::File(_)
        ));
    }

    #[test]
    fn loads_may_carry_shares() {
        let (loads, shares) = concurrency("--concurrency", "8:30,1:60").unwrap();
        assert_eq!((loads, shares), (vec![1, 8], Some(vec![60.0, 30.0])));
        assert_eq!(
            concurrency("--concurrency", "4,1").unwrap(),
            (vec![1, 4], None)
        );
        assert!(concurrency("--concurrency", "1:60,8").is_err());
        let twice = concurrency("--concurrency", "1:1,1:2").unwrap_err();
        assert!(twice.to_string().contains("1 stands twice"), "{twice}");
        assert!(concurrency("--concurrency", "1:-2").is_err());
    }

    #[test]
    fn engines_carry_versions() {
        assert_eq!(
            engine("vllm@v0.24.0"),
            ("vllm".into(), Some("0.24.0".into()))
        );
        assert_eq!(engine("SGLang"), ("sglang".into(), None));
    }

    proptest! {
        #[test]
        fn no_flag_text_panics(text in ".{0,40}") {
            let _ = count("--x", &text);
            let _ = context("--x", &text);
            let _ = concurrency("--x", &text);
            let _ = byte_sizes("--x", &text);
            let _ = gpu_list("--x", &text);
            let _ = depths("--x", &text);
            let _ = accept("--x", &text);
            let _ = engine(&text);
        }
    }
}
