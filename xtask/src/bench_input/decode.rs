//! The decoding speed in a bench output: its output throughput counts the time of prefill too.

use super::BenchPoint;

/// A decode speed above the bench's own fastest second by more than this was not reached: the
/// server held fewer requests at a time than the bench sent.
const ABOVE_PEAK: f64 = 1.25;

/// Tokens a second over all users while decoding.
pub(super) struct DecodeSpeed {
    pub(super) tok_s: f64,
    /// Which figure was taken, in words, where it is not the throughput alone.
    pub(super) note: Option<String>,
}

/// Concurrency over the time per output token, where the bench prints it; else, and where the
/// server did not run that many at once, the output throughput. Plain decoding gives one token a
/// pass, so the time between tokens is that of a pass.
pub(super) fn speed(point: &BenchPoint, users: f64, throughput: f64) -> DecodeSpeed {
    let whole = DecodeSpeed {
        tok_s: throughput,
        note: None,
    };
    let times = [
        ("mean TPOT", point.mean_tpot_ms),
        ("median TPOT", point.median_tpot_ms),
        ("mean ITL", point.mean_itl_ms),
        ("median ITL", point.median_itl_ms),
    ];
    let taken = times
        .into_iter()
        .find_map(|(name, ms)| Some((name, ms.filter(|ms| ms.is_finite() && *ms > 0.0)?)));
    let Some((name, ms)) = taken.filter(|_| !point.paced) else {
        return whole;
    };
    let tok_s = users * 1000.0 / ms;
    if !tok_s.is_finite() || tok_s <= throughput {
        return whole;
    }
    let against = format!("{users} users / {name} {ms} ms");
    if point.all_at_once {
        let note = format!(
            "at {users} users the output throughput of {throughput} tok/s is taken, prefill and \
             queue counted: the bench set no limit, so that {against} may be more than ran at once; \
             run it with --max-concurrency"
        );
        return DecodeSpeed {
            note: Some(note),
            ..whole
        };
    }
    if point
        .peak_tok_s
        .is_some_and(|peak| tok_s > peak * ABOVE_PEAK)
    {
        let note = format!(
            "at {users} users the output throughput of {throughput} tok/s is taken: {against} = \
             {tok_s:.1} tok/s is above the bench's fastest second, so the server ran fewer at once"
        );
        return DecodeSpeed {
            note: Some(note),
            ..whole
        };
    }
    let ttft = point.mean_ttft_ms.or(point.median_ttft_ms);
    let first = ttft.map_or(String::new(), |ms| {
        format!(" ({ms:.0} ms to the first token)")
    });
    DecodeSpeed {
        tok_s,
        note: Some(format!(
            "the decode speed is taken: {against} = {tok_s:.1} tok/s; the output throughput of \
             {throughput} tok/s counts prefill too{first}"
        )),
    }
}
