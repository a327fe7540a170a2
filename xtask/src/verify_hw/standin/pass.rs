//! One forward pass as a CUDA graph: `sequences x per_sequence` tokens over the cache.

use allreduce::device::{Arg, DeviceBuffer, Graph, Kernel, Launch, MatMul, MatMulType, Stream};
use allreduce::{Error, Result};

use super::model::{Cache, FfnWeights, Kernels, LayerWeights, Weights};
use super::shapes::{FfnShape, LayerShape, Shapes};

/// Blocks that fill the GPU, per multiprocessor: the attention kernel's registers allow four of
/// its blocks.
const BLOCKS_PER_MULTIPROCESSOR: usize = 4;
/// Blocks a multiprocessor below which the experts' products are split over the inputs too.
const EXPERT_BLOCKS: usize = 10;
/// Cached tokens from which a block takes up to 32 query rows, so that the cache is read once.
const WIDE_FROM: usize = 1024;
/// Cached tokens below which the attention is not split: the second kernel costs more.
const SPLIT_FROM: usize = 256;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// Rotary base; any will do.
const ROPE_BASE: f32 = 500_000.0;
/// Algorithms tried for each product.
const TRIED: usize = 8;

/// Sums a buffer of bf16 values over the ranks, in stream order.
pub(crate) type Reduce<'a> = dyn FnMut(&DeviceBuffer, usize) -> Result<()> + 'a;

/// Working memory of passes up to a number of tokens; shared by all passes of a stream.
pub(crate) struct Work {
    pub(crate) hidden: DeviceBuffer,
    residual: DeviceBuffer,
    normed: DeviceBuffer,
    qkv: DeviceBuffer,
    attended: DeviceBuffer,
    up: DeviceBuffer,
    act: DeviceBuffer,
    logits: DeviceBuffer,
    /// Tokens in and out.
    pub(crate) ids: DeviceBuffer,
    partial: DeviceBuffer,
    stats: DeviceBuffer,
    routed: Routed,
    workspace: DeviceBuffer,
}

struct Routed {
    logits: DeviceBuffer,
    chosen: DeviceBuffer,
    weights: DeviceBuffer,
    order: DeviceBuffer,
    starts: DeviceBuffer,
    used: DeviceBuffer,
    rows: DeviceBuffer,
}

/// Most splits of one attention.
const MAX_SPLITS: usize = 64;

impl Work {
    /// Memory for `tokens` tokens of any of the models.
    ///
    /// # Errors
    /// Out of memory, or the driver's own error.
    pub(crate) fn new(
        stream: &Stream,
        models: &[&Shapes],
        tokens: usize,
        sequences: usize,
    ) -> Result<Self> {
        let most = |f: &dyn Fn(&Shapes) -> usize| models.iter().map(|s| f(s)).max().unwrap_or(8);
        let row = |width: usize| DeviceBuffer::zeroed(stream, width * tokens * 2 + 256);
        let hidden = most(&|s| s.hidden);
        let attention = most(&|s| s.layers.iter().map(|l| l.heads * l.dim).max().unwrap_or(8));
        let heads = most(&|s| s.layers.iter().map(|l| l.heads).max().unwrap_or(1));
        let (experts, topk) = models
            .iter()
            .flat_map(|s| &s.layers)
            .filter_map(|l| match l.ffn {
                FfnShape::Moe { experts, topk, .. } => Some((experts, topk)),
                FfnShape::Dense { .. } => None,
            })
            .max()
            .unwrap_or((32, 1));
        // Splits are taken for few sequences only: many fill the GPU unsplit.
        let split_rows = tokens * heads * MAX_SPLITS.min(8 + 1024 / sequences.max(1));
        Ok(Self {
            hidden: row(3 * hidden)?,
            residual: row(hidden)?,
            normed: row(2 * hidden)?,
            qkv: row(most(&Shapes::widest_qkv))?,
            attended: row(attention)?,
            up: row(most(&Shapes::widest_ffn))?,
            act: row(most(&Shapes::widest_ffn))?,
            logits: row(most(&|s| s.vocab))?,
            ids: DeviceBuffer::zeroed(stream, tokens * 4)?,
            partial: DeviceBuffer::new(stream.device(), (split_rows * 128 * 4).min(2 << 30))?,
            stats: DeviceBuffer::new(stream.device(), (split_rows * 8).min(64 << 20))?,
            routed: Routed {
                logits: row(experts)?,
                chosen: row(topk * 2)?,
                weights: row(topk * 2)?,
                order: row(topk * 2)?,
                starts: DeviceBuffer::zeroed(stream, (experts + 1) * 4)?,
                used: DeviceBuffer::zeroed(stream, (experts + 1) * 4)?,
                rows: row(topk * hidden)?,
            },
            workspace: DeviceBuffer::new(stream.device(), MatMul::WORKSPACE_BYTES)?,
        })
    }
}

/// What a pass runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PassShape {
    pub(crate) sequences: usize,
    pub(crate) per_sequence: usize,
    /// Cached tokens that the split of the attention is chosen for.
    pub(crate) context: usize,
}

impl PassShape {
    pub(crate) fn tokens(&self) -> usize {
        self.sequences * self.per_sequence
    }
}

/// Queues passes on a stream; products are planned and timed once each.
pub(crate) struct Builder<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) kernels: &'a Kernels,
    pub(crate) work: &'a Work,
    plans: Vec<([usize; 3], MatMul)>,
}

impl<'a> Builder<'a> {
    /// A builder whose passes share `work`.
    pub(crate) fn new(stream: &'a Stream, kernels: &'a Kernels, work: &'a Work) -> Self {
        Self {
            stream,
            kernels,
            work,
            plans: Vec::new(),
        }
    }

    /// Plans `y[tokens, outputs] = x w^T` if it is not known yet, on the fastest algorithm.
    fn plan(&mut self, size: [usize; 3], weights: &[&DeviceBuffer]) -> Result<()> {
        if self.plans.iter().any(|(known, _)| *known == size) {
            return Ok(());
        }
        let work = self.work;
        let device = self.stream.device();
        let mut plan =
            MatMul::with_workspace(device, size, MatMulType::Bf16, work.workspace.clone())?;
        // The widest buffers hold any input and output.
        let (x, y) = (&work.act, &work.logits);
        let (x, y) = (
            if x.bytes() >= size[0] * size[2] * 2 {
                x
            } else {
                &work.hidden
            },
            if y.bytes() >= size[0] * size[1] * 2 {
                y
            } else {
                &work.up
            },
        );
        if x.bytes() >= size[0] * size[2] * 2 && y.bytes() >= size[0] * size[1] * 2 {
            plan.tune(self.stream, x, weights, y, TRIED)?;
        }
        self.plans.push((size, plan));
        Ok(())
    }

    fn matmul(
        &self,
        size: [usize; 3],
        x: &DeviceBuffer,
        w: &DeviceBuffer,
        y: &DeviceBuffer,
    ) -> Result<()> {
        let plan = self.plans.iter().find(|(known, _)| *known == size);
        let (_, plan) = plan.ok_or_else(|| Error::Invalid(format!("no plan for {size:?}")))?;
        plan.run(self.stream, x, w, y)
    }

    /// Plans every product of a model for a number of tokens.
    ///
    /// # Errors
    /// No cuBLASLt, or the library's own error.
    pub(crate) fn plan_model(&mut self, weights: &Weights, tokens: usize) -> Result<()> {
        let hidden = weights.shapes.hidden;
        // A few layers' weights in turn, so that the cache does not flatter an algorithm.
        let some: Vec<&LayerWeights> = weights.layers.iter().rev().take(4).collect();
        for layer in weights
            .layers
            .first()
            .into_iter()
            .chain(weights.layers.last())
        {
            let l = layer.shape;
            let same: Vec<&&LayerWeights> = some.iter().filter(|w| w.shape == l).collect();
            let all = |f: &dyn Fn(&'_ LayerWeights) -> Option<DeviceBuffer>| -> Vec<DeviceBuffer> {
                let found: Vec<_> = same.iter().filter_map(|w| f(w)).collect();
                if found.is_empty() {
                    f(layer).into_iter().collect()
                } else {
                    found
                }
            };
            let mut products = vec![
                (
                    [tokens, qkv_rows(&l), hidden * l.inputs],
                    all(&|w| Some(w.qkv.clone())),
                ),
                (
                    [tokens, hidden, l.heads * l.dim],
                    all(&|w| Some(w.out.clone())),
                ),
            ];
            match l.ffn {
                FfnShape::Dense { inter } => {
                    products.push((
                        [tokens, 2 * inter, hidden],
                        all(&|w| match &w.ffn {
                            FfnWeights::Dense { up, .. } => Some(up.clone()),
                            FfnWeights::Moe { .. } => None,
                        }),
                    ));
                    products.push((
                        [tokens, hidden, inter],
                        all(&|w| match &w.ffn {
                            FfnWeights::Dense { down, .. } => Some(down.clone()),
                            FfnWeights::Moe { .. } => None,
                        }),
                    ));
                }
                FfnShape::Moe {
                    experts, shared, ..
                } => {
                    products.push((
                        [tokens, experts, hidden],
                        all(&|w| match &w.ffn {
                            FfnWeights::Moe { router, .. } => Some(router.clone()),
                            FfnWeights::Dense { .. } => None,
                        }),
                    ));
                    if shared > 0 {
                        products.push((
                            [tokens, 2 * shared, hidden],
                            all(&|w| match &w.ffn {
                                FfnWeights::Moe {
                                    shared: Some((up, _)),
                                    ..
                                } => Some(up.clone()),
                                _ => None,
                            }),
                        ));
                        products.push((
                            [tokens, hidden, shared],
                            all(&|w| match &w.ffn {
                                FfnWeights::Moe {
                                    shared: Some((_, down)),
                                    ..
                                } => Some(down.clone()),
                                _ => None,
                            }),
                        ));
                    }
                }
            }
            for (size, buffers) in products {
                self.plan(size, &buffers.iter().collect::<Vec<_>>())?;
            }
        }
        if let Some(project) = &weights.project {
            let width = project.bytes() / 2 / hidden;
            self.plan([tokens, hidden, width], &[project])?;
        }
        self.plan([tokens, weights.shapes.vocab, hidden], &[&weights.head])
    }

    fn launch(&self, kernel: &Kernel, shape: Launch, args: &[Arg<'_>]) -> Result<()> {
        kernel.launch(self.stream, shape, args)
    }

    fn small(&self, name: &str) -> Result<Kernel> {
        self.kernels.small.kernel(name)
    }

    /// Queues one pass of the target: embeds `ids`, runs all layers, leaves the chosen tokens in
    /// `ids` and the last hidden states in `hidden`.
    ///
    /// # Errors
    /// The driver's or a library's own error.
    pub(crate) fn target(
        &self,
        weights: &Weights,
        cache: &Cache,
        pass: PassShape,
        reduce: &mut Reduce<'_>,
    ) -> Result<()> {
        self.embed(weights, pass.tokens())?;
        self.layers(weights, cache, pass, false, reduce)?;
        self.head(weights, pass.tokens())
    }

    fn embed(&self, weights: &Weights, tokens: usize) -> Result<()> {
        let packs = (weights.shapes.hidden / 8) as u32;
        let args = [
            Arg::Device(&weights.embedding),
            Arg::Device(&self.work.ids),
            Arg::Device(&self.work.hidden),
            Arg::U32(packs),
            Arg::U32(weights.shapes.embedding as u32),
        ];
        self.launch(
            &self.small("embed")?,
            Launch::new(tokens as u32, threads(packs)),
            &args,
        )
    }

    /// `residual += hidden` (from the second on), `normed = norm(residual)`.
    fn norm(&self, weights: &Weights, tokens: usize, index: usize, add: bool) -> Result<()> {
        let hidden = weights.shapes.hidden;
        let packs = (hidden / 8) as u32;
        let args = [
            Arg::Device(&self.work.hidden),
            Arg::Device(&self.work.residual),
            Arg::DeviceAt(&weights.norms, index * hidden * 2),
            Arg::Device(&self.work.normed),
            Arg::U32(packs),
            Arg::U32(u32::from(add)),
        ];
        self.launch(
            &self.small("add_norm")?,
            Launch::new(tokens as u32, threads(packs)),
            &args,
        )
    }

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

    /// All layers: `hidden` in and out. `joined`: the first layer reads `normed` as it is, two
    /// hidden states side by side.
    fn layers(
        &self,
        weights: &Weights,
        cache: &Cache,
        pass: PassShape,
        joined: bool,
        reduce: &mut Reduce<'_>,
    ) -> Result<()> {
        let tokens = pass.tokens();
        let hidden = weights.shapes.hidden;
        let work = self.work;
        for (index, (layer, kv)) in weights.layers.iter().zip(&cache.layers).enumerate() {
            let l = layer.shape;
            if !(joined && index == 0) {
                self.norm(weights, tokens, 2 * index, index > 0)?;
            }
            self.matmul(
                [tokens, qkv_rows(&l), hidden * l.inputs],
                &work.normed,
                &layer.qkv,
                &work.qkv,
            )?;
            self.attention(&l, cache, kv, pass)?;
            self.matmul(
                [tokens, hidden, l.heads * l.dim],
                &work.attended,
                &layer.out,
                &work.hidden,
            )?;
            reduce(&work.hidden, tokens * hidden)?;
            self.norm(weights, tokens, 2 * index + 1, true)?;
            self.feed_forward(layer, tokens, hidden, index)?;
            reduce(&work.hidden, tokens * hidden)?;
        }
        self.norm(weights, tokens, 2 * weights.layers.len(), true)
    }

    fn attention(
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
        let splits = self.splits(l, pass, tiles);
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
        self.launch(&module.kernel("attend")?, shape, &args)?;
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

    fn splits(&self, l: &LayerShape, pass: PassShape, tiles: usize) -> usize {
        if pass.context < SPLIT_FROM {
            return 1;
        }
        let blocks = pass.sequences * l.kv_heads * tiles;
        let wanted = self.stream.device().multiprocessors() as usize * BLOCKS_PER_MULTIPROCESSOR;
        let room = self.work.partial.bytes() / (pass.tokens() * l.heads * l.dim * 4);
        wanted
            .div_ceil(blocks)
            .min(pass.context.div_ceil(64))
            .min(MAX_SPLITS)
            .min(room)
            .max(1)
    }

    fn feed_forward(
        &self,
        layer: &LayerWeights,
        tokens: usize,
        hidden: usize,
        salt: usize,
    ) -> Result<()> {
        let work = self.work;
        match (&layer.ffn, layer.shape.ffn) {
            (FfnWeights::Dense { up, down }, FfnShape::Dense { inter }) => {
                self.matmul([tokens, 2 * inter, hidden], &work.normed, up, &work.up)?;
                self.silu(tokens, inter)?;
                self.matmul([tokens, hidden, inter], &work.act, down, &work.hidden)
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
                    self.silu(tokens, width)?;
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

    fn silu(&self, rows: usize, inter: usize) -> Result<()> {
        let packs = (inter / 8) as u32;
        let args = [
            Arg::Device(&self.work.up),
            Arg::Device(&self.work.act),
            Arg::U32(packs),
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
            Arg::Device(&routed.used),
            n(pairs),
            n(experts),
        ];
        self.launch(&module.kernel("sort")?, Launch::new(1, 512), &sort)?;
        let grouped = module.kernel("grouped")?;
        let enough = self.stream.device().multiprocessors() as usize * EXPERT_BLOCKS;
        let product = |x: &DeviceBuffer,
                       w: &DeviceBuffer,
                       y: &DeviceBuffer,
                       inputs: usize,
                       outputs: usize,
                       divide: usize| {
            let split = outputs / 64 * experts.min(pairs) < enough;
            let args = [
                Arg::Device(x),
                Arg::Device(w),
                Arg::Device(y),
                Arg::Device(&routed.order),
                Arg::Device(&routed.starts),
                Arg::Device(&routed.used),
                n(inputs),
                n(outputs),
                n(experts),
                n(divide),
                Arg::U32(u32::from(split)),
            ];
            let rows = if split { 16 } else { 64 };
            let shape = Launch {
                grid: ((outputs / rows) as u32, experts.min(pairs) as u32, 1),
                block: (128, 1, 1),
                shared_bytes: 0,
            };
            self.launch(&grouped, shape, &args)
        };
        product(
            &self.work.normed,
            up,
            &self.work.up,
            hidden,
            2 * inter,
            topk,
        )?;
        self.silu(pairs, inter)?;
        product(&self.work.act, down, &routed.rows, inter, hidden, 1)?;
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

    /// Output head and choice of the likeliest token of each row.
    fn head(&self, weights: &Weights, tokens: usize) -> Result<()> {
        let vocab = weights.shapes.vocab;
        let work = self.work;
        self.matmul(
            [tokens, vocab, weights.shapes.hidden],
            &work.normed,
            &weights.head,
            &work.logits,
        )?;
        let packs = (vocab / 8) as u32;
        let args = [
            Arg::Device(&work.logits),
            Arg::Device(&work.ids),
            Arg::U32(packs),
        ];
        self.launch(
            &self.small("argmax")?,
            Launch::new(tokens as u32, 1024),
            &args,
        )
    }

    /// Queues `steps` draft steps: the first over the tokens that were just verified (one more
    /// than the depth for each sequence), with their hidden states projected; each later one over
    /// one token a sequence. The head runs for the last token of each sequence.
    ///
    /// # Errors
    /// The driver's or a library's own error.
    pub(crate) fn draft(
        &self,
        weights: &Weights,
        cache: &Cache,
        pass: PassShape,
        steps: usize,
        reduce: &mut Reduce<'_>,
    ) -> Result<()> {
        let work = self.work;
        let hidden = weights.shapes.hidden;
        for step in 0..steps {
            let over = PassShape {
                per_sequence: if step == 0 { pass.per_sequence } else { 1 },
                ..pass
            };
            let tokens = over.tokens();
            if let Some(project) = weights.project.as_ref().filter(|_| step == 0) {
                let width = project.bytes() / 2 / hidden;
                self.matmul(
                    [tokens, hidden, width],
                    &work.hidden,
                    project,
                    &work.residual,
                )?;
            }
            self.embed(weights, tokens)?;
            if weights.layers.first().is_some_and(|l| l.shape.inputs == 2) {
                let packs = (hidden / 8) as u32;
                let args = [
                    Arg::Device(&work.hidden),
                    Arg::Device(&work.residual),
                    Arg::Device(&work.normed),
                    Arg::U32(packs),
                ];
                self.launch(
                    &self.small("join")?,
                    Launch::new(tokens as u32, threads(packs)),
                    &args,
                )?;
                self.layers(weights, cache, over, true, reduce)?;
            } else {
                self.layers(weights, cache, over, false, reduce)?;
            }
            self.head(weights, over.sequences)?;
        }
        Ok(())
    }
}

fn threads(packs: u32) -> u32 {
    packs.next_multiple_of(32).clamp(32, 1024)
}

fn qkv_rows(l: &LayerShape) -> usize {
    (l.heads + 2 * l.kv_heads) * l.dim
}

/// Records `queue` and prepares the graph for its first launch.
///
/// # Errors
/// As [`Stream::capture`].
pub(crate) fn record(stream: &Stream, queue: impl FnOnce() -> Result<()>) -> Result<Graph> {
    let graph = stream.capture(|_| queue())?;
    graph.upload(stream)?;
    Ok(graph)
}
