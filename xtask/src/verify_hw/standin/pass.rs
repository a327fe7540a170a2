//! One forward pass as a CUDA graph: `sequences x per_sequence` tokens over the cache.

use allreduce::device::{Arg, DeviceBuffer, Graph, Kernel, Launch, MatMul, MatMulType, Stream};
use allreduce::{Error, Result};

use super::model::{Cache, Kernels, LayerWeights, Weights};
use super::shapes::{FfnShape, LayerShape};
use super::work::Work;

/// Algorithms tried for each product.
const TRIED: usize = 8;

/// Sums a buffer of bf16 values over the ranks, in stream order.
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

    pub(super) fn matmul(
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
            for (index, size) in products(&layer.shape, tokens, hidden)
                .into_iter()
                .enumerate()
            {
                let found: Vec<&DeviceBuffer> = alike
                    .iter()
                    .filter_map(|w| w.products().get(index).copied())
                    .collect();
                self.plan(size, &found)?;
            }
        }
        if let Some(project) = &weights.project {
            let width = project.bytes() / 2 / hidden;
            self.plan([tokens, hidden, width], &[project])?;
        }
        self.plan([tokens, weights.shapes.vocab, hidden], &[&weights.head])
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

/// Sizes of a layer's products, in the order of [`LayerWeights::products`].
fn products(l: &LayerShape, tokens: usize, hidden: usize) -> Vec<[usize; 3]> {
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
    sizes
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
