//! The measurements: plain steps, verifies, drafts, and both decode loops run for real.

use std::time::{Duration, Instant};

use allreduce::Result;
use allreduce::device::{Graph, PinnedBuffer, Stream};
use serde::{Deserialize, Serialize};

use super::check::{self, Check};
use super::draws::{Draws, expected_tokens};
use super::memory::{Memory, weights};
use super::model::{Cache, Kernels, Weights};
use super::pass::{Builder, PassShape, Reduce, record};
use super::room::{capacity, most_tokens, sequences, sweep};
use super::shapes::{DraftShapes, Shapes};
use super::work::Work;
use crate::verify_hw::steps::note;

/// Cycles and steps before a measurement counts.
pub(super) const WARM: usize = 3;
/// Tokens of a pass from which a GPU may reach its power limit. Its clock then dips for a few tenths
/// of a second, once, 0.85 s after (traces of an H200: 15 % slower, then as before); loops that count
/// part of the dip differ by 5 %.
const LIMITED_FROM: usize = 64;
/// Time that such a loop runs before it counts, by which the dip is over, and counts, as multiples of
/// the plan's.
const LIMITED_WARM: f64 = 5.2;
const LIMITED_COUNTED: f64 = 2.0;
/// A pause after which a GPU is back at its full clocks (a trace of an H200: under 0.1 s).
const REST: Duration = Duration::from_millis(100);

/// What is built and measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) target: Shapes,
    pub(crate) draft: Option<DraftShapes>,
    /// Sequences decoded at a time.
    pub(crate) concurrency: Vec<usize>,
    /// Draft steps.
    pub(crate) depths: Vec<usize>,
    /// Cached tokens of a sequence at the start of a loop.
    pub(crate) context: usize,
    /// Tokens a sequence makes in a loop.
    pub(crate) output: usize,
    /// Chance that the draft token at each position is accepted, given those before.
    pub(crate) alphas: Vec<f64>,
    pub(crate) seed: u64,
    /// Time that a loop runs before it counts, and counts at least, ms: a GPU at its power limit
    /// lowers its clocks over tenths of a second, and a served load has it there.
    pub(crate) hold_ms: u64,
    /// Bytes of the KV pool that the memory plan gives this GPU; 0: not tried.
    pub(crate) pool_bytes: u64,
}

/// What one rank found.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    pub(crate) memory: Memory,
    pub(crate) check: Check,
    /// (tokens of a plain step, ms).
    pub(crate) plain: Vec<(u32, f64)>,
    /// Attention of all layers alone in such a step: (sequences, ms).
    pub(crate) attention: Vec<(u32, f64)>,
    /// The same over several tokens a sequence: (sequences, tokens, ms).
    pub(crate) attention_of_many: Vec<(u32, u32, f64)>,
    pub(crate) points: Vec<Measured>,
    /// Points that did not fit the memory.
    pub(crate) skipped: Vec<String>,
    pub(crate) seconds: f64,
}

/// One speculative operating point.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) concurrency: u32,
    pub(crate) steps: u32,
    /// Tokens a second of the plain loop.
    pub(crate) plain_tok_s: f64,
    /// Tokens a second of the speculative loop.
    pub(crate) spec_tok_s: f64,
    /// Tokens a cycle and sequence, as drawn.
    pub(crate) accept_length: f64,
    pub(crate) cycles: u32,
    pub(crate) plain_ms: f64,
    pub(crate) cycle_ms: f64,
    pub(crate) verify_ms: f64,
    /// One of the draft steps, on average.
    pub(crate) draft_step_ms: f64,
}

/// A speculative loop: cycles that counted, tokens of all sequences, time.
#[derive(Debug, Clone, Copy, Default)]
struct Looped {
    cycles: u32,
    tokens: u64,
    total_ms: f64,
}

/// Everything of one rank.
struct Rig<'a> {
    plan: &'a Plan,
    builder: Builder<'a>,
    target: &'a Weights,
    draft: Option<&'a Weights>,
    cache: &'a Cache,
    draft_cache: Option<&'a Cache>,
    lengths: PinnedBuffer,
    ids: PinnedBuffer,
}

/// Runs the plan on `stream`; `reduce` sums over the ranks.
///
/// # Errors
/// Out of memory, a missing library, or the driver's own error.
pub(crate) fn rank(
    plan: &Plan,
    stream: &Stream,
    reduce: &mut Reduce<'_>,
    loud: bool,
) -> Result<Found> {
    let began = Instant::now();
    let device = stream.device();
    let say = |text: String| {
        if loud {
            note(&text);
        }
    };
    let mut found = Found::default();
    let experts = plan.target.layers.iter().find_map(|l| l.experts());
    let dim = plan.target.layers.first().map_or(128, |l| l.dim);
    let kernels = Kernels::new(device, dim, experts)?;
    found.check = check::run(stream, &kernels, dim, experts.is_some())?;
    say(format!(
        "kernels compiled and checked: attention off by {:.1e}, experts by {:.1e}",
        found.check.attention, found.check.experts
    ));
    let (target, draft) = weights(plan, stream, &kernels, &mut found)?;
    say(found.memory.describe());
    let most = sequences(plan, found.memory.free_after_weights);
    let tokens = most_tokens(plan, most);
    let mut models = vec![&plan.target];
    models.extend(plan.draft.as_ref().map(|d| &d.shapes));
    let work = Work::new(stream, &models, tokens, most)?;
    let room = |shapes: &Shapes| Cache::new(stream, &kernels.small, shapes, most, capacity(plan));
    let cache = room(&plan.target)?;
    let draft_cache = plan.draft.as_ref().map(|d| room(&d.shapes)).transpose()?;
    stream.synchronize()?;
    let mut rig = Rig {
        plan,
        builder: Builder::new(stream, &kernels, &work),
        target: &target,
        draft: draft.as_ref(),
        cache: &cache,
        draft_cache: draft_cache.as_ref(),
        lengths: PinnedBuffer::new(device, most * 4)?,
        ids: PinnedBuffer::new(device, tokens * 4)?,
    };
    rig.sweep(most, reduce, &mut found)?;
    let shown = found.plain.iter().map(|(n, ms)| format!("{n}: {ms:.2}"));
    say(format!(
        "plain steps, ms: {}",
        shown.collect::<Vec<_>>().join(", ")
    ));
    for &concurrency in plan.concurrency.iter().filter(|c| **c <= most) {
        let plain_ms = rig.looped_plain(concurrency, reduce)?;
        for &steps in &plan.depths {
            let load = (concurrency, plain_ms);
            let point = rig.point(load, steps, reduce, &mut found)?;
            say(format!(
                "{concurrency} x {steps} steps: {:.0} to {:.0} tok/s, {:.2}x at accept length {:.2}",
                point.plain_tok_s,
                point.spec_tok_s,
                point.spec_tok_s / point.plain_tok_s,
                point.accept_length
            ));
        }
    }
    found.seconds = began.elapsed().as_secs_f64();
    Ok(found)
}

impl Rig<'_> {
    /// Plain steps, and their attention alone, over all numbers of sequences that fit.
    fn sweep(&mut self, most: usize, reduce: &mut Reduce<'_>, found: &mut Found) -> Result<()> {
        for sequences in sweep(self.plan) {
            if sequences > most {
                found.skipped.push(format!(
                    "plain step of {sequences} sequences: no room for their cache"
                ));
                continue;
            }
            let ms = self.attention(sequences, 1)?;
            found.attention.push((sequences as u32, ms));
            let ms = self.plain(sequences, reduce)?;
            found.plain.push((sequences as u32, ms));
        }
        Ok(())
    }

    /// One operating point, its attention probed first.
    fn point(
        &mut self,
        (concurrency, plain_ms): (usize, f64),
        steps: usize,
        reduce: &mut Reduce<'_>,
        found: &mut Found,
    ) -> Result<Measured> {
        let ms = self.attention(concurrency, steps + 1)?;
        let (c, tokens) = (concurrency as u32, steps as u32 + 1);
        found.attention_of_many.push((c, tokens, ms));
        let point = self.speculative((concurrency, plain_ms), steps, reduce)?;
        found.points.push(point);
        Ok(point)
    }

    fn stream(&self) -> &Stream {
        self.builder.stream
    }

    fn pass(&self, sequences: usize, per_sequence: usize) -> PassShape {
        PassShape {
            sequences,
            per_sequence,
            context: self.plan.context + self.plan.output / 2,
        }
    }

    fn target_graph(&mut self, pass: PassShape, reduce: &mut Reduce<'_>) -> Result<Graph> {
        self.builder.plan_model(self.target, pass.tokens())?;
        // Once outside the capture, to load kernels: without sums, for a rank that waits in one on
        // a GPU keeps another rank there from loading.
        self.builder
            .target(self.target, self.cache, pass, &mut |_, _| Ok(()))?;
        self.stream().synchronize()?;
        let meet = &self.builder.work.hidden;
        reduce(meet, 0)?;
        self.builder.target(self.target, self.cache, pass, reduce)?;
        self.stream().synchronize()?;
        let graph = record(self.builder.stream, || {
            self.builder.target(self.target, self.cache, pass, reduce)
        })?;
        reduce(meet, 0)?;
        Ok(graph)
    }

    fn draft_graph(
        &mut self,
        pass: PassShape,
        steps: usize,
        reduce: &mut Reduce<'_>,
    ) -> Result<Option<Graph>> {
        let (Some(draft), Some(cache)) = (self.draft, self.draft_cache) else {
            return Ok(None);
        };
        self.builder.plan_model(draft, pass.tokens())?;
        self.builder.plan_model(draft, pass.sequences)?;
        self.builder
            .draft(draft, cache, pass, steps, &mut |_, _| Ok(()))?;
        self.stream().synchronize()?;
        let meet = &self.builder.work.hidden;
        reduce(meet, 0)?;
        self.builder.draft(draft, cache, pass, steps, reduce)?;
        self.stream().synchronize()?;
        let graph = record(self.builder.stream, || {
            self.builder.draft(draft, cache, pass, steps, reduce)
        })?;
        reduce(meet, 0)?;
        Ok(Some(graph))
    }

    /// Writes the lengths of the sequences to the GPU, in stream order.
    fn send(&self, lengths: &[u32]) -> Result<()> {
        self.lengths.store(0, lengths)?;
        self.lengths
            .copy_to_device(self.stream(), &self.cache.lengths, lengths.len() * 4)?;
        if let Some(cache) = self.draft_cache {
            self.lengths
                .copy_to_device(self.stream(), &cache.lengths, lengths.len() * 4)?;
        }
        Ok(())
    }

    /// Brings the chosen tokens to the host, as an engine must before it can go on.
    fn fetch(&self, tokens: usize) -> Result<()> {
        self.ids
            .copy_from_device(self.stream(), &self.builder.work.ids, tokens * 4)?;
        self.stream().synchronize()
    }

    /// Median time of a plain step of `sequences` sequences, ms, with what the host does between.
    fn plain(&mut self, sequences: usize, reduce: &mut Reduce<'_>) -> Result<f64> {
        let graph = self.target_graph(self.pass(sequences, 1), reduce)?;
        let steps = self.plan.output.min(24);
        // In the middle of a loop, as attention is probed and a verify holds on average.
        let from = self.plan.context + (self.plan.output - steps) / 2;
        let (_, times) = self.plain_loop(&graph, sequences, (from, steps))?;
        Ok(median(times))
    }

    /// The attention of a pass alone, ms: a probe of one kernel.
    fn attention(&self, sequences: usize, per_sequence: usize) -> Result<f64> {
        let pass = self.pass(sequences, per_sequence);
        let graph = record(self.stream(), || {
            self.builder.attention_alone(self.target, self.cache, pass)
        })?;
        // Clocks that a loop at the power limit has lowered recover.
        std::thread::sleep(REST);
        self.alone(&graph, sequences)
    }

    /// Rounds of `steps` passes over `tokens` tokens that last as long as a loop runs before it
    /// counts, and as it counts. The same on all ranks, so by the weights and not by the clock: 4
    /// TB/s, 600 TFLOP/s.
    fn rounds(&self, steps: usize, tokens: usize) -> (usize, usize) {
        let (read, active) = self.plan.target.pass_bytes(tokens);
        let pass_ms = read / 4e9 + active * tokens as f64 / 600e9;
        let rounds = |times: f64| {
            let rounds = times * self.plan.hold_ms as f64 / (pass_ms * steps as f64).max(0.1);
            (rounds.ceil() as usize).clamp(1, 400)
        };
        if tokens < LIMITED_FROM {
            (rounds(1.0), rounds(1.0))
        } else {
            (rounds(LIMITED_WARM), rounds(LIMITED_COUNTED))
        }
    }

    /// Plain steps in rounds of `steps`, each with `from` cached tokens at first: ms of a step over
    /// all that count, and each one's.
    fn plain_loop(
        &self,
        graph: &Graph,
        sequences: usize,
        (from, steps): (usize, usize),
    ) -> Result<(f64, Vec<f64>)> {
        let (warm, counted) = self.rounds(steps, sequences);
        let mut times = Vec::new();
        let mut began = Instant::now();
        for round in 0..warm + counted {
            if round == warm {
                times.clear();
                began = Instant::now();
            }
            let mut lengths = vec![from as u32; sequences];
            self.send(&lengths)?;
            for _ in 0..steps {
                let start = Instant::now();
                graph.launch(self.stream())?;
                self.fetch(sequences)?;
                lengths.iter_mut().for_each(|l| *l += 1);
                self.send(&lengths)?;
                times.push(ms(start.elapsed()));
            }
            self.stream().synchronize()?;
        }
        Ok((ms(began.elapsed()) / times.len() as f64, times))
    }

    /// The plain loop at a load, ms of a step over all of it.
    fn looped_plain(&mut self, concurrency: usize, reduce: &mut Reduce<'_>) -> Result<f64> {
        let graph = self.target_graph(self.pass(concurrency, 1), reduce)?;
        let whole = (self.plan.context, self.plan.output);
        let (ms, _) = self.plain_loop(&graph, concurrency, whole)?;
        Ok(ms)
    }

    /// The speculative loop at a point, beside the plain one's step, and verify and draft alone.
    fn speculative(
        &mut self,
        (concurrency, plain_ms): (usize, f64),
        steps: usize,
        reduce: &mut Reduce<'_>,
    ) -> Result<Measured> {
        let pass = self.pass(concurrency, steps + 1);
        let verify = self.target_graph(pass, reduce)?;
        let draft = self.draft_graph(pass, steps, reduce)?;
        let looped = self.spec_loop(&verify, draft.as_ref(), concurrency, steps)?;
        let draft_ms = draft
            .as_ref()
            .map(|d| self.alone(d, concurrency))
            .transpose()?;
        let cycle_ms = looped.total_ms / f64::from(looped.cycles);
        Ok(Measured {
            concurrency: concurrency as u32,
            steps: steps as u32,
            plain_tok_s: 1000.0 * concurrency as f64 / plain_ms,
            spec_tok_s: 1000.0 * looped.tokens as f64 / looped.total_ms,
            accept_length: looped.tokens as f64 / (f64::from(looped.cycles) * concurrency as f64),
            cycles: looped.cycles,
            plain_ms,
            cycle_ms,
            verify_ms: self.alone(&verify, concurrency)?,
            draft_step_ms: draft_ms.unwrap_or(0.0) / steps.max(1) as f64,
        })
    }

    /// Draft and verify in turn, accept lengths drawn, in rounds from the same cached tokens.
    fn spec_loop(
        &self,
        verify: &Graph,
        draft: Option<&Graph>,
        concurrency: usize,
        steps: usize,
    ) -> Result<Looped> {
        let expected = expected_tokens(&self.plan.alphas, steps);
        let cycles = ((self.plan.output as f64 / expected).ceil() as u32).max(8);
        let mut draws = Draws::new(self.plan.seed, concurrency, steps);
        let mut counted = Looped::default();
        let (warm, rounds) = self.rounds(cycles as usize, concurrency * (steps + 1));
        let mut began = Instant::now();
        for round in 0..warm + rounds {
            if round == warm {
                counted = Looped::default();
                began = Instant::now();
            }
            let mut lengths = vec![self.plan.context as u32; concurrency];
            self.send(&lengths)?;
            for _ in 0..cycles {
                if let Some(draft) = draft {
                    draft.launch(self.stream())?;
                }
                verify.launch(self.stream())?;
                self.fetch(concurrency * (steps + 1))?;
                for length in &mut lengths {
                    let accepted = draws.tokens(&self.plan.alphas, steps);
                    counted.tokens += u64::from(accepted);
                    // A sequence that ran far ahead stays at the end of its room.
                    *length = (*length + accepted).min((self.cache.capacity - steps - 1) as u32);
                }
                self.send(&lengths)?;
            }
            self.stream().synchronize()?;
            counted.cycles += cycles;
        }
        counted.total_ms = ms(began.elapsed());
        Ok(counted)
    }

    /// A graph alone in the middle of a loop, launched and waited for, ms.
    fn alone(&self, graph: &Graph, concurrency: usize) -> Result<f64> {
        self.send(&vec![
            (self.plan.context + self.plan.output / 2) as u32;
            concurrency
        ])?;
        let mut times = Vec::new();
        for round in 0..WARM + 10 {
            let start = Instant::now();
            graph.launch(self.stream())?;
            self.stream().synchronize()?;
            if round >= WARM {
                times.push(ms(start.elapsed()));
            }
        }
        Ok(median(times))
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
