//! Generation speeds by load that a server's log shows: a plain server's are a sweep.

use super::facts::Facts;
use super::text::number_after;

/// Lines under this share of their load's median hold idle time: the figure is an average since
/// the last line, however long ago that was.
const IDLE: f64 = 0.5;

/// A printer's first line under this share of the others of its load was not busy throughout; a choice, as
/// [`IDLE`] is.
const SLOW_START: f64 = 0.9;

/// Loads told apart.
const MOST_LOADS: usize = 512;

/// Windows that tell what a server usually does.
const FEWEST_WINDOWS: usize = 4;

/// Lines that are looked at.
const MOST_LINES: usize = 200_000;

/// What a speed was measured by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum By {
    /// Lines of the server's own log.
    Lines,
    /// A bench that held the load.
    Bench {
        /// Time per output token, ms, where it prints one: prompts of others in it.
        tpot_ms: Option<f64>,
        /// Output tokens a second over all users, prompts and queue counted.
        output_tok_s: f64,
        /// Whether the speed holds prompts that were read meanwhile.
        holds_prompts: bool,
    },
    /// A bench that set no limit to what runs at once.
    Unlimited,
}

/// The usual speed at one load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LoadSpeed {
    /// Requests that ran.
    pub(crate) running: f64,
    /// Tokens a second over all of them, the median of the steady lines.
    pub(crate) tok_s: f64,
    /// Tokens that a request held, where the lines say.
    pub(crate) held_tokens: Option<f64>,
    /// The line that shows nearest to that.
    pub(crate) held_line: usize,
    /// Mean accept length of those lines, bonus included.
    pub(crate) accept_length: Option<f64>,
    /// Steady lines.
    pub(crate) lines: usize,
    /// The last of them.
    pub(crate) line: usize,
    /// What it was measured by.
    pub(crate) by: By,
}

/// Contexts that count as one, as a ratio: requests of a log grow while they run.
const SAME_CONTEXT: f64 = 1.25;

/// Whether two contexts count as one, tokens.
pub(crate) fn same_context(a: f64, b: f64) -> bool {
    (1.0 / SAME_CONTEXT..=SAME_CONTEXT).contains(&(a / b.max(1.0)))
}

impl LoadSpeed {
    /// Time per output token that a bench prints, ms.
    pub(crate) fn tpot_ms(&self) -> Option<f64> {
        match self.by {
            By::Bench { tpot_ms, .. } => tpot_ms,
            By::Lines | By::Unlimited => None,
        }
    }

    /// Whether the speed holds prompts that were read meanwhile, which no computed step does.
    pub(crate) fn holds_prompts(&self) -> bool {
        match self.by {
            By::Bench { holds_prompts, .. } => holds_prompts,
            By::Unlimited => true,
            By::Lines => false,
        }
    }

    /// Whether the speed is a bench's output throughput, the time of prefill in it.
    pub(crate) fn is_throughput(&self) -> bool {
        match self.by {
            By::Bench { output_tok_s, .. } => self.tok_s == output_tok_s,
            By::Unlimited => true,
            By::Lines => false,
        }
    }

    /// How many times as fast as plain decoding at the same load, where both were measured alike: by
    /// lines of logs, or by the time per output token of benches (of several tokens a pass the time
    /// between arrivals says nothing); one user waits for no prompts of others, so that there the two are
    /// one.
    ///
    /// # Errors
    /// In words what they differ by.
    pub(crate) fn over(&self, plain: &Self) -> Result<f64, String> {
        if let (Some(own), Some(other)) = (self.held_tokens, plain.held_tokens)
            && !same_context(own, other)
        {
            return Err(format!(
                "its requests held {own:.0} tokens, the plain ones {other:.0}"
            ));
        }
        let alone = self.running == 1.0;
        let ratio = match (self.by, plain.by) {
            (By::Lines, By::Lines) => self.tok_s / plain.tok_s,
            (
                By::Lines,
                By::Bench {
                    tpot_ms: Some(ms), ..
                },
            ) if alone => self.tok_s * ms / 1000.0,
            (
                By::Bench {
                    tpot_ms: Some(ms), ..
                },
                By::Lines,
            ) if alone => 1000.0 / ms / plain.tok_s,
            (
                By::Bench {
                    tpot_ms: own,
                    output_tok_s: own_tok_s,
                    ..
                },
                By::Bench {
                    tpot_ms: other,
                    output_tok_s: other_tok_s,
                    ..
                },
            ) => match (own, other) {
                (Some(own), Some(other)) => other / own,
                (None, None) => own_tok_s / other_tok_s,
                _ => return Err("the benches print no figure in common".to_string()),
            },
            (By::Unlimited, _) | (_, By::Unlimited) => {
                return Err("a bench without a limit does not say what ran at once".to_string());
            }
            _ => {
                return Err(
                    "one is of a log's lines and one of a bench, and prompts that come in between count \
                     differently in the two"
                        .to_string(),
                );
            }
        };
        Some(ratio)
            .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
            .ok_or_else(|| "one of them is 0".to_string())
    }
}

/// Throughput windows of a server that was told to draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Those in which it generated.
    pub(crate) all: usize,
    /// Those of them whose line says that drafts were accepted.
    pub(crate) drafted: usize,
    /// The first of the others.
    pub(crate) line: usize,
    /// Tokens that a request held in the middle of those that drafted, where there are several.
    pub(crate) drafted_held: Option<u64>,
}

impl Windows {
    /// Whether most of them drafted nothing.
    pub(crate) fn mostly_plain(&self) -> bool {
        self.all >= FEWEST_WINDOWS && self.drafted.saturating_mul(2) < self.all
    }
}

/// One printed line: an interval that ended there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Interval<'a> {
    /// Who printed it: a rank, an engine number.
    pub(super) who: &'a str,
    /// Requests that ran at its end.
    pub(super) running: f64,
    /// Tokens generated a second.
    pub(super) tok_s: f64,
    /// Tokens held by all requests.
    pub(super) tokens: Option<f64>,
    /// Accept length.
    pub(super) accept_length: Option<f64>,
    /// Prompts took a part of it.
    pub(super) prefill: bool,
    /// Its line.
    pub(super) line: usize,
}

/// The speeds by load, rising. A line counts where the one before it by the same printer had as
/// many requests, so that the load held while it was measured; the first of all counts beside
/// others. Lines of several printers (ranks of
/// data parallelism) are each their own server's.
pub(super) fn by_load(intervals: &[Interval<'_>]) -> Vec<LoadSpeed> {
    let mut before: Vec<(&str, f64)> = Vec::new();
    let mut first: Vec<usize> = Vec::new();
    let mut steady: Vec<(f64, Vec<Interval<'_>>)> = Vec::new();
    for interval in intervals.iter().take(MOST_LINES) {
        let held = match before.iter_mut().find(|(who, _)| *who == interval.who) {
            Some((_, running)) => std::mem::replace(running, interval.running) == interval.running,
            None => {
                if before.len() < MOST_LOADS {
                    before.push((interval.who, interval.running));
                }
                first.push(interval.line);
                true
            }
        };
        if !held || interval.prefill || interval.running < 1.0 || interval.tok_s <= 0.0 {
            continue;
        }
        let known = steady
            .iter()
            .position(|(load, _)| *load == interval.running);
        if known.is_none() && steady.len() < MOST_LOADS {
            steady.push((interval.running, Vec::new()));
        }
        let index = known.unwrap_or(steady.len().saturating_sub(1));
        if let Some((_, same)) = steady.get_mut(index).filter(|s| s.0 == interval.running) {
            same.push(*interval);
        }
    }
    let mut speeds: Vec<LoadSpeed> = steady
        .iter()
        // A first line alone may hold any idle time.
        .filter(|(_, same)| same.len() > 1 || same.iter().all(|i| !first.contains(&i.line)))
        .filter_map(|(running, same)| usual(*running, same, &first))
        .collect();
    speeds.sort_by(|a, b| a.running.total_cmp(&b.running));
    let sure: Vec<LoadSpeed> = speeds.iter().filter(|s| s.lines > 1).copied().collect();
    speeds.retain(|speed| speed.lines > 1 || sure.iter().all(|other| possible(speed, other)));
    speeds
}

/// Whether a single line goes with a load known better: with more requests the total does not fall
/// and each does not gain. One that held a prompt or idle time does not.
fn possible(single: &LoadSpeed, other: &LoadSpeed) -> bool {
    if single.running > other.running {
        single.tok_s >= other.tok_s
    } else {
        single.tok_s / single.running >= other.tok_s / other.running
    }
}

/// The lines of a load less a printer's very first where that lies below the others: nothing before it shows
/// that the load held.
fn without_slow_start<'a>(same: &[Interval<'a>], first: &[usize]) -> Vec<Interval<'a>> {
    let is_first = |i: &Interval<'_>| first.contains(&i.line);
    let others: Vec<f64> = same
        .iter()
        .filter(|i| !is_first(i))
        .map(|i| i.tok_s)
        .collect();
    let usual = crate::score::quantile(&others, 0.5);
    let kept = same
        .iter()
        .filter(|i| !is_first(i) || usual.is_none_or(|usual| i.tok_s >= SLOW_START * usual));
    kept.copied().collect()
}

fn usual(running: f64, same: &[Interval<'_>], first: &[usize]) -> Option<LoadSpeed> {
    let middle = |figures: &[f64]| crate::score::quantile(figures, 0.5);
    let all: Vec<f64> = same.iter().map(|i| i.tok_s).collect();
    let least = IDLE * middle(&all)?;
    let same = without_slow_start(same, first);
    let busy: Vec<&Interval<'_>> = same.iter().filter(|i| i.tok_s >= least).collect();
    let speeds: Vec<f64> = busy.iter().map(|i| i.tok_s).collect();
    let held = busy.iter().filter_map(|i| Some((i.tokens?, i.line)));
    let held = middle_and_line(&held.collect::<Vec<_>>());
    let lengths: Vec<f64> = busy.iter().filter_map(|i| i.accept_length).collect();
    let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
    let line = busy.last()?.line;
    Some(LoadSpeed {
        running,
        tok_s: middle(&speeds)?,
        held_tokens: held.map(|(tokens, _)| tokens / running),
        held_line: held.map_or(line, |(_, line)| line),
        accept_length: Some(mean).filter(|mean| mean.is_finite()),
        lines: busy.len(),
        line,
        by: By::Lines,
    })
}

/// The median of figures, and the line of the one nearest to it.
pub(super) fn middle_and_line(figures: &[(f64, usize)]) -> Option<(f64, usize)> {
    let values: Vec<f64> = figures.iter().map(|figure| figure.0).collect();
    let middle = crate::score::quantile(&values, 0.5)?;
    let off = |figure: &(f64, usize)| (figure.0 - middle).abs();
    let nearest = figures.iter().min_by(|a, b| off(a).total_cmp(&off(b)))?;
    Some((middle, nearest.1))
}

/// Writes the speeds, and as `gen_tok_s` that of the load seen in most lines (of equals the
/// lightest).
pub(super) fn put(intervals: &[Interval<'_>], what: &str, facts: &mut Facts) {
    let mut who: Vec<&str> = intervals.iter().map(|i| i.who).collect();
    who.sort_unstable();
    who.dedup();
    facts.speed_printers = who.len();
    facts.speeds = by_load(intervals);
    let most = facts.speeds.iter().rev().max_by_key(|speed| speed.lines);
    if let Some(most) = most.copied() {
        let mut how = format!(
            "median of the {what} at {} running whose load held, idle ones dropped",
            most.running
        );
        if who.len() > 1 {
            how.push_str(&format!("; of one of {} data-parallel ranks", who.len()));
        }
        facts.derive("gen_tok_s", most.tok_s, most.line, how);
    }
}

/// What a line says of the load at its end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Busiest {
    /// Requests that ran.
    pub(super) running: f64,
    /// Share of the pool in use.
    pub(super) usage_percent: Option<f64>,
    pub(super) line: usize,
}

/// Writes the heaviest load seen, by what ran and of equals by what was in use.
pub(super) fn put_busiest(lines: impl Iterator<Item = Busiest>, facts: &mut Facts) {
    let ran = lines.filter(|line| line.running >= 1.0);
    let most = ran.max_by(|a, b| {
        let use_of = |line: &Busiest| line.usage_percent.unwrap_or(0.0);
        a.running
            .total_cmp(&b.running)
            .then(use_of(a).total_cmp(&use_of(b)))
    });
    let Some(most) = most else { return };
    facts.set("most_running", most.running, most.line);
    if let Some(percent) = most.usage_percent {
        facts.set("kv_usage_percent", percent, most.line);
    }
}

/// Tokens that all requests hold, in a decode line of SGLang: one pool, or the full one of a
/// hybrid.
pub(super) fn sglang_tokens(rest: &str) -> Option<f64> {
    number_after(rest, "#token:")
        .or_else(|| number_after(rest, "#full token:"))
        .filter(|tokens| *tokens >= 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speeds(lines: &[(&str, f64, f64)]) -> Vec<LoadSpeed> {
        let lines = lines.iter().enumerate();
        let intervals: Vec<Interval<'_>> = lines
            .map(|(index, (who, running, tok_s))| Interval {
                who,
                running: *running,
                tok_s: *tok_s,
                tokens: Some(running * 100.0),
                accept_length: None,
                prefill: false,
                line: index + 1,
            })
            .collect();
        by_load(&intervals)
    }

    #[test]
    fn only_lines_whose_load_held_count_and_idle_time_does_not() {
        let speeds = speeds(&[
            ("0", 1.0, 3.0),
            ("0", 1.0, 60.0),
            ("0", 1.0, 62.0),
            ("0", 1.0, 9.0),
            ("0", 8.0, 300.0),
            ("0", 8.0, 400.0),
            ("0", 4.0, 350.0),
        ]);
        let found: Vec<(f64, f64)> = speeds.iter().map(|s| (s.running, s.tok_s)).collect();
        assert_eq!(found, [(1.0, 61.0), (8.0, 400.0)]);
        assert_eq!(speeds[0].held_tokens, Some(100.0));
    }

    #[test]
    fn a_single_line_with_idle_time_in_it_is_no_load() {
        let speeds = speeds(&[
            ("0", 8.0, 400.0),
            ("0", 8.0, 410.0),
            ("0", 2.0, 40.0),
            ("0", 2.0, 43.0),
            ("0", 16.0, 300.0),
            ("0", 16.0, 350.0),
        ]);
        let found: Vec<f64> = speeds.iter().map(|s| s.running).collect();
        assert_eq!(found, [8.0]);
    }

    #[test]
    fn ranks_of_data_parallelism_do_not_interrupt_each_other() {
        let speeds = speeds(&[
            ("DP0", 3.0, 90.0),
            ("DP1", 5.0, 150.0),
            ("DP0", 3.0, 91.0),
            ("DP1", 5.0, 151.0),
        ]);
        assert_eq!(speeds.len(), 2);
        assert_eq!(speeds[1].tok_s, 150.5);
    }
}
