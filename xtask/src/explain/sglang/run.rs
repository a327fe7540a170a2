//! One server start in a log: what each rank printed, and what it amounts to.

use super::super::facts::Facts;
use super::super::text::number_after;
use super::captures::Graphs;
use super::{Event, Kind, server_args};

/// Rank tags told apart.
const MOST_RANKS: usize = 1024;

/// Pools of one rank.
const MOST_POOLS: usize = 64;

/// A weight load of one rank.
#[derive(Debug, Clone, Default)]
struct Load {
    begin_gib: Option<f64>,
    after_gib: Option<f64>,
    used_gib: Option<f64>,
    begin_line: usize,
    line: usize,
}

/// One KV pool line.
#[derive(Debug, Clone, PartialEq)]
struct Pool {
    tokens: Option<f64>,
    gib: f64,
    line: usize,
}

/// What one rank printed.
#[derive(Debug, Default)]
struct Rank<'a> {
    tag: &'a str,
    loads: Vec<Load>,
    /// Loads done when the first pool was allocated.
    loads_at_pool: Option<usize>,
    pools: Vec<Pool>,
    /// Pools of the target: those before the first `Memory pool end`.
    target_pools: Option<usize>,
    pool_end: Option<(f64, usize)>,
    graph_begun: bool,
    /// Free once the pools of a draft stood.
    draft_pool_end_gib: Option<f64>,
    /// What of the draft's load was given back between these and the graphs behind them.
    draft_given_back_gib: Option<f64>,
    graph_gib: Option<(f64, usize)>,
    /// The draft's share of it.
    draft_graph_gib: Option<(f64, usize)>,
    /// The share of the target's prefills.
    prefill_graph_gib: Option<(f64, usize)>,
}

/// One server start.
#[derive(Debug, Default)]
pub(super) struct Run<'a> {
    /// First line.
    pub(super) line: usize,
    /// Its place among the events.
    pub(super) first: usize,
    args: Option<(&'a str, usize)>,
    ranks: Vec<Rank<'a>>,
    budget: Option<(f64, usize)>,
    ready: Option<(&'a str, usize)>,
    fired: Option<usize>,
    mamba: Option<(f64, usize)>,
    /// Full and sliding-window pool together.
    window: Option<(f64, usize)>,
    /// The cache's format as torch names it.
    dtype: Option<(&'a str, usize)>,
    /// Weight format of the target, as its load says.
    quant: Option<(&'a str, usize)>,
    /// The class of the model loaded first.
    class: Option<(&'a str, usize)>,
}

/// Splits the events into server starts.
pub(super) fn split<'a>(events: &[Event<'a>]) -> Vec<Run<'a>> {
    let mut runs: Vec<Run> = Vec::new();
    for (first, event) in events.iter().enumerate() {
        let fresh = match runs.last() {
            None => true,
            Some(run) => run.ended_by(event),
        };
        if fresh {
            runs.push(Run {
                line: event.line,
                first,
                ..Run::default()
            });
        }
        if let Some(run) = runs.last_mut() {
            run.take(event);
        }
    }
    runs
}

impl<'a> Run<'a> {
    /// Something of the memory was printed.
    pub(super) fn has_memory(&self) -> bool {
        !self.ranks.is_empty() || self.ready.is_some()
    }

    fn rank_of(&self, tag: &str) -> Option<&Rank<'a>> {
        self.ranks.iter().find(|rank| rank.tag == tag)
    }

    /// Does this event belong to a later start? Printed arguments after a load do, and a load that
    /// begins with about as much free memory as the first one had. A draft's load begins with less.
    fn ended_by(&self, event: &Event) -> bool {
        match event.kind {
            Kind::Args => self.has_memory(),
            Kind::Begin => {
                let Some(rank) = self.rank_of(event.rank) else {
                    return false;
                };
                let Some(first) = rank.loads.first() else {
                    return false;
                };
                let (Some(was), Some(now)) = (first.begin_gib, begin_gib(event.rest)) else {
                    return self.ready.is_some() && first.after_gib.is_some();
                };
                let floor = first.after_gib.unwrap_or(0.0);
                now > 0.5 * (was + floor)
            }
            Kind::End => self.ready.is_some() && self.rank_of(event.rank).is_some(),
            _ => false,
        }
    }

    fn rank(&mut self, tag: &'a str) -> &mut Rank<'a> {
        let index = match self.ranks.iter().position(|rank| rank.tag == tag) {
            Some(index) => index,
            // No machine has more; what comes after is noise and goes to the last.
            None if self.ranks.len() >= MOST_RANKS => self.ranks.len() - 1,
            None => {
                self.ranks.push(Rank {
                    tag,
                    ..Rank::default()
                });
                self.ranks.len() - 1
            }
        };
        &mut self.ranks[index]
    }

    fn take(&mut self, event: &Event<'a>) {
        let line = event.line;
        match event.kind {
            Kind::Args => self.args = Some((event.rest, line)),
            Kind::Begin => {
                let load = Load {
                    begin_gib: begin_gib(event.rest),
                    begin_line: line,
                    line,
                    ..Load::default()
                };
                self.rank(event.rank).loads.push(load);
            }
            Kind::End => {
                if let Some(class) = super::super::args::argument(event.rest, "type") {
                    self.class.get_or_insert((class, line));
                }
                if let Some(quant) = super::super::args::argument(event.rest, "quant")
                    .or_else(|| super::super::args::argument(event.rest, "quant_algo"))
                {
                    self.quant.get_or_insert((quant, line));
                }
                self.rank(event.rank).end(event.rest, line);
            }
            Kind::Pool => self.rank(event.rank).pool(event.rest, line),
            Kind::Mamba => {
                // Speculation adds a state a drafted token, in the same line.
                let sizes = [
                    " conv_state size:",
                    " ssm_state size:",
                    "intermediate_ssm_state_cache size:",
                    "intermediate_conv_window_cache size:",
                ];
                let gib = sizes.map(|size| number_after(event.rest, size).unwrap_or(0.0));
                self.mamba.get_or_insert((gib.iter().sum(), line));
            }
            Kind::Window => {
                if let Some((gib, _)) = super::super::text::leading_number(event.rest) {
                    self.window.get_or_insert((gib, line));
                }
            }
            Kind::Dtype => {
                let word = event.rest.split([' ', ',', '.']).next().unwrap_or("");
                self.dtype.get_or_insert((word, line));
            }
            Kind::PoolEnd => self.rank(event.rank).pool_end(event.rest, line),
            Kind::GraphBegin => self.rank(event.rank).graph_begin(event.rest),
            Kind::GraphEnd(of) => self.rank(event.rank).graph_end(of, event.rest, line),
            Kind::Budget => {
                // `…full_token=15955.85, available_bytes=45.78 GB`: what is left for the pool.
                let gib = number_after(event.rest, "available_bytes=")
                    .or_else(|| super::super::text::leading_number(event.rest).map(|n| n.0));
                if let Some(gib) = gib {
                    self.budget.get_or_insert((gib, line));
                }
            }
            Kind::Ready => self.ready = Some((event.rest, line)),
            Kind::Fired => self.fired = Some(line),
            _ => {}
        }
    }

    /// Writes what this start amounts to.
    pub(super) fn report(&self, facts: &mut Facts) {
        if let Some((rest, line)) = self.args {
            server_args(rest, line, facts);
        }
        if let Some((class, line)) = self.class {
            facts.set("model_class", class, line);
        }
        self.report_loads(facts);
        self.report_pools(facts);
        if let Some((gib, line)) = self.budget {
            facts.set("kv_budget_gib", gib, line);
        }
        if let Some((quant, line)) = self.quant {
            facts.set_if_absent("quant", quant, line);
        }
        if let Some((dtype, line)) = self.dtype {
            facts.set_if_absent("kv_dtype", cache_word(dtype), line);
        }
        if let Some((gib, line)) = self.window.filter(|_| facts.get("kv_gib").is_none()) {
            facts.set("kv_gib", gib, line);
        }
        if let Some((gib, line)) = self.mamba {
            facts.set("mamba_state_gib", gib, line);
        }
        self.report_ready(facts);
        if let Some(line) = self.fired {
            facts.set("ready", "true", line);
        }
    }

    /// The rank that speaks for all: TP0 where it is there, else the first.
    fn speaker(&self) -> Option<&Rank<'a>> {
        self.ranks
            .iter()
            .find(|rank| rank.tag.split(' ').any(|word| word == "TP0"))
            .or_else(|| self.ranks.first())
    }

    fn report_loads(&self, facts: &mut Facts) {
        // The engine sizes its pool by the least free memory over all ranks.
        let least = |read: &dyn Fn(&Rank) -> Option<(f64, usize)>| {
            self.ranks
                .iter()
                .filter_map(read)
                .min_by(|a, b| a.0.total_cmp(&b.0))
        };
        let before = least(&|rank| {
            let load = rank.loads.first()?;
            Some((load.begin_gib?, load.begin_line))
        });
        let summed = least(&|rank| {
            let load = rank.loads.first()?;
            Some((load.after_gib? + load.used_gib?, load.line))
        });
        match (before, summed) {
            (Some((gib, line)), _) => facts.set("free_before_gib", gib, line),
            (None, Some((gib, line))) => facts.derive(
                "free_before_gib",
                round2(gib),
                line,
                "free after the weights plus the weights",
            ),
            (None, None) => {}
        }
        if let Some((gib, line)) = least(&|rank| {
            let upto = rank.loads_at_pool.unwrap_or(rank.loads.len());
            let done = rank.loads.get(..upto).unwrap_or(&rank.loads);
            let load = done.iter().rev().find(|load| load.after_gib.is_some())?;
            Some((load.after_gib?, load.line))
        }) {
            facts.set("free_after_gib", gib, line);
        }
        let Some(loads) = self.speaker().map(|rank| &rank.loads) else {
            return;
        };
        let mut loads = loads.iter().filter(|load| load.after_gib.is_some());
        if let Some(target) = loads.next() {
            match (target.used_gib, target.begin_gib, target.after_gib) {
                (Some(gib), _, _) => facts.set("weights_gib", gib, target.line),
                (None, Some(begin), Some(after)) => facts.derive(
                    "weights_gib",
                    round2(begin - after),
                    target.line,
                    "free before less free after",
                ),
                _ => {}
            }
        }
        if let Some(draft) = loads.next()
            && let Some(gib) = draft.used_gib
        {
            let back = self.speaker().and_then(|rank| rank.draft_given_back_gib);
            match back.map(round2).filter(|back| (0.01..gib).contains(back)) {
                Some(back) => {
                    let how = format!("{back} of it given back before its graphs");
                    facts.derive("draft_weights_gib", gib, draft.line, how);
                }
                None => facts.set("draft_weights_gib", gib, draft.line),
            }
        }
    }

    fn report_pools(&self, facts: &mut Facts) {
        let ends = self.ranks.iter().filter_map(|rank| rank.pool_end);
        if let Some((gib, line)) = ends.min_by(|a, b| a.0.total_cmp(&b.0)) {
            facts.set("free_after_pool_gib", gib, line);
        }
        let Some(rank) = self
            .speaker()
            .filter(|r| !r.pools.is_empty())
            .or_else(|| self.ranks.iter().find(|rank| !rank.pools.is_empty()))
        else {
            self.report_graph(facts);
            return;
        };
        let split = rank.target_pools.unwrap_or(rank.pools.len());
        let target = rank.pools.get(..split).unwrap_or(&rank.pools);
        let draft = rank.pools.get(split..).unwrap_or(&[]);
        if let Some(last) = target.last() {
            let gib: f64 = target.iter().map(|pool| pool.gib).sum();
            if target.len() > 1 {
                let how = format!("sum of {} pools", target.len());
                facts.derive("kv_gib", round2(gib), last.line, how);
            } else {
                facts.set("kv_gib", round2(gib), last.line);
            }
            // Of a full and a sliding-window pool the full one counts tokens.
            let tokens = target.iter().filter_map(|pool| pool.tokens);
            if let Some(tokens) = tokens.max_by(f64::total_cmp) {
                facts.set("kv_tokens", tokens, last.line);
            }
        }
        if let Some(last) = draft.last() {
            let gib: f64 = draft.iter().map(|pool| pool.gib).sum();
            facts.set("draft_kv_gib", round2(gib), last.line);
        }
        self.report_graph(facts);
    }

    fn report_graph(&self, facts: &mut Facts) {
        let captured = |rank: &&Rank| rank.graph_gib.is_some();
        let speaker = self.speaker().filter(captured);
        let Some(rank) = speaker.or_else(|| self.ranks.iter().find(captured)) else {
            return;
        };
        for (name, graph) in [
            ("graph_gib", rank.graph_gib),
            ("draft_graph_gib", rank.draft_graph_gib),
            ("prefill_graph_gib", rank.prefill_graph_gib),
        ] {
            match graph {
                Some((gib, line)) if gib < 0.0 && name == "draft_graph_gib" => {
                    let how = "more of its load given back than they take";
                    facts.derive(name, round2(gib), line, how);
                }
                Some((gib, line)) => facts.set(name, round2(gib), line),
                None => {}
            }
        }
    }

    fn report_ready(&self, facts: &mut Facts) {
        let Some((rest, line)) = self.ready else {
            return;
        };
        if let Some((tokens, _)) = super::super::text::leading_number(rest) {
            facts.set("kv_tokens", tokens, line);
        }
        for (key, name) in [
            ("chunked_prefill_size=", "chunked_prefill_size"),
            ("max_running_requests=", "max_running_requests"),
            ("context_len=", "context_len"),
            ("available_gpu_mem=", "free_when_ready_gib"),
        ] {
            if let Some(value) = number_after(rest, key) {
                // Printed arguments without it: taken by itself.
                let own = facts.get("model").is_some() && facts.get(name).is_none();
                if own && name == "max_running_requests" {
                    facts.set("max_running_taken", "true", line);
                }
                facts.set(name, value, line);
            }
        }
    }
}

impl Rank<'_> {
    fn end(&mut self, rest: &str, line: usize) {
        let after_gib = number_after(rest, "avail mem=");
        let used_gib = number_after(rest, "mem usage=");
        match self.loads.last_mut() {
            Some(open) if open.after_gib.is_none() => {
                open.after_gib = after_gib;
                open.used_gib = used_gib;
                open.line = line;
            }
            _ => self.loads.push(Load {
                after_gib,
                used_gib,
                begin_line: line,
                line,
                ..Load::default()
            }),
        }
    }

    fn pool(&mut self, rest: &str, line: usize) {
        self.loads_at_pool.get_or_insert(self.loads.len());
        let pair = match (number_after(rest, "K size:"), number_after(rest, "V size:")) {
            (Some(k), Some(v)) => Some(k + v),
            _ => number_after(rest, "KV size:"),
        };
        let Some(gib) = pair else { return };
        let pool = Pool {
            tokens: number_after(rest, "#tokens:"),
            gib,
            line,
        };
        // Several ranks without tags print the same line.
        let again = |known: &Pool| known.tokens == pool.tokens && known.gib == pool.gib;
        if self.pools.len() < MOST_POOLS && !self.pools.iter().any(again) {
            self.pools.push(pool);
        }
    }

    fn pool_end(&mut self, rest: &str, line: usize) {
        self.loads_at_pool.get_or_insert(self.loads.len());
        self.target_pools.get_or_insert(self.pools.len());
        if self.loads.len() > 1 {
            self.draft_pool_end_gib = number_after(rest, "avail mem=");
        }
        // A draft that shares the phase prints a second end; one after the graphs is later news.
        if let (false, Some(gib)) = (self.graph_begun, number_after(rest, "avail mem=")) {
            self.pool_end = Some((gib, line));
        }
    }

    fn graph_begin(&mut self, rest: &str) {
        self.graph_begun = true;
        if let Some(end) = self.draft_pool_end_gib.take() {
            self.draft_given_back_gib = begin_gib(rest).map(|begin| begin - end);
        }
    }

    fn graph_end(&mut self, of: Graphs, rest: &str, line: usize) {
        // A draft's may give back more of its load than they take.
        let least = if of == Graphs::Draft { f64::MIN } else { 0.0 };
        let Some(gib) = number_after(rest, "mem usage=") else {
            return;
        };
        let add = |sum: &mut Option<(f64, usize)>| {
            *sum = Some((sum.map_or(0.0, |(gib, _)| gib) + gib.max(least), line));
        };
        add(&mut self.graph_gib);
        match of {
            Graphs::Decode => {}
            Graphs::Draft => add(&mut self.draft_graph_gib),
            Graphs::Prefill => add(&mut self.prefill_graph_gib),
        }
    }
}

fn begin_gib(rest: &str) -> Option<f64> {
    number_after(rest, "avail mem=")
}

/// Two decimals, as the engine prints; sums of printed figures carry no more.
fn round2(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// A torch type as `--kv-cache-dtype` takes it.
fn cache_word(dtype: &str) -> String {
    dtype.replace("bfloat", "bf").replace("float", "fp")
}
