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
    /// Whether prompts, of others or its own, were read in that time.
    pub(super) holds_prompts: bool,
}

/// Concurrency over the time of a pass, where the bench prints one; else, and where the
/// server did not run that many at once, the output throughput. Plain decoding gives one token a
/// pass, so the time between tokens is that of a pass.
pub(super) fn speed(point: &BenchPoint, users: f64, throughput: f64) -> DecodeSpeed {
    let whole = DecodeSpeed {
        tok_s: throughput,
        note: None,
        holds_prompts: true,
    };
    let Some((name, ms)) = pass_time(point, users).filter(|_| !point.paced) else {
        return whole;
    };
    let tok_s = users * 1000.0 / ms;
    if !tok_s.is_finite() || tok_s <= throughput {
        return whole;
    }
    let plural = if users == 1.0 { "" } else { "s" };
    let against = format!("{users} user{plural} / {name} {ms} ms");
    if point.all_at_once {
        let note = format!(
            "at {users} user{plural} the output throughput of {throughput} tok/s is taken, prefill and \
             queue counted: the bench set no limit, so that {against} may be more than ran at once; \
             run it with --max-concurrency"
        );
        return DecodeSpeed {
            note: Some(note),
            ..whole
        };
    }
    let most = point.peak_tok_s.map(|peak| peak * per_arrival(point));
    if users > 1.0 && most.is_some_and(|most| tok_s > most * ABOVE_PEAK) {
        let note = format!(
            "at {users} user{plural} the output throughput of {throughput} tok/s is taken: {against} = \
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
    let holds_prompts = users > 1.0 && name != MEDIAN_ITL;
    let holds = match holds_prompts {
        true => {
            ", and in a smaller part that time does: prompts of others are read between a request's \
             tokens, which the median ITL leaves out"
        }
        false => "",
    };
    DecodeSpeed {
        tok_s,
        holds_prompts,
        note: Some(format!(
            "the decode speed is taken: {against} = {tok_s:.1} tok/s; the output throughput of \
             {throughput} tok/s counts prefill too{first}{holds}"
        )),
    }
}

const MEDIAN_ITL: &str = "median ITL";
/// Mean ITL above mean TPOT by more than this: what arrives at once holds several tokens.
const SEVERAL_TOKENS: f64 = 1.2;

/// The time of a pass in a bench output, ms, and its name. A time per output token is a mean over a
/// request, so at more than one user it holds the prefills of the prompts that come in meanwhile; the
/// median time between tokens does not, as long as most passes only decode.
fn pass_time(point: &BenchPoint, users: f64) -> Option<(&'static str, f64)> {
    let mean = ("mean TPOT", point.mean_tpot_ms);
    let median = ("median TPOT", point.median_tpot_ms);
    let mean_between = ("mean ITL", point.mean_itl_ms);
    let between = (MEDIAN_ITL, point.median_itl_ms);
    let times = match users > 1.0 {
        true if between_is_a_pass(point, users) => [between, median, mean, mean_between],
        // What a speedup is taken by.
        true if point.accept_length.is_some() => [mean, median, mean_between, between],
        true => [median, mean, mean_between, between],
        false => [mean, median, mean_between, between],
    };
    let usable = |ms: &f64| ms.is_finite() && *ms > 0.0;
    let mut times = times.into_iter();
    times.find_map(|(name, ms)| Some((name, ms.filter(usable)?)))
}

/// Tokens that arrive at once: a bench's fastest second counts arrivals.
fn per_arrival(point: &BenchPoint) -> f64 {
    let times = point.mean_itl_ms.zip(point.mean_tpot_ms);
    let tokens = times.map_or(1.0, |(between, tpot)| between / tpot);
    if tokens.is_finite() {
        tokens.max(1.0)
    } else {
        1.0
    }
}

/// Whether the median time between tokens is that of a pass: not where a pass gives several, or a stream
/// sends several at once, and not where it is shorter than the prefills of all others explain (tokens that arrive in
/// bursts).
fn between_is_a_pass(point: &BenchPoint, users: f64) -> bool {
    if point.accept_length.is_some() {
        return false;
    }
    let Some((ms, tpot)) = point.median_itl_ms.zip(point.mean_tpot_ms) else {
        return true;
    };
    let several = point
        .mean_itl_ms
        .is_some_and(|itl| itl > SEVERAL_TOKENS * tpot);
    let ttft = point.mean_ttft_ms.or(point.median_ttft_ms);
    let prefills = ttft.zip(point.generated_tokens.filter(|tokens| *tokens >= 1.0));
    let least = prefills.map_or(0.0, |(ttft, tokens)| tpot - (users - 1.0) * ttft / tokens);
    !several && ms <= tpot && ms >= least.min(tpot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(median_itl_ms: f64) -> BenchPoint {
        BenchPoint {
            mean_tpot_ms: Some(20.1),
            median_tpot_ms: Some(20.0),
            mean_itl_ms: Some(20.1),
            median_itl_ms: Some(median_itl_ms),
            mean_ttft_ms: Some(3100.0),
            generated_tokens: Some(512.0),
            ..BenchPoint::default()
        }
    }

    #[test]
    fn under_load_the_median_time_between_tokens_goes_before_a_tpot_that_holds_prefills() {
        let tok_s = |point: &BenchPoint, users: f64| speed(point, users, 90.0).tok_s;
        assert_eq!(tok_s(&loaded(11.61), 4.0), 4000.0 / 11.61);
        // Shorter than the prefills of three others explain: tokens came in bursts.
        assert_eq!(tok_s(&loaded(0.2), 4.0), 4000.0 / 20.0);
        let chunks = BenchPoint {
            mean_itl_ms: Some(80.0),
            ..loaded(11.61)
        };
        assert_eq!(tok_s(&chunks, 4.0), 4000.0 / 20.0);
        // Without it the answer says what a TPOT holds.
        let bare = BenchPoint {
            median_itl_ms: None,
            ..loaded(0.0)
        };
        let said =
            |point: &BenchPoint, users: f64| speed(point, users, 1.0).note.unwrap_or_default();
        assert!(said(&bare, 4.0).contains("prompts of others"));
        assert!(!said(&loaded(11.61), 4.0).contains("prompts of others"));
        assert!(!said(&bare, 1.0).contains("prompts of others"));
    }
}
