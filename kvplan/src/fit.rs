//! Whether a plan works, and how many requests it carries.

use crate::engine::Engine;
use crate::setup::{Plan, StateSlots};

/// Whether a setting works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It starts, stays up, and the pool holds a request.
    Fits,
    /// It starts; whether it stays up lies inside the band of the activation wall.
    Open,
    /// It starts, and its pool does not hold one request.
    TooShort,
    /// It starts and then runs out: above the band of the activation wall.
    RunsOut,
    /// It does not start.
    Refused,
}

/// What stops more requests at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wall {
    /// The tokens of the KV pool.
    Pool,
    /// The slots for states.
    StateSlots,
    /// What the engine is told, or takes by itself.
    Setting,
}

/// Most requests at once, and what stops more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtOnce {
    /// Whole requests.
    pub requests: u64,
    /// The first wall.
    pub wall: Wall,
}

impl Plan {
    /// Requests of `context` tokens that run at once: the least of what the pool holds, what the
    /// state slots carry, and the setting.
    pub fn at_once(&self, context: u64) -> AtOnce {
        let walls = [
            (self.pool.requests(context) as u64, Wall::Pool),
            (
                self.state_slots.map_or(u64::MAX, StateSlots::requests),
                Wall::StateSlots,
            ),
            (self.running_setting, Wall::Setting),
        ];
        let mut first = walls[0];
        for wall in walls {
            if wall.0 < first.0 {
                first = wall;
            }
        }
        AtOnce {
            requests: first.0,
            wall: first.1,
        }
    }

    /// Tokens of the pool as the engine prints them: vLLM counts hybrids as requests x the longest since
    /// 0.20.1 (vllm#40691; `_report_kv_cache_config` of 0.20.0 and 0.20.1), before by blocks.
    pub fn printed_tokens(&self, engine: Engine) -> u64 {
        let by_requests = engine.version.since((0, 20, 1), (2026, 5));
        let by_blocks = self.pool.tokens_by_blocks().filter(|_| !by_requests);
        by_blocks.unwrap_or(self.kv_tokens)
    }

    /// Whether this setting works for requests of `context` tokens.
    pub fn fit(&self, context: u64) -> Fit {
        if self.refusal.is_some() {
            Fit::Refused
        } else if self.pool.requests(context) < 1.0 {
            Fit::TooShort
        } else if self.fraction > self.interval.max_high {
            Fit::RunsOut
        } else if self.fraction > self.interval.max {
            Fit::Open
        } else {
            Fit::Fits
        }
    }

    /// Whether it starts, as far as the context goes, also where the pool comes out at the low end of its band.
    pub fn surely_starts(&self) -> bool {
        let low = self.pool_low.as_ref();
        self.refusal.is_none() && low.is_none_or(|low| low.requests(self.context_tokens) >= 1.0)
    }

    /// Whether so many requests of a context run at once: pool, state slots and setting carry them.
    pub fn carries(&self, context: u64, requests: u64) -> bool {
        self.at_once(context).requests >= requests
    }
}
