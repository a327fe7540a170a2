//! What the memory of an answer holds, and in words.

use super::Memory;
use crate::table::{at_most, needed, thousands};

/// What stops a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadWall<'a> {
    Pool,
    Slots,
    /// The flag of requests at once, as told.
    Cap(&'a str),
}

impl Memory {
    /// What a load of a context is more than, that does not fit.
    pub(crate) fn short_of(&self, users: u32, context: u64) -> String {
        match self.wall_of(users, context) {
            LoadWall::Slots => "more than the state slots carry".to_string(),
            LoadWall::Pool => "more than the KV pool holds".to_string(),
            LoadWall::Cap(flag) => format!("more than {flag} runs"),
        }
    }

    /// What stops so many requests of a context, which do not fit.
    pub(crate) fn wall_of(&self, users: u32, context: u64) -> LoadWall<'_> {
        let room = self.room(context).unwrap_or(u64::MAX);
        match &self.cap {
            // The first wall, as `Plan::at_once` has it.
            Some((most, flag)) if *most < room => LoadWall::Cap(flag),
            _ if !self.slots_carry(users) => LoadWall::Slots,
            _ => LoadWall::Pool,
        }
    }

    /// What would hold more, in brackets; empty where nothing is known to.
    pub(crate) fn roomier_words(&self) -> String {
        let ways = self.roomier.iter();
        let ways = ways.map(|way| format!("{} with {}", way.requests, way.setting));
        let ways: Vec<String> = ways.collect();
        match ways.is_empty() {
            true => String::new(),
            false => format!(" ({})", ways.join("; ")),
        }
    }

    /// Whether the state slots carry so many requests.
    pub(crate) fn slots_carry(&self, users: u32) -> bool {
        self.state_slots
            .is_none_or(|slots| slots.requests() >= u64::from(users))
    }

    /// Whether no fraction is legal.
    pub(crate) fn none_legal(&self) -> bool {
        self.fraction_min
            .zip(self.fraction_max)
            .is_some_and(|(low, high)| low >= high)
    }

    /// The legal fractions and the request that they are for; of the pasted line first.
    pub(crate) fn legal(&self, (low, high): (f64, f64)) -> String {
        if self.never_loads {
            return "no fraction is legal: it runs out of memory before any pool is sized"
                .to_string();
        }
        let (from, to) = (needed(low), at_most(high, 4));
        if low >= high {
            return format!(
                "no fraction is legal: the pool needs {from}, what lies outside leaves {to}"
            );
        }
        let Some(tokens) = self.legal_for else {
            return format!("legal fraction: {from} to {to} (from an empty pool on)");
        };
        let longer = |least: f64| needed(least) != from;
        let pasted_more = self.pasted_limit.is_some_and(|(_, least)| longer(least));
        if let Some(requests) = self.bound_by_states.filter(|_| !pasted_more) {
            let wall = crate::plan::wall_of_states(requests);
            return format!("legal fraction: {from} to {to} ({wall})");
        }
        let own = thousands(tokens as f64);
        let pasted = self.pasted_limit;
        match pasted.map(|(tokens, least)| (thousands(tokens as f64), least, needed(least))) {
            Some((tokens, least, needs)) if least >= high => format!(
                "no fraction is legal as pasted: one request of {tokens} tokens, which the engine wants room \
                 for, needs {needs}; {from} to {to} for {own} tokens"
            ),
            Some((tokens, _, needs)) if needs != from => format!(
                "legal fraction: {needs} to {to} as pasted (one request of {tokens} tokens, which the \
                 engine wants room for); from {from} for {own} tokens"
            ),
            _ => format!("legal fraction: {from} to {to} (one request of {own} tokens)"),
        }
    }

    /// The fraction as one types it, inside the legal range, for one above it one that is clear of the
    /// wall: three decimals, rounded up where that stays legal (at the pool wall a lower one would be
    /// refused).
    pub(crate) fn typed_fraction(&self) -> Option<String> {
        let (min, max) = (self.fraction_min?, self.fraction_max?);
        let fraction = match self.fraction? {
            above if above > max => self.fraction_clear.unwrap_or(max),
            fraction => fraction,
        };
        let thousandths = fraction * 1000.0;
        [thousandths.ceil(), thousandths.floor()]
            .into_iter()
            .map(|digits| digits / 1000.0)
            .find(|typed| (min..=max).contains(typed) && *typed <= 1.0)
            .map(|typed| format!("{typed:.3}"))
    }

    /// Whole requests of a context that run at once: what pool and state slots hold, no more than a flag
    /// allows; `None` where there is no pool.
    pub(crate) fn held(&self, context: u64) -> Option<u32> {
        let cap = self.cap.as_ref().map_or(u64::MAX, |(most, _)| *most);
        let held = self.room(context)?.min(cap);
        Some(held.min(u64::from(u32::MAX)) as u32)
    }

    /// The same without a flag: what pool and state slots hold.
    pub(crate) fn room(&self, context: u64) -> Option<u64> {
        let slots = self.state_slots.map_or(u64::MAX, |slots| slots.requests());
        Some((self.pool.as_ref()?.requests(context) as u64).min(slots))
    }

    /// Whether that many requests of a context run at once; `None` where there is no pool.
    pub(crate) fn holds(&self, users: u32, context: u64) -> Option<bool> {
        Some(self.held(context)? >= users)
    }
}
