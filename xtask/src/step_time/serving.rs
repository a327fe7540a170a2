//! Time per output token of a loaded server: decode steps plus the prefills of others that come
//! between.
//!
//! `c` clients each send a prompt, read the answer and send the next. While one decodes, the others'
//! prefills delay it: over its `output` steps about `c - 1` prompts pass through the engine, scaled
//! by the share of its life that a request spends decoding. Fitted on `data/end_to_end`.

use super::layer::{Batch, layer_time};
use super::{Server, StepParts, bounded};

/// Causal attention of a prefill against its arithmetic at half the bf16 rate.
const PREFILL_ATTENTION_FACTOR: f64 = 1.57;
/// Share of the bf16 rate that prefill attention is charged at before that factor.
const PREFILL_ATTENTION_RATE: f64 = 0.5;
/// Operations per state element and prompt token in the chunked form.
const STATE_FLOPS: f64 = 6.0;
/// Share of the bf16 rate that the chunked form reaches (short products).
const STATE_RATE: f64 = 0.1;
/// Halving steps to the balance: 2^-20 of the first guess's error remains.
const ROUNDS: usize = 20;

/// A loaded server's figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Serving {
    /// Time per output token, ms.
    pub(crate) tpot_ms: f64,
    /// The decode step alone, ms.
    pub(crate) step_ms: f64,
    /// One prompt's prefill by roofline, ms.
    pub(crate) prefill_ms: f64,
    /// Share of a request's life spent decoding.
    pub(crate) decoding_share: f64,
}

impl Server<'_> {
    /// Work of one prompt of `tokens` tokens, ms: no launch or host cost, which decode steps pay.
    pub(crate) fn prefill_ms(&self, tokens: f64) -> f64 {
        let tokens = bounded(tokens);
        let batch = Batch {
            sequences: 1.0,
            tokens,
            rows: tokens,
            context: 1.0,
            passes: 1.0,
            shared_prefix: 0.0,
        };
        let mut total = StepParts::default();
        let ranks = self.rank.sharding.tp.max(1);
        let reduce_us = if ranks > 1 {
            self.all_reduce_us(2.0 * self.rank.hidden * tokens)
        } else {
            0.0
        };
        let mut attention_us = 0.0;
        let mut state_flops = 0.0;
        for kind in &self.kinds {
            let time = layer_time(&self.rank, kind, &batch);
            total.weights_ms += kind.count * (time.dense.work_us() + time.experts.work_us());
            total.allreduce_ms += kind.count * time.all_reduces * reduce_us;
            state_flops += kind.count * STATE_FLOPS * kind.state_elements() * tokens;
            attention_us += kind.count
                * self.prefill_attention_us(kind.heads_times_dims(), tokens, kind.window());
        }
        let attention_ranks = self.rank.sharding.attention_tp().max(1) as f64;
        total.weights_ms +=
            state_flops / attention_ranks / (self.rank.gpu.tflops_bf16.max(1.0) * 1e6 * STATE_RATE);
        (total.weights_ms + total.allreduce_ms + attention_us * PREFILL_ATTENTION_FACTOR) * 1e-3
    }

    /// Causal attention over a prompt: half of all pairs; `row` = sum over heads of query-key and
    /// value elements.
    fn prefill_attention_us(&self, row: f64, tokens: f64, window: Option<f64>) -> f64 {
        let seen = window.map_or(tokens / 2.0, |w| w.min(tokens / 2.0));
        let flops = 2.0 * tokens * seen * row / self.rank.sharding.attention_tp().max(1) as f64;
        flops / (self.rank.gpu.tflops_bf16.max(1.0) * 1e6 * PREFILL_ATTENTION_RATE)
    }
}

/// Figures of `clients` clients with prompts of `input` and answers of `output` tokens.
#[cfg(test)]
pub(crate) fn serving(server: &Server<'_>, clients: f64, input: f64, output: f64) -> Serving {
    let output = bounded(output);
    let context = bounded(input) + output / 2.0;
    let prefill_ms = server.prefill_ms(input);
    let delay_ms = prefill_ms * server.overhead.prefill_share;
    let step = |sequences: f64| server.plain_ms(sequences, context);
    let mut figures = loaded(&step, delay_ms, clients, output);
    figures.prefill_ms = prefill_ms;
    figures
}

/// The balance of decoding and delay: `step` gives the decode step in ms by sequences, `delay_ms`
/// what one prompt of another client costs.
pub(crate) fn loaded(
    step: &dyn Fn(f64) -> f64,
    delay_ms: f64,
    clients: f64,
    output: f64,
) -> Serving {
    let clients = bounded(clients);
    let output = bounded(output);
    let others = clients - 1.0;
    let mut step_ms = step(clients);
    let mut tpot_ms = step_ms;
    let mut decoding_share = 1.0;
    for _ in 0..ROUNDS {
        let decode_ms = output * tpot_ms;
        let load = clients * delay_ms / (clients * delay_ms + decode_ms);
        let first_ms = delay_ms + 0.5 * others * delay_ms * load;
        decoding_share = decode_ms / (decode_ms + first_ms);
        step_ms = step(clients * decoding_share);
        let next = step_ms + others * decoding_share * delay_ms / output;
        tpot_ms = 0.5 * (tpot_ms + next);
    }
    Serving {
        tpot_ms,
        step_ms,
        prefill_ms: delay_ms,
        decoding_share,
    }
}
