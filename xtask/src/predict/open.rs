//! Which loads are decided where the lightest is left open.

use super::answer::{Point, Verdict};
use super::verdict::{ranges, users};

/// The loads that surely pay or surely do not, of those that run at once, as the end of a sentence.
pub(super) fn decided(points: &[Point]) -> String {
    let at = |verdict: Verdict| {
        let held = points.iter().filter(|point| point.fits != Some(false));
        let so = |point: &Point| !point.off_in_paste && point.verdict == verdict;
        let rows: Vec<(u32, bool)> = held.map(|p| (p.concurrency, so(p))).collect();
        match ranges(&rows) {
            none if none.is_empty() => None,
            one if one == "1" => Some(users(1)),
            loads => Some(format!("{loads} users")),
        }
    };
    let pays = at(Verdict::Pays).map(|loads| format!("; it pays at {loads}"));
    let loses = at(Verdict::DoesNotPay).map(|loads| format!("; it does not pay at {loads}"));
    pays.into_iter().chain(loses).collect()
}
