//! One forward pass as a CUDA graph: `sequences x per_sequence` tokens over the cache.

use allreduce::device::{Arg, DeviceBuffer, Graph, Kernel, Launch, MatMul, MatMulType, Stream};
use allreduce::{Error, Result};

use super::model::{Cache, Kernels, LayerWeights, Weights};
use super::shapes::{FfnShape, LayerShape};
use super::work::Work;

/// Algorithms tried for each product.
const TRIED: usize = 8;

/// Sums a buffer of bf16 values over the ranks, in stream order; of 0 elements: the ranks' host
/// threads meet.
pub(crate) type Reduce<'a> = dyn FnMut(&DeviceBuffer, usize) -> Result<()> + 'a;

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
    plans: Vec<(Product, MatMul)>,
}

/// A dense product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Product {
    /// Tokens, outputs, inputs.
    pub(super) size: [usize; 3],
    /// Operands in fp8.
    pub(super) fp8: bool,
}

impl Product {
    /// In bf16.
    pub(super) fn half(size: [usize; 3]) -> Self {
        Self { size, fp8: false }
    }
}

/// What values are multiplied by as they become fp8, so that they fill its range: after a norm,
/// after attention, after the activation (the weights' rows are scaled to keep the size of their
/// input, norms' factors are small). Times say the same for any.
pub(super) const NORMED_SCALE: f32 = 1024.0;
pub(super) const ATTENDED_SCALE: f32 = 256.0;
pub(super) const ACT_SCALE: f32 = 65536.0;

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
    fn plan(&mut self, product: Product, weights: &[&DeviceBuffer]) -> Result<()> {
        if self.plans.iter().any(|(known, _)| *known == product) {
            return Ok(());
        }
        let size = product.size;
        let (element, scale) = if product.fp8 {
            (MatMulType::Fp8, 1.0 / (16.0 * (size[2] as f32).sqrt()))
        } else {
            (MatMulType::Bf16, 1.0)
        };
        let work = self.work;
        let device = self.stream.device();
        let plan = MatMul::with_workspace(device, size, element, work.workspace.clone())?;
        let mut plan = plan.scaled(scale);
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
        self.plans.push((product, plan));
        Ok(())
    }

    /// Queues `y = x w^T` in bf16.
    pub(super) fn matmul(
        &self,
        size: [usize; 3],
        x: &DeviceBuffer,
        w: &DeviceBuffer,
        y: &DeviceBuffer,
    ) -> Result<()> {
        self.product(Product::half(size), x, w, y)
    }

    pub(super) fn product(
        &self,
        product: Product,
        x: &DeviceBuffer,
        w: &DeviceBuffer,
        y: &DeviceBuffer,
    ) -> Result<()> {
        let plan = self.plans.iter().find(|(known, _)| *known == product);
        let (_, plan) = plan.ok_or_else(|| Error::Invalid(format!("no plan for {product:?}")))?;
        plan.run(self.stream, x, w, y)
    }

    /// Plans every product of a model for a number of tokens.
    ///
    /// # Errors
    /// No cuBLASLt, or the library's own error.
    pub(crate) fn plan_model(&mut self, weights: &Weights, tokens: usize) -> Result<()> {
        let hidden = weights.shapes.hidden;
        // A few layers' weights in turn, so that the cache does not flatter an algorithm.
        let ends = weights
            .layers
            .first()
            .into_iter()
            .chain(weights.layers.last());
        for layer in ends {
            let alike: Vec<&LayerWeights> = weights
                .layers
                .iter()
                .filter(|other| other.shape == layer.shape)
                .take(4)
                .collect();
            let all = products(&layer.shape, tokens, hidden);
            for (index, product) in all.into_iter().enumerate() {
                let found: Vec<&DeviceBuffer> = alike
                    .iter()
                    .filter_map(|w| w.products().get(index).copied())
                    .collect();
                self.plan(product, &found)?;
            }
        }
        if let Some(project) = &weights.project {
            let width = project.bytes() / 2 / hidden;
            self.plan(Product::half([tokens, hidden, width]), &[project])?;
        }
        let head = [tokens, weights.shapes.vocab, hidden];
        self.plan(Product::half(head), &[&weights.head])
    }

    pub(super) fn launch(&self, kernel: &Kernel, shape: Launch, args: &[Arg<'_>]) -> Result<()> {
        kernel.launch(self.stream, shape, args)
    }

    pub(super) fn small(&self, name: &str) -> Result<Kernel> {
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

    /// `residual += hidden` (from the second on), `normed = norm(residual)`, in fp8 where asked.
    fn norm(
        &self,
        weights: &Weights,
        tokens: usize,
        (index, add): (usize, bool),
        fp8: bool,
    ) -> Result<()> {
        let hidden = weights.shapes.hidden;
        let packs = (hidden / 8) as u32;
        let args = [
            Arg::Device(&self.work.hidden),
            Arg::Device(&self.work.residual),
            Arg::DeviceAt(&weights.norms, index * hidden * 2),
            Arg::Device(&self.work.normed),
            Arg::U32(packs),
            Arg::U32(u32::from(add)),
            Arg::F32(if fp8 { NORMED_SCALE } else { 0.0 }),
        ];
        self.launch(
            &self.small("add_norm")?,
            Launch::new(tokens as u32, threads(packs)),
            &args,
        )
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
            let fp8 = l.fp8;
            if !(joined && index == 0) {
                self.norm(weights, tokens, (2 * index, index > 0), fp8)?;
            }
            let size = [tokens, qkv_rows(&l), hidden * l.inputs];
            self.product(Product { size, fp8 }, &work.normed, &layer.qkv, &work.qkv)?;
            self.attention(&l, cache, kv, pass)?;
            let size = [tokens, hidden, l.heads * l.dim];
            let mut attended = &work.attended;
            if fp8 {
                // Queries, keys and values have been used: their place is free.
                self.narrow(attended, &work.qkv, tokens * l.heads * l.dim)?;
                attended = &work.qkv;
            }
            self.product(Product { size, fp8 }, attended, &layer.out, &work.hidden)?;
            reduce(&work.hidden, tokens * hidden)?;
            self.norm(weights, tokens, (2 * index + 1, true), fp8)?;
            self.feed_forward(layer, tokens, hidden, index)?;
            reduce(&work.hidden, tokens * hidden)?;
        }
        self.norm(weights, tokens, (2 * weights.layers.len(), true), false)
    }

    /// `to = from` in fp8.
    fn narrow(&self, from: &DeviceBuffer, to: &DeviceBuffer, elements: usize) -> Result<()> {
        let packs = elements / 8;
        let args = [
            Arg::Device(from),
            Arg::Device(to),
            Arg::U64(packs as u64),
            Arg::F32(ATTENDED_SCALE),
        ];
        let shape = Launch::new(packs.div_ceil(256) as u32, 256);
        self.launch(&self.small("narrow")?, shape, &args)
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

    /// Embedding and hidden state of each token side by side in `normed`.
    fn join(&self, tokens: usize, hidden: usize) -> Result<()> {
        let packs = (hidden / 8) as u32;
        let args = [
            Arg::Device(&self.work.hidden),
            Arg::Device(&self.work.residual),
            Arg::Device(&self.work.normed),
            Arg::U32(packs),
        ];
        let shape = Launch::new(tokens as u32, threads(packs));
        self.launch(&self.small("join")?, shape, &args)
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
            let project = weights.project.as_ref();
            if let Some(project) = project.filter(|_| step == 0 && !weights.mtp) {
                let width = project.bytes() / 2 / hidden;
                let size = [tokens, hidden, width];
                self.matmul(size, &work.hidden, project, &work.residual)?;
            }
            self.embed(weights, tokens)?;
            let joined = weights.layers.first().is_some_and(|l| l.shape.inputs == 2);
            if joined || weights.mtp {
                self.join(tokens, hidden)?;
            }
            if let Some(project) = project.filter(|_| weights.mtp) {
                let size = [tokens, hidden, 2 * hidden];
                self.matmul(size, &work.normed, project, &work.hidden)?;
            }
            self.layers(weights, cache, over, joined, reduce)?;
            self.head(weights, over.sequences)?;
        }
        Ok(())
    }
}

/// Threads of a block for a row of so many packs.
fn threads(packs: u32) -> u32 {
    packs.next_multiple_of(32).clamp(32, 1024)
}

/// A layer's products, in the order of [`LayerWeights::products`].
fn products(l: &LayerShape, tokens: usize, hidden: usize) -> Vec<Product> {
    let mut sizes = vec![
        [tokens, qkv_rows(l), hidden * l.inputs],
        [tokens, hidden, l.heads * l.dim],
    ];
    match l.ffn {
        FfnShape::Dense { inter } => {
            sizes.extend([[tokens, 2 * inter, hidden], [tokens, hidden, inter]]);
        }
        FfnShape::Moe {
            experts, shared, ..
        } => {
            sizes.push([tokens, experts, hidden]);
            if shared > 0 {
                sizes.extend([[tokens, 2 * shared, hidden], [tokens, hidden, shared]]);
            }
        }
    }
    let of = |size: [usize; 3]| Product { size, fp8: l.fp8 };
    sizes.into_iter().map(of).collect()
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
