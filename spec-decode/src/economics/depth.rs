//! The best depth at an operating point, with its ties.

use super::{Economy, OperatingPoint, StepCost};

/// Depths whose speedup is within this share of the best are ties: the optimum is flat, and the
/// measured scatter of neighbouring depths is as large.
pub const TIE_SHARE: f64 = 0.05;

/// Speedups this close (a share) are one: among them the shallower depth risks less.
pub const SAME_SHARE: f64 = 0.005;

/// The best of options that rise in depth: the shallowest within [`SAME_SHARE`] of the fastest.
/// Every "best depth" of an answer comes from here.
pub fn pick<T>(options: &[T], speedup: impl Fn(&T) -> f64) -> Option<&T> {
    let top = options.iter().map(&speedup).fold(f64::MIN, f64::max);
    let mut near = options.iter();
    near.find(|option| speedup(option) >= top * (1.0 - SAME_SHARE))
}

/// One depth at one operating point. Depth 0 is plain decoding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DepthOption {
    /// Drafted tokens per cycle.
    pub depth: u32,
    /// Tokens per verify.
    pub accept_length: f64,
    /// A cycle in plain steps: the accept length at which it breaks even.
    pub break_even_accept_length: f64,
    /// Against plain decoding.
    pub speedup: f64,
}

/// The best depth and those that cannot be told from it.
#[derive(Debug, Clone, PartialEq)]
pub struct DepthChoice {
    /// The best; depth 0 means that speculation is off.
    pub best: DepthOption,
    /// Other depths within [`TIE_SHARE`] of the best.
    pub ties: Vec<u32>,
}

/// Picks among depths `1 ..= accept_lengths.len()` and off; `accept_lengths[k - 1]` is that of
/// depth `k`. Among equals the shallower wins: it costs less memory and less latency.
pub fn choose_depth(
    cost: &impl StepCost,
    at: OperatingPoint,
    accept_lengths: &[f64],
) -> DepthChoice {
    let options = options(cost, at, accept_lengths);
    let mut best = OFF;
    for option in &options {
        if option.speedup > best.speedup {
            best = *option;
        }
    }
    with_ties(best, &options)
}

/// The choice among options that were costed already, rising in depth, by [`pick`]; off where none
/// gains.
pub fn choose(options: &[DepthOption]) -> DepthChoice {
    let best = pick(options, |option| option.speedup).filter(|best| best.speedup > 1.0);
    with_ties(best.copied().unwrap_or(OFF), options)
}

fn with_ties(best: DepthOption, options: &[DepthOption]) -> DepthChoice {
    let ties = std::iter::once(&OFF)
        .chain(options)
        .filter(|o| o.depth != best.depth && o.speedup >= best.speedup * (1.0 - TIE_SHARE))
        .map(|o| o.depth)
        .collect();
    DepthChoice { best, ties }
}

/// Plain decoding as an option.
pub const OFF: DepthOption = DepthOption {
    depth: 0,
    accept_length: 1.0,
    break_even_accept_length: 1.0,
    speedup: 1.0,
};

/// Every depth's figures at an operating point.
pub fn options(
    cost: &impl StepCost,
    at: OperatingPoint,
    accept_lengths: &[f64],
) -> Vec<DepthOption> {
    let plain_ms = cost.plain_ms(at);
    (1u32..)
        .zip(accept_lengths)
        .map(|(depth, &accept_length)| {
            let cycle_ms = cost.verify_ms(at, depth + 1) + cost.draft_ms(at, depth);
            let economy = Economy::new(plain_ms, cycle_ms);
            DepthOption {
                depth,
                accept_length,
                break_even_accept_length: economy.break_even_accept_length(),
                speedup: economy.speedup(accept_length),
            }
        })
        .collect()
}
