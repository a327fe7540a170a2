//! The longest request that vLLM takes: it starts with no pool that does not hold one of it, whatever
//! requests hold, and by itself takes the model's own.

use kvplan::{EngineKind, Plan, Setup, SpeculationCost};

use crate::predict::answer::Memory;
use crate::predict::{longest_drafted, longest_let_in, vllm_context};
use crate::scenario::Scenario;
use crate::table::thousands;

/// The length that a vLLM server is told, or takes by itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Length {
    /// The longest that it can surely be told, where that is less than what it takes by itself.
    pub(crate) longest: Option<u64>,
    /// Whether that rests on the band of a pool that nobody saw.
    estimated: bool,
    /// The longest that the server stays up with, where its draft reaches no further.
    pub(crate) let_in: Option<u64>,
    /// The longest that its draft reaches.
    pub(crate) drafted: Option<u64>,
    /// What `predict` pastes for it; `None`: nothing, it takes its own.
    pub(super) told: Option<u64>,
    /// What it takes without that flag: by the user's flag, its log, or the model.
    own: Option<u64>,
    /// Whose length that is.
    whose: &'static str,
    /// The length that it takes and the least fraction whose pool holds one request of it, where that is
    /// another than the context's.
    pub(super) wall: Option<(u64, f64)>,
    /// Why the flag is needed, where the pool asks for it.
    pub(crate) why: Option<String>,
}

impl Length {
    /// The length of a setup of vLLM and its plans; nothing of other engines.
    pub(super) fn of(scenario: &Scenario, setup: &Setup<'_>, cost: &SpeculationCost) -> Self {
        let plan = &cost.with;
        if setup.engine.kind != EngineKind::Vllm {
            return Self::default();
        }
        let (own, whose) = own(scenario);
        let starts = plan.refusal.is_none();
        let alone = own.and_then(|own| kvplan::plan(&setup.told_length(own)).ok());
        let unsure = alone.filter(|alone| starts && !alone.surely_starts());
        let limit = scenario.model.max_positions.filter(|_| unsure.is_some());
        let longest = limit.and_then(|limit| kvplan::longest_sure(setup, limit).ok());
        let mut length = Self {
            longest,
            estimated: plan.pool_low.is_some(),
            let_in: longest_let_in(scenario).filter(|_| setup.speculation.is_some()),
            drafted: longest_drafted(scenario).filter(|_| setup.speculation.is_some()),
            own,
            whose,
            ..Self::default()
        };
        let room = Memory {
            pool: Some(plan.pool.clone()),
            length: length.clone(),
            ..Memory::default()
        };
        let told = vllm_context(scenario, Some(&room)).filter(|_| starts);
        let takes = told
            .or(own)
            .filter(|tokens| starts && *tokens > scenario.context);
        length.wall = takes.and_then(|tokens| {
            let longer = kvplan::plan(&setup.told_length(tokens)).ok()?;
            Some((tokens, longer.interval.min))
        });
        // Of what the head lets in the pool is no reason.
        let by_pool = told.is_some() && told != own && told != length.let_in;
        let why = unsure.as_ref().filter(|_| by_pool);
        length.why = why.map(|alone| why_told(alone, whose, cost));
        length.told = told;
        length
    }

    /// The flag without which the server is refused, or may be, and why.
    pub(super) fn to_start(&self) -> Option<String> {
        let for_head = self.told == self.let_in;
        let reach =
            for_head.then_some("a longer request is beyond the head, and may stop the server");
        let told = self.told?;
        let why = self.why.as_deref().or(reach)?;
        Some(format!("start with --max-model-len {told}: {why}"))
    }

    /// What a length that nobody asked for rests on.
    pub(crate) fn rests_on(&self) -> &'static str {
        match self.estimated {
            true => "what the pool holds at the low end of its band",
            false => "what the pool holds",
        }
    }

    /// Whose length a server takes that was told so much.
    pub(super) fn whose(&self, tokens: u64) -> &'static str {
        match self.own == Some(tokens) {
            true => self.whose,
            false => "as told",
        }
    }

    /// The flag that a setting presupposes whose pool holds requests of a context, where it does not
    /// surely hold one of what the server takes by itself.
    pub(super) fn presupposed(&self, plan: &Plan, context: u64) -> Option<String> {
        let pool = plan.pool_low.as_ref().unwrap_or(&plan.pool);
        let short = pool.requests(self.own?) < 1.0;
        self.below_own(context).filter(|_| short)
    }

    /// The flag of a length, where that is less than what the server takes by itself.
    pub(super) fn below_own(&self, tokens: u64) -> Option<String> {
        (tokens < self.own?).then(|| format!("--max-model-len {tokens}"))
    }
}

/// What the server takes unless the paste says otherwise, and whose length that is.
fn own(scenario: &Scenario) -> (Option<u64>, &'static str) {
    let by_flag = scenario.max_model_len.map(|tokens| (tokens, "as told"));
    let by_log = scenario
        .ran
        .context_limit
        .map(|tokens| (tokens, "the log's limit"));
    let by_model = scenario
        .model
        .max_positions
        .map(|tokens| (tokens, "the model's own"));
    by_flag
        .or(by_log)
        .or(by_model)
        .map_or((None, ""), |(tokens, whose)| (Some(tokens), whose))
}

/// Why a server needs the flag that would be refused without it, or may be.
fn why_told(alone: &Plan, whose: &str, cost: &SpeculationCost) -> String {
    let own = alone.context_tokens;
    let tokens = thousands(own as f64);
    let takes = match whose {
        "the model's own" => format!("by itself vLLM takes the model's {tokens}"),
        _ => format!("{tokens} are {whose}"),
    };
    let refused = match &alone.refusal {
        Some(refusal) => format!("which is refused, short by {:.2} GiB", refusal.short_gib),
        None => "for which the pool may come out too small".to_string(),
    };
    let plain = &cost.without;
    let surely = plain.pool_low.as_ref().unwrap_or(&plain.pool);
    let drafts = cost.draft_gib > 0.0;
    let without = match (drafts, surely.requests(own) >= 1.0) {
        (true, true) => "; without the draft it starts without the flag",
        _ => "",
    };
    format!("{takes}, {refused}{without}")
}
