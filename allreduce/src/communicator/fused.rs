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
    /// A row is spread over a cluster of eight blocks: rows of at most 16 KiB, from sm_90 on.
    pub cluster: bool,
}

/// Most packs of 16 bytes in a row: four for each of 512 threads.
const MOST_ROW_PACKS: usize = 2048;
/// Blocks of a cluster, as in `fused.cu`, and the longest row that it takes: 32 warps.
const CLUSTER: u32 = 8;
const MOST_CLUSTER_PACKS: usize = 1024;
/// Packs that one sending block sends: fewer and the sending blocks crowd, more and one
/// multiprocessor's rate of stores shows (0.1 to 0.2 us, two H200).
const SEND_LANES: u32 = 256;
const CODE: u32 = 7;

/// One pack a thread where a row fits a block so. A cluster pays from rows of 8 KiB on: below, its
/// start costs more than its eight multiprocessors save (2.8 us and 3.0 us at 8 KiB, two H200).
fn default_shape(row_packs: usize, rows: usize, most_blocks: u32) -> NormShape {
    let packs_per_thread = match row_packs {
        0..=992 => 1,
        993..=1024 => 2,
        _ => 4,
    };
    NormShape {
        packs_per_thread,
        senders: true,
        cluster: (513..=MOST_CLUSTER_PACKS).contains(&row_packs)
            && rows.saturating_mul(CLUSTER as usize) <= most_blocks as usize,
    }
}

/// Which blocks of a launch do what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rows {
    blocks: u32,
    /// The first blocks normalise, one row after the other; the rest only send.
    reducers: u32,
    send_lanes: u32,
}

impl Rows {
    fn new(row_packs: usize, rows: usize, shape: NormShape, lanes: u32, most: u32) -> Rows {
        let rows_u32 = u32::try_from(rows).unwrap_or(u32::MAX);
        let reducers = rows_u32.min(most);
        let alone = Rows {
            blocks: reducers,
            reducers,
            send_lanes: lanes,
        };
        if shape.cluster {
            let blocks = rows_u32.saturating_mul(CLUSTER);
            return Rows { blocks, ..alone };
        }
        let send_lanes = SEND_LANES.min(lanes);
        let packs = u32::try_from(row_packs * rows).unwrap_or(u32::MAX);
        let blocks = reducers.saturating_add(packs.div_ceil(send_lanes));
        if shape.senders && blocks <= most {
            Rows {
                blocks,
                reducers,
                send_lanes,
            }
        } else {
            alone
        }
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
    fn to_bytes(self, row_packs: usize, launch: Rows) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(40);
        bytes.extend(self.residual.address().to_ne_bytes());
        bytes.extend(self.weight.address().to_ne_bytes());
        bytes.extend((row_packs as u32).to_ne_bytes());
        bytes.extend((self.rows as u32).to_ne_bytes());
        bytes.extend(self.eps.to_ne_bytes());
        bytes.extend((1.0 / self.hidden as f32).to_ne_bytes());
        bytes.extend(launch.reducers.to_ne_bytes());
        bytes.extend(launch.send_lanes.to_ne_bytes());
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
        let norm_shape = shape.unwrap_or_else(|| self.norm_shape(row_packs, norm.rows));
        let names = ["fused_1", "fused_2", "fused_4", "fused_cluster"];
        let (kernel, lanes) = self.norm_kernel(names, norm_shape, row_packs, norm.dtype)?;
        let opcode = CODE << 8 | norm.dtype.code();
        let shape = self.shape(algorithm, bytes);
        let (input, output) = (norm.input.address(), norm.output.address());
        let params = self.params(opcode, input, output, bytes, shape);
        self.keep_norm(norm);
        let launch = Rows::new(row_packs, norm.rows, norm_shape, lanes, self.most_blocks());
        let args = [
            Arg::Bytes(&params.to_bytes()),
            Arg::Bytes(&norm.to_bytes(row_packs, launch)),
        ];
        kernel.launch(&self.stream, Launch::new(launch.blocks, lanes + 32), &args)
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
        let shape = shape.unwrap_or_else(|| self.norm_shape(row_packs, norm.rows));
        let names = ["norm_1", "norm_2", "norm_4", "norm_cluster"];
        let (kernel, lanes) = self.norm_kernel(names, shape, row_packs, norm.dtype)?;
        self.keep_norm(norm);
        let alone = NormShape {
            senders: false,
            ..shape
        };
        let most = self.device().multiprocessors();
        let launch = Rows::new(row_packs, norm.rows, alone, lanes, most);
        let args = [
            Arg::Device(norm.input),
            Arg::Device(norm.output),
            Arg::Bytes(&norm.to_bytes(row_packs, launch)),
        ];
        kernel.launch(&self.stream, Launch::new(launch.blocks, lanes), &args)
    }

    fn norm_shape(&self, row_packs: usize, rows: usize) -> NormShape {
        let shape = default_shape(row_packs, rows, self.most_blocks());
        NormShape {
            cluster: shape.cluster && self.has_clusters(),
            ..shape
        }
    }

    fn has_clusters(&self) -> bool {
        self.device().compute_capability().0 >= 9
    }

    fn norm_kernel(
        &mut self,
        names: [&'static str; 4],
        shape: NormShape,
        row_packs: usize,
        dtype: DType,
    ) -> Result<(Kernel, u32)> {
        let misfit = || Error::Invalid(format!("a row of {row_packs} packs with {shape:?}"));
        let across = if shape.cluster {
            32 * CLUSTER as usize
        } else {
            32
        };
        // One pack a thread allows the widest blocks, less one warp that controls.
        let (name, most) = match (shape.cluster, shape.packs_per_thread) {
            (true, _) if self.has_clusters() => (names[3], MOST_CLUSTER_PACKS),
            (false, 1) => (names[0], 992),
            (false, 2) => (names[1], 512),
            (false, 4) => (names[2], 512),
            _ => return Err(misfit()),
        };
        let each = if shape.cluster {
            1
        } else {
            shape.packs_per_thread
        };
        let lanes = row_packs.div_ceil(each).next_multiple_of(across);
        if lanes > most {
            return Err(misfit());
        }
        Ok((
            self.kernels.get(KernelFile::Fused, name, dtype)?,
            (lanes * 32 / across) as u32,
        ))
    }

    pub(super) fn load_norm_kernels(&mut self, dtype: DType) -> Result<()> {
        let anywhere = [
            "fused_1", "fused_2", "fused_4", "norm_1", "norm_2", "norm_4",
        ];
        let clusters: &[&str] = if self.has_clusters() {
            &["fused_cluster", "norm_cluster"]
        } else {
            &[]
        };
        for name in anywhere.iter().chain(clusters) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_has_a_block_or_a_cluster_a_row_and_senders_while_they_fit() {
        let plain = default_shape(512, 4, 132);
        assert!(!plain.cluster);
        let rows = Rows::new(512, 4, plain, 512, 132);
        assert_eq!((rows.blocks, rows.reducers), (4 + 8, 4));
        let crowded = Rows::new(512, 100, plain, 512, 132);
        assert_eq!((crowded.blocks, crowded.send_lanes), (100, 512));
        let wide = default_shape(896, 4, 132);
        assert!(wide.cluster && !default_shape(896, 17, 132).cluster);
        assert_eq!(Rows::new(896, 4, wide, 128, 132).blocks, 32);
        assert!(!default_shape(1025, 1, 132).cluster);
    }
}
