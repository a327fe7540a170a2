//! All-reduce, residual addition and RMSNorm in one kernel.

use super::Communicator;
use crate::device::{Arg, DeviceBuffer, Kernel, Launch};
use crate::kernels::KernelFile;
use crate::types::DType;
use crate::{Error, Result};

/// Rows to normalise: `sum = all-reduce(x)`, `residual += sum`, `out = norm(residual) * weight`.
#[derive(Debug, Clone, Copy)]
pub struct RowNorm<'a> {
    /// This rank's partial sums, `rows x hidden`.
    pub input: &'a DeviceBuffer,
    /// Where the normalised rows go; not the input.
    pub output: &'a DeviceBuffer,
    /// Read and replaced by residual + sum, `rows x hidden`.
    pub residual: &'a DeviceBuffer,
    /// One factor a column.
    pub weight: &'a DeviceBuffer,
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row; a row is a multiple of 16 bytes.
    pub hidden: usize,
    /// Added to the mean square.
    pub eps: f32,
    /// Type of all four.
    pub dtype: DType,
}

/// The shape of a fused launch, for benches; the default is measured best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormShape {
    /// Packs of 16 bytes that a thread holds of a row: 1, 2 or 4.
    pub packs_per_thread: usize,
    /// Other blocks than those that normalise send the rows, where all fit the GPU at once.
    pub senders: bool,
}

/// Most packs of 16 bytes in a row: four for each of 512 threads.
const MOST_ROW_PACKS: usize = 2048;
const CODE: u32 = 7;

/// One pack a thread where a row fits a block so.
fn default_shape(row_packs: usize) -> NormShape {
    let packs_per_thread = match row_packs {
        0..=992 => 1,
        993..=1024 => 2,
        _ => 4,
    };
    NormShape {
        packs_per_thread,
        senders: true,
    }
}

impl RowNorm<'_> {
    fn row_packs(&self) -> Result<usize> {
        let row_bytes = self.hidden.saturating_mul(self.dtype.bytes());
        if !row_bytes.is_multiple_of(16) || row_bytes == 0 || row_bytes / 16 > MOST_ROW_PACKS {
            return Err(Error::Invalid(format!(
                "a row of {row_bytes} bytes: a multiple of 16 up to {}",
                MOST_ROW_PACKS * 16
            )));
        }
        let bytes = row_bytes
            .checked_mul(self.rows)
            .ok_or_else(|| Error::Invalid(format!("{} rows", self.rows)))?;
        for buffer in [self.input, self.output, self.residual] {
            buffer.range(0, bytes)?;
        }
        self.weight.range(0, row_bytes)?;
        Ok(row_bytes / 16)
    }

    /// `struct Norm` of `fused.cu`.
    fn to_bytes(self, row_packs: usize, reducers: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(40);
        bytes.extend(self.residual.address().to_ne_bytes());
        bytes.extend(self.weight.address().to_ne_bytes());
        bytes.extend((row_packs as u32).to_ne_bytes());
        bytes.extend((self.rows as u32).to_ne_bytes());
        bytes.extend(self.eps.to_ne_bytes());
        bytes.extend((1.0 / self.hidden as f32).to_ne_bytes());
        bytes.extend(reducers.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes
    }
}

impl Communicator {
    /// Queues the fused kernel (one-shot transport).
    ///
    /// # Errors
    /// No peer access, rows that do not fit an inbox or a block, an earlier failure.
    pub fn all_reduce_norm(&mut self, norm: &RowNorm<'_>) -> Result<()> {
        self.all_reduce_norm_with(norm, None)
    }

    /// The same with a given launch shape.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_norm`]; a row that does not fit the shape.
    pub fn all_reduce_norm_with(
        &mut self,
        norm: &RowNorm<'_>,
        shape: Option<NormShape>,
    ) -> Result<()> {
        self.check()?;
        let row_packs = norm.row_packs()?;
        let bytes = (row_packs * 16 * norm.rows) as u64;
        let algorithm = crate::types::Algorithm::OneShot;
        if !self.can(algorithm) || bytes > algorithm.piece_bytes(self.ranks, &self.options.memory) {
            return Err(Error::Invalid(
                "rows beyond an inbox, or no peer access".into(),
            ));
        }
        if norm.rows == 0 {
            return Ok(());
        }
        if norm.input.address() == norm.output.address() {
            // Blocks that send a row are not those that overwrite it.
            return Err(Error::Invalid(
                "the fused kernel cannot work in place".into(),
            ));
        }
        let norm_shape = shape.unwrap_or_else(|| default_shape(row_packs));
        let names = ["fused_1", "fused_2", "fused_4"];
        let (kernel, lanes) = self.norm_kernel(names, norm_shape, row_packs, norm.dtype)?;
        let opcode = CODE << 8 | norm.dtype.code();
        let shape = self.shape(algorithm, bytes);
        let (input, output) = (norm.input.address(), norm.output.address());
        let params = self.params(opcode, input, output, bytes, shape);
        self.keep_norm(norm);
        // One block a row, and blocks that only send while all fit the GPU at once.
        let most = self.most_blocks();
        let reducers = (norm.rows as u32).min(most);
        let senders = ((row_packs * norm.rows) as u32).div_ceil(lanes);
        let blocks = if norm_shape.senders && reducers + senders <= most {
            reducers + senders
        } else {
            reducers
        };
        let args = [
            Arg::Bytes(&params.to_bytes()),
            Arg::Bytes(&norm.to_bytes(row_packs, reducers)),
        ];
        kernel.launch(&self.stream, Launch::new(blocks, lanes + 32), &args)
    }

    /// Queues residual addition and RMSNorm alone, on rows that are already summed: what the fused
    /// kernel is compared with, bit for bit.
    ///
    /// # Errors
    /// Rows that do not fit a block, or the driver's own error.
    pub fn norm_alone(&mut self, norm: &RowNorm<'_>, shape: Option<NormShape>) -> Result<()> {
        let row_packs = norm.row_packs()?;
        if norm.rows == 0 {
            return Ok(());
        }
        let shape = shape.unwrap_or_else(|| default_shape(row_packs));
        let names = ["norm_1", "norm_2", "norm_4"];
        let (kernel, lanes) = self.norm_kernel(names, shape, row_packs, norm.dtype)?;
        self.keep_norm(norm);
        let blocks = (norm.rows as u32).min(self.device().multiprocessors());
        let args = [
            Arg::Device(norm.input),
            Arg::Device(norm.output),
            Arg::Bytes(&norm.to_bytes(row_packs, blocks)),
        ];
        kernel.launch(&self.stream, Launch::new(blocks, lanes), &args)
    }

    fn norm_kernel(
        &mut self,
        names: [&'static str; 3],
        shape: NormShape,
        row_packs: usize,
        dtype: DType,
    ) -> Result<(Kernel, u32)> {
        // One pack a thread allows the widest blocks, less one warp that controls.
        let (name, most) = match shape.packs_per_thread {
            1 => (names[0], 992),
            2 => (names[1], 512),
            4 => (names[2], 512),
            other => return Err(Error::Invalid(format!("{other} packs a thread: 1, 2 or 4"))),
        };
        let lanes = row_packs
            .div_ceil(shape.packs_per_thread)
            .next_multiple_of(32);
        if lanes > most {
            return Err(Error::Invalid(format!(
                "a row of {row_packs} packs with {shape:?}"
            )));
        }
        Ok((
            self.kernels.get(KernelFile::Fused, name, dtype)?,
            lanes as u32,
        ))
    }

    pub(super) fn load_norm_kernels(&mut self, dtype: DType) -> Result<()> {
        for name in [
            "fused_1", "fused_2", "fused_4", "norm_1", "norm_2", "norm_4",
        ] {
            self.kernels.get(KernelFile::Fused, name, dtype)?;
        }
        Ok(())
    }

    fn keep_norm(&self, norm: &RowNorm<'_>) {
        for buffer in [norm.input, norm.output, norm.residual, norm.weight] {
            self.stream.keep(buffer.clone());
        }
    }
}
