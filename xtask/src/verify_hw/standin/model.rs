//! Weights and cache in device memory.

use allreduce::Result;
use allreduce::device::{Arg, Device, DeviceBuffer, Launch, Module, Stream};

use super::shapes::{DraftShapes, FfnShape, LayerShape, Shapes};

/// The weights of one layer.
#[derive(Debug, Clone)]
pub(crate) struct LayerWeights {
    pub(crate) shape: LayerShape,
    pub(crate) qkv: DeviceBuffer,
    pub(crate) out: DeviceBuffer,
    pub(crate) ffn: FfnWeights,
}

impl LayerWeights {
    /// The weights of its dense products: attention in and out, then the feed-forward's, or the
    /// router and the shared expert.
    pub(crate) fn products(&self) -> Vec<&DeviceBuffer> {
        let mut found = vec![&self.qkv, &self.out];
        match &self.ffn {
            FfnWeights::Dense { up, down } => found.extend([up, down]),
            FfnWeights::Moe { router, shared, .. } => {
                found.push(router);
                found.extend(shared.iter().flat_map(|(up, down)| [up, down]));
            }
        }
        found
    }
}

/// The weights of a feed-forward.
#[derive(Debug, Clone)]
pub(crate) enum FfnWeights {
    Dense {
        up: DeviceBuffer,
        down: DeviceBuffer,
    },
    Moe {
        router: DeviceBuffer,
        up: DeviceBuffer,
        down: DeviceBuffer,
        shared: Option<(DeviceBuffer, DeviceBuffer)>,
    },
}

/// A model's weights on one GPU.
#[derive(Debug, Clone)]
pub(crate) struct Weights {
    pub(crate) shapes: Shapes,
    pub(crate) layers: Vec<LayerWeights>,
    /// Two rows of factors a layer and one more, of the hidden width.
    pub(crate) norms: DeviceBuffer,
    pub(crate) embedding: DeviceBuffer,
    pub(crate) head: DeviceBuffer,
    /// Projection of the target's hidden states, or of an MTP module's inputs; drafts only.
    pub(crate) project: Option<DeviceBuffer>,
    /// An MTP module.
    pub(crate) mtp: bool,
    pub(crate) bytes: u64,
}

/// Fills buffers with random numbers and counts their bytes.
struct Maker<'a> {
    stream: &'a Stream,
    fill: allreduce::device::Kernel,
    fill8: allreduce::device::Kernel,
    seed: u64,
    bytes: u64,
}

impl Maker<'_> {
    /// `rows x columns` values, scaled so that a product keeps the size of its input.
    fn make(&mut self, rows: usize, columns: usize) -> Result<DeviceBuffer> {
        let words = rows * columns / 2;
        let buffer = DeviceBuffer::new(self.stream.device(), words * 4)?;
        let scale = (3.0 / columns as f32).sqrt();
        self.seed = self.seed.wrapping_add(0x51_7C_C1_B7);
        self.fill.launch(
            self.stream,
            Launch::new(2048, 256),
            &[
                Arg::Device(&buffer),
                Arg::U64(words as u64),
                Arg::U64(self.seed << 20),
                Arg::F32(scale),
            ],
        )?;
        self.bytes += (words * 4) as u64;
        Ok(buffer)
    }

    /// `rows x columns` values in fp8.
    fn make8(&mut self, rows: usize, columns: usize) -> Result<DeviceBuffer> {
        let words = rows * columns / 4;
        let buffer = DeviceBuffer::new(self.stream.device(), words * 4)?;
        self.seed = self.seed.wrapping_add(0x51_7C_C1_B7);
        let args = [
            Arg::Device(&buffer),
            Arg::U64(words as u64),
            Arg::U64(self.seed << 20),
        ];
        self.fill8
            .launch(self.stream, Launch::new(2048, 256), &args)?;
        self.bytes += (words * 4) as u64;
        Ok(buffer)
    }
}

impl Weights {
    /// Allocates and fills them.
    ///
    /// # Errors
    /// Out of memory, or the driver's own error.
    pub(crate) fn target(
        stream: &Stream,
        small: &Module,
        shapes: &Shapes,
        seed: u64,
    ) -> Result<Self> {
        Self::new(stream, small, shapes, None, seed)
    }

    /// The same of a draft, which shares the target's embedding, an MTP module its head too.
    ///
    /// # Errors
    /// As [`Weights::target`].
    pub(crate) fn draft(
        stream: &Stream,
        small: &Module,
        draft: &DraftShapes,
        target: &Weights,
        seed: u64,
    ) -> Result<Self> {
        Self::new(stream, small, &draft.shapes, Some((draft, target)), seed)
    }

    fn new(
        stream: &Stream,
        small: &Module,
        shapes: &Shapes,
        of: Option<(&DraftShapes, &Weights)>,
        seed: u64,
    ) -> Result<Self> {
        let mut maker = Maker {
            stream,
            fill: small.kernel("fill")?,
            fill8: small.kernel("fill8")?,
            seed,
            bytes: 0,
        };
        let layers: Result<Vec<LayerWeights>> = shapes
            .layers
            .iter()
            .map(|shape| layer(&mut maker, shape, shapes.hidden))
            .collect();
        let layers = layers?;
        let norms = maker.make(2 * layers.len() + 2, shapes.hidden)?;
        let head = match of {
            Some((draft, target)) if draft.mtp => target.head.clone(),
            _ => maker.make(shapes.vocab, shapes.hidden)?,
        };
        let project = match of.map_or(0, |(draft, _)| draft.projected) {
            0 => None,
            width => Some(maker.make(shapes.hidden, width)?),
        };
        let embedding = match of {
            Some((_, target)) => target.embedding.clone(),
            None => maker.make(shapes.embedding, shapes.hidden)?,
        };
        stream.synchronize()?;
        Ok(Self {
            shapes: shapes.clone(),
            layers,
            norms,
            embedding,
            head,
            project,
            mtp: of.is_some_and(|(draft, _)| draft.mtp),
            bytes: maker.bytes,
        })
    }
}

fn layer(maker: &mut Maker<'_>, shape: &LayerShape, hidden: usize) -> Result<LayerWeights> {
    let rows = (shape.heads + 2 * shape.kv_heads) * shape.dim;
    let mut dense = |rows: usize, columns: usize| {
        if shape.fp8 {
            maker.make8(rows, columns)
        } else {
            maker.make(rows, columns)
        }
    };
    Ok(LayerWeights {
        shape: *shape,
        qkv: dense(rows, hidden * shape.inputs)?,
        out: dense(hidden, shape.heads * shape.dim)?,
        ffn: match shape.ffn {
            FfnShape::Dense { inter } => FfnWeights::Dense {
                up: dense(2 * inter, hidden)?,
                down: dense(hidden, inter)?,
            },
            FfnShape::Moe {
                experts,
                inter,
                shared,
                ..
            } => FfnWeights::Moe {
                router: maker.make(experts, hidden)?,
                up: maker.make(experts * 2 * inter, hidden)?,
                down: maker.make(experts * hidden, inter)?,
                shared: match shared {
                    0 => None,
                    width => Some((maker.make(2 * width, hidden)?, maker.make(hidden, width)?)),
                },
            },
        },
    })
}

/// Keys and values of all layers, and the lengths of the sequences.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    pub(crate) layers: Vec<(DeviceBuffer, DeviceBuffer)>,
    pub(crate) lengths: DeviceBuffer,
    /// Tokens a sequence has room for.
    pub(crate) capacity: usize,
}

impl Cache {
    /// Room for `sequences` of `capacity` tokens, filled with random keys and values.
    ///
    /// # Errors
    /// Out of memory, or the driver's own error.
    pub(crate) fn new(
        stream: &Stream,
        small: &Module,
        shapes: &Shapes,
        sequences: usize,
        capacity: usize,
    ) -> Result<Self> {
        let fill = small.kernel("fill")?;
        let make = |layer: usize, l: &LayerShape, which: u64| -> Result<DeviceBuffer> {
            let words = sequences * capacity * l.kv_heads * l.dim / 2;
            let buffer = DeviceBuffer::new(stream.device(), words * 4)?;
            let args = [
                Arg::Device(&buffer),
                Arg::U64(words as u64),
                Arg::U64((layer as u64 * 2 + which) << 40),
                Arg::F32(1.0),
            ];
            fill.launch(stream, Launch::new(2048, 256), &args)?;
            Ok(buffer)
        };
        let layers: Result<Vec<_>> = shapes
            .layers
            .iter()
            .enumerate()
            .map(|(i, l)| Ok((make(i, l, 0)?, make(i, l, 1)?)))
            .collect();
        Ok(Self {
            layers: layers?,
            lengths: DeviceBuffer::zeroed(stream, sequences * 4)?,
            capacity,
        })
    }
}

/// Compiled kernels of one head width.
pub(crate) struct Kernels {
    pub(crate) small: Module,
    pub(crate) narrow: Module,
    pub(crate) wide: Module,
    pub(crate) experts: Option<Module>,
}

impl Kernels {
    /// Compiles what the shapes need.
    ///
    /// # Errors
    /// No NVRTC, or a kernel that does not compile.
    pub(crate) fn new(device: &Device, dim: usize, experts: Option<usize>) -> Result<Self> {
        let attention = |rows: usize| {
            let defines = [("DIM", dim.to_string()), ("ROWS", rows.to_string())];
            let source = include_str!("kernels/attention.cu");
            Module::compile(device, "attention.cu", source, &defines)
        };
        Ok(Self {
            small: Module::compile(device, "decode.cu", include_str!("kernels/decode.cu"), &[])?,
            narrow: attention(16)?,
            wide: attention(32)?,
            experts: experts
                .map(|n| {
                    let defines = [("SLOTS", n.div_ceil(32).to_string())];
                    Module::compile(device, "moe.cu", include_str!("kernels/moe.cu"), &defines)
                })
                .transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use allreduce::device::{compile_cubin, compiler_info};

    #[test]
    fn the_kernels_compile_for_every_architecture() {
        if let Err(error) = compiler_info() {
            println!("skipped: {error}");
            return;
        }
        let define = |name: &'static str, value: &str| (name, value.to_string());
        let files = [
            ("decode.cu", include_str!("kernels/decode.cu"), vec![]),
            (
                "attention.cu",
                include_str!("kernels/attention.cu"),
                vec![define("DIM", "64"), define("ROWS", "32")],
            ),
            (
                "moe.cu",
                include_str!("kernels/moe.cu"),
                vec![define("SLOTS", "4")],
            ),
        ];
        for arch in ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"] {
            for (name, source, defines) in &files {
                let cubin = compile_cubin(name, source, arch, defines);
                let cubin = cubin.unwrap_or_else(|e| panic!("{arch}: {e}"));
                assert!(cubin.starts_with(b"\x7fELF"), "{arch} {name}");
            }
        }
    }
}
