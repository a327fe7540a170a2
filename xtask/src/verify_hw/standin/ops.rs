//! The parts of a layer: attention, and the feed-forward dense or routed.

use allreduce::device::{Arg, DeviceBuffer, Launch};
use allreduce::{Error, Result};

use super::model::{Cache, FfnWeights, LayerWeights, Weights};
use super::pass::{ACT_SCALE, Builder, PassShape, Product};
use super::shapes::{FfnShape, LayerShape};
use super::work::{MAX_SPLITS, most_parts};

/// Share of the best filling of the GPU at which fewer splits are taken: each costs a share of the
/// combining kernel.
const GOOD_FILL: f64 = 0.92;
/// Blocks a multiprocessor below which the experts' products are split over the inputs too.
const EXPERT_BLOCKS: usize = 10;
/// Cached tokens from which a block takes up to 32 query rows, so that the cache is read once.
const WIDE_FROM: usize = 1024;
/// Cached tokens below which the attention is not split: the second kernel costs more.
const SPLIT_FROM: usize = 256;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// Rotary base; any will do.
const ROPE_BASE: f32 = 500_000.0;

impl Builder<'_> {
    /// Queues the attention of every layer alone, as a pass has it: a probe.
    ///
    /// # Errors
    /// The driver's own error.
    pub(crate) fn attention_alone(
        &self,
        weights: &Weights,
        cache: &Cache,
        pass: PassShape,
    ) -> Result<()> {
        let layers = weights.layers.iter().zip(&cache.layers);
        layers
            .into_iter()
            .try_for_each(|(layer, kv)| self.attention(&layer.shape, cache, kv, pass))
    }

    pub(super) fn attention(
        &self,
        l: &LayerShape,
        cache: &Cache,
        kv: &(DeviceBuffer, DeviceBuffer),
        pass: PassShape,
    ) -> Result<()> {
        let work = self.work;
        let numbers = |n: usize| Arg::U32(n as u32);
        let rope = [
            Arg::Device(&work.qkv),
            Arg::Device(&kv.0),
            Arg::Device(&kv.1),
            Arg::Device(&cache.lengths),
            numbers(l.heads),
            numbers(l.kv_heads),
            numbers(l.dim),
            numbers(pass.per_sequence),
            numbers(cache.capacity),
            Arg::F32(ROPE_BASE),
        ];
        let tokens = pass.tokens();
        self.launch(&self.small("rope")?, Launch::new(tokens as u32, 256), &rope)?;
        let rows = l.heads / l.kv_heads * pass.per_sequence;
        let (module, tile) = if rows <= 16 || pass.context < WIDE_FROM {
            (&self.kernels.narrow, 16)
        } else {
            (&self.kernels.wide, 32)
        };
        let tiles = rows.div_ceil(tile);
        let attend = module.kernel("attend")?;
        let resident = attend.blocks_per_multiprocessor(128, 0)?;
        let splits = self.splits(l, pass, tiles, resident);
        let shape = Launch {
            grid: (
                splits as u32,
                (pass.sequences * l.kv_heads) as u32,
                tiles as u32,
            ),
            block: (128, 1, 1),
            shared_bytes: 0,
        };
        let args = [
            Arg::Device(&work.qkv),
            Arg::Device(&kv.0),
            Arg::Device(&kv.1),
            Arg::Device(&cache.lengths),
            Arg::Device(&work.attended),
            Arg::Device(&work.partial),
            Arg::Device(&work.stats),
            numbers(l.heads),
            numbers(l.kv_heads),
            numbers(pass.per_sequence),
            numbers(cache.capacity),
            Arg::F32(LOG2_E / (l.dim as f32).sqrt()),
        ];
        self.launch(&attend, shape, &args)?;
        if splits > 1 {
            let args = [
                Arg::Device(&work.partial),
                Arg::Device(&work.stats),
                Arg::Device(&work.attended),
                numbers(splits),
            ];
            let shape = Launch::new((tokens * l.heads) as u32, l.dim as u32);
            self.launch(&module.kernel("combine")?, shape, &args)?;
        }
        Ok(())
    }

    /// Splits of the cache that fill the GPU best: a last wave of few blocks leaves it idle.
    fn splits(&self, l: &LayerShape, pass: PassShape, tiles: usize, resident: u32) -> usize {
        if pass.context < SPLIT_FROM {
            return 1;
        }
        let blocks = pass.sequences * l.kv_heads * tiles;
        let slots = self.stream.device().multiprocessors() as usize * resident.max(1) as usize;
        let room = self.work.partial.bytes() / (pass.tokens() * l.heads * l.dim * 4);
        let most = pass.context.div_ceil(64).min(MAX_SPLITS).min(room).max(1);
        let fill = |splits: usize| {
            let wanted = blocks * splits;
            wanted as f64 / (wanted.div_ceil(slots) * slots) as f64
        };
        let best = (1..=most).map(fill).fold(0.0, f64::max);
        let good = (1..=most).find(|splits| fill(*splits) >= GOOD_FILL * best);
        good.unwrap_or(1)
    }

    pub(super) fn feed_forward(
        &self,
        layer: &LayerWeights,
        tokens: usize,
        hidden: usize,
        salt: usize,
    ) -> Result<()> {
        let work = self.work;
        match (&layer.ffn, layer.shape.ffn) {
            (FfnWeights::Dense { up, down }, FfnShape::Dense { inter }) => {
                let fp8 = layer.shape.fp8;
                let product = |size: [usize; 3]| Product { size, fp8 };
                let size = [tokens, 2 * inter, hidden];
                self.product(product(size), &work.normed, up, &work.up)?;
                self.silu(tokens, inter, if fp8 { ACT_SCALE } else { 0.0 })?;
                let size = [tokens, hidden, inter];
                self.product(product(size), &work.act, down, &work.hidden)
            }
            (
                FfnWeights::Moe {
                    router,
                    up,
                    down,
                    shared,
                },
                FfnShape::Moe {
                    experts,
                    topk,
                    inter,
                    shared: width,
                },
            ) => {
                if let Some((shared_up, shared_down)) = shared {
                    self.matmul(
                        [tokens, 2 * width, hidden],
                        &work.normed,
                        shared_up,
                        &work.up,
                    )?;
                    self.silu(tokens, width, 0.0)?;
                    self.matmul(
                        [tokens, hidden, width],
                        &work.act,
                        shared_down,
                        &work.hidden,
                    )?;
                }
                self.matmul(
                    [tokens, experts, hidden],
                    &work.normed,
                    router,
                    &work.routed.logits,
                )?;
                self.experts([up, down], [experts, topk, inter, hidden], tokens, salt)
            }
            _ => Err(Error::Invalid("weights of another shape".into())),
        }
    }

    /// The activation; in fp8 times `scale` where that is above 0.
    fn silu(&self, rows: usize, inter: usize, scale: f32) -> Result<()> {
        let packs = (inter / 8) as u32;
        let args = [
            Arg::Device(&self.work.up),
            Arg::Device(&self.work.act),
            Arg::U32(packs),
            Arg::F32(scale),
        ];
        let shape = Launch {
            grid: (rows as u32, packs.div_ceil(256).clamp(1, 8), 1),
            block: (256, 1, 1),
            shared_bytes: 0,
        };
        self.launch(&self.small("silu")?, shape, &args)
    }

    fn experts(
        &self,
        [up, down]: [&DeviceBuffer; 2],
        [experts, topk, inter, hidden]: [usize; 4],
        tokens: usize,
        salt: usize,
    ) -> Result<()> {
        let routed = &self.work.routed;
        let module = self.kernels.experts.as_ref();
        let module = module.ok_or_else(|| Error::Invalid("no expert kernels".into()))?;
        let n = |value: usize| Arg::U32(value as u32);
        let choose = [
            Arg::Device(&routed.logits),
            Arg::Device(&routed.chosen),
            Arg::Device(&routed.weights),
            n(experts),
            n(topk),
            n(salt + 1),
        ];
        self.launch(
            &module.kernel("choose")?,
            Launch::new(tokens as u32, 32),
            &choose,
        )?;
        let pairs = tokens * topk;
        let sort = [
            Arg::Device(&routed.chosen),
            Arg::Device(&routed.order),
            Arg::Device(&routed.starts),
            Arg::Device(&routed.parts),
            n(pairs),
            n(experts),
        ];
        self.launch(&module.kernel("sort")?, Launch::new(1, 512), &sort)?;
        let normed = &self.work.normed;
        let up_sizes = [hidden, 2 * inter, experts, pairs, topk];
        self.expert_product(normed, up, &self.work.up, up_sizes)?;
        self.silu(pairs, inter, 0.0)?;
        let down_sizes = [inter, hidden, experts, pairs, 1];
        self.expert_product(&self.work.act, down, &routed.rows, down_sizes)?;
        let gather = [
            Arg::Device(&routed.rows),
            Arg::Device(&routed.weights),
            Arg::Device(&self.work.hidden),
            n(hidden),
            n(topk),
        ];
        self.launch(
            &module.kernel("gather")?,
            Launch::new(tokens as u32, 512),
            &gather,
        )
    }

    /// One grouped product over the sorted pairs; `divide` pairs of a token share a row of `x`.
    fn expert_product(
        &self,
        x: &DeviceBuffer,
        w: &DeviceBuffer,
        y: &DeviceBuffer,
        [inputs, outputs, experts, pairs, divide]: [usize; 5],
    ) -> Result<()> {
        let routed = &self.work.routed;
        let module = self.kernels.experts.as_ref();
        let module = module.ok_or_else(|| Error::Invalid("no expert kernels".into()))?;
        let n = |value: usize| Arg::U32(value as u32);
        let enough = self.stream.device().multiprocessors() as usize * EXPERT_BLOCKS;
        let few = outputs / 64 * experts.min(pairs) < enough;
        let args = [
            Arg::Device(x),
            Arg::Device(w),
            Arg::Device(y),
            Arg::Device(&routed.order),
            Arg::Device(&routed.starts),
            Arg::Device(&routed.parts),
            n(inputs),
            n(outputs),
            n(divide),
        ];
        let (name, rows) = if few {
            ("grouped_few", 16)
        } else {
            ("grouped_many", 64)
        };
        let shape = Launch {
            grid: (
                (outputs / rows) as u32,
                most_parts(experts, pairs) as u32,
                1,
            ),
            block: (128, 1, 1),
            shared_bytes: 0,
        };
        self.launch(&module.kernel(name)?, shape, &args)
    }
}
