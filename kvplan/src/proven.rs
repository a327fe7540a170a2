//! What a server that was seen proves of the room beside the pool: one that stayed up had enough, one
//! that ran out had not.

use crate::engine::vllm;
use crate::setup::{SAME_FRACTION, Setup};

/// How a server that was seen ended, at a fraction that left its pool no choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fate {
    /// The fraction that it ran with; `None`: the one that the pool seen gives.
    pub fraction: Option<f64>,
    /// Whether it drafted as the setup does.
    pub drafted: bool,
    /// Whether it came to serve; else it ran out of memory.
    pub stayed_up: bool,
}

/// What lies outside the fraction, GiB, how far that may be off either way, and the sum of how far each
/// part of it may be: more than that where they are off each by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beside {
    pub(crate) gib: f64,
    pub(crate) off: f64,
    pub(crate) parts_off: f64,
}

/// The same of a server that was seen, with the room that its fraction left for it, GiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeenBeside {
    pub(crate) beside: Beside,
    pub(crate) room: f64,
    pub(crate) stayed_up: bool,
}

/// How far what lies outside the fraction may be from its best figure, GiB: ends and middle of a band.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Off {
    pub(crate) low: f64,
    pub(crate) middle: f64,
    pub(crate) high: f64,
}

impl Off {
    /// As far either way.
    pub(crate) fn even(off: f64) -> Self {
        Self {
            low: -off,
            middle: 0.0,
            high: off,
        }
    }

    /// Of a setup, beside a server that was seen: what that rules out is cut off the band of what both
    /// have, the middle is that of what is left, and what only one of them has keeps its own band. A
    /// server beyond the band shows that the estimate is off, not by how much: a quarter of the band is
    /// left there.
    pub(crate) fn of(asked: Beside, seen: Option<SeenBeside>) -> Self {
        let Some(seen) = seen else {
            return Self::even(asked.off);
        };
        let both = asked.off.min(seen.beside.off);
        let more = asked.parts_off - seen.beside.parts_off;
        let (own, theirs) = (more.max(0.0), (-more).max(0.0));
        let left = seen.room - seen.beside.gib;
        let cut = match seen.stayed_up {
            true if left + theirs < both => {
                let high = left + theirs;
                Self::between((-both).min(high - both / 2.0), high)
            }
            false if left - theirs > -both => {
                let low = left - theirs;
                Self::between(low, both.max(low + both / 2.0))
            }
            _ => return Self::even(asked.off),
        };
        Self {
            low: cut.low - own,
            middle: cut.middle,
            high: cut.high + own,
        }
    }

    fn between(low: f64, high: f64) -> Self {
        Self {
            low,
            middle: f64::midpoint(low, high),
            high,
        }
    }
}

impl Setup<'_> {
    /// The setup of the server whose fate is known, at its fraction: without the draft where it had none
    /// or another. One that ran out with a draft says nothing of a run without.
    pub(crate) fn as_seen(&self) -> Option<(Self, f64, bool)> {
        let fate = self.observed.fate?;
        let fraction = fate.fraction?;
        let mut ran = match (fate.drafted, self.speculation.is_some()) {
            (true, true) => vllm::as_it_drafted(self).unwrap_or_else(|| self.clone()),
            (true, false) if !fate.stayed_up => return None,
            _ => self.plain(),
        };
        // A fraction that ran out does so as it is typed, too.
        let fraction = match fate.stayed_up {
            true => fraction,
            false => fraction - SAME_FRACTION,
        };
        ran.fraction = Some(fraction.max(f64::MIN_POSITIVE));
        ran.max_running = self.observed.running.or(ran.max_running);
        ran.graph_max_batch = self.observed.graph_max_batch;
        Some((ran, fraction, fate.stayed_up))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(gib: f64, off: f64) -> Beside {
        let parts_off = off;
        Beside {
            gib,
            off,
            parts_off,
        }
    }

    fn seen(gib: f64, off: f64, room: f64, stayed_up: bool) -> Option<SeenBeside> {
        Some(SeenBeside {
            beside: beside(gib, off),
            room,
            stayed_up,
        })
    }

    #[test]
    fn what_a_server_rules_out_is_cut_off_the_band_and_the_middle_is_of_what_is_left() {
        let asked = beside(3.0, 1.0);
        assert_eq!(Off::of(asked, None), Off::even(1.0));
        // Room enough for the whole band says nothing.
        assert_eq!(Off::of(asked, seen(3.0, 1.0, 4.0, true)), Off::even(1.0));
        assert_eq!(Off::of(asked, seen(3.0, 1.0, 2.0, false)), Off::even(1.0));
        let stayed = Off::of(asked, seen(3.0, 1.0, 3.0, true));
        assert_eq!((stayed.low, stayed.middle, stayed.high), (-1.0, -0.5, 0.0));
        let out = Off::of(asked, seen(3.0, 1.0, 3.0, false));
        assert_eq!((out.low, out.middle, out.high), (0.0, 0.5, 1.0));
        let far = Off::of(asked, seen(3.0, 1.0, 1.0, true));
        assert_eq!((far.low, far.middle, far.high), (-2.5, -2.25, -2.0));
        let far = Off::of(asked, seen(3.0, 1.0, 5.0, false));
        assert_eq!((far.low, far.middle, far.high), (2.0, 2.25, 2.5));
    }

    #[test]
    fn what_a_draft_adds_keeps_its_own_band() {
        let asked = beside(3.3, 1.2);
        let off = Off::of(asked, seen(3.0, 1.0, 3.0, true));
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} and {b}");
        close(off.low, -1.2);
        close(off.middle, -0.5);
        close(off.high, 0.2);
        // The other way round: the server had a draft, at its least, that this one has not.
        let plain = beside(3.0, 1.0);
        let off = Off::of(plain, seen(3.3, 1.2, 3.3, true));
        close(off.high, 0.2);
    }
}
