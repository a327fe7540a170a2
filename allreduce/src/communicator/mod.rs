//! A rank of an all-reduce group.

mod build;
mod fused;
mod params;
mod select;

use std::time::Duration;

pub use fused::{NormShape, RowNorm};
pub use select::{Selector, Step};

use crate::device::{Arg, Device, DeviceBuffer, IpcBuffer, PinnedBuffer, Stream};
use crate::driver::nccl::Nccl;
use crate::kernels::Kernels;
use crate::rendezvous::Rendezvous;
use crate::types::{Algorithm, DType, Memory};
use crate::{Error, Result, protocol};
use params::Params;

/// How a communicator is built.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// How long a kernel waits for a peer before it reports an error.
    pub deadline: Duration,
    /// Memory for data in flight.
    pub memory: Memory,
    /// How many ranks share this rank's GPU; limits the blocks of a launch so that all can run.
    pub ranks_per_gpu: usize,
    /// Map the peers' memory. Off: only the host-staged algorithms and NCCL.
    pub peers: bool,
    /// Map pinned host memory. Off: no host-staged algorithms.
    pub host: bool,
    /// The first call's number, to test wrap-around. All ranks must agree.
    pub first_call: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            deadline: Duration::from_secs(2),
            memory: Memory::default(),
            ranks_per_gpu: 1,
            peers: true,
            host: true,
            first_call: 0,
        }
    }
}

/// The shape of a launch, for benches; the default is [`Communicator::shape`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Thread blocks.
    pub blocks: u32,
    /// Threads of a block that move data, a multiple of 32, at most 512.
    pub lanes: u32,
    /// Host bulk only: bytes of a tile, which one warp moves; a multiple of 2 KiB.
    pub tile_bytes: u32,
}

/// Where the data of one call is.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The values to sum.
    pub input: &'a DeviceBuffer,
    /// Byte offset of the first value, a multiple of the element size.
    pub input_at: usize,
    /// Where the sum goes; may be the input itself.
    pub output: &'a DeviceBuffer,
    /// Byte offset of the first sum, a multiple of the element size.
    pub output_at: usize,
    /// How many elements.
    pub elements: usize,
    /// Their type.
    pub dtype: DType,
}

impl<'a> Call<'a> {
    /// From the start of `input` to the start of `output`.
    pub fn new(
        input: &'a DeviceBuffer,
        output: &'a DeviceBuffer,
        elements: usize,
        dtype: DType,
    ) -> Call<'a> {
        Call {
            input,
            input_at: 0,
            output,
            output_at: 0,
            elements,
            dtype,
        }
    }

    /// The sum replaces the values.
    pub fn in_place(buffer: &'a DeviceBuffer, elements: usize, dtype: DType) -> Call<'a> {
        Call::new(buffer, buffer, elements, dtype)
    }
}

/// One rank. All ranks make the same calls in the same order; each queues them on its own stream.
///
/// Calls return before the work is done. A peer that is late, gone or makes another call ends in
/// an error of [`Communicator::check`] or of the next call, never in a hang; the communicator must
/// then be built again.
pub struct Communicator {
    rank: usize,
    ranks: usize,
    stream: Stream,
    options: Options,
    kernels: Kernels,
    state: DeviceBuffer,
    control: PinnedBuffer,
    arena: Vec<u64>,
    host: Option<PinnedBuffer>,
    nccl: Option<Nccl>,
    selector: Selector,
    // Dropped last: what the addresses above point to.
    _mapped: Vec<IpcBuffer>,
    _arenas: Vec<DeviceBuffer>,
    rendezvous: Box<dyn Rendezvous>,
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.rank, self.ranks)
    }
}

impl Communicator {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The stream that all calls are queued on.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// This rank's GPU.
    pub fn device(&self) -> &Device {
        self.stream.device()
    }

    /// Whether this communicator can run `algorithm`.
    pub fn can(&self, algorithm: Algorithm) -> bool {
        let has = match algorithm {
            Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Island => !self.arena.is_empty(),
            Algorithm::HostStaged | Algorithm::HostBulk => self.host.is_some(),
            Algorithm::Nccl => self.nccl.is_some(),
        };
        has && algorithm.fits(self.ranks)
    }

    /// Compiles and loads every kernel this communicator can run for `dtypes`; all ranks must call
    /// it. Without it a kernel is loaded at its first call, which must then be outside a capture
    /// and, where ranks share a GPU, not wait for a peer's running kernel.
    ///
    /// # Errors
    /// No NVRTC, a compile error, or a rank is missing.
    pub fn prepare(&mut self, dtypes: &[DType]) -> Result<()> {
        for dtype in dtypes {
            for algorithm in Algorithm::OWN {
                if self.can(algorithm) {
                    for name in params::kernels(algorithm) {
                        self.kernels.get(params::file(algorithm), name, *dtype)?;
                    }
                }
            }
            if self.can(Algorithm::OneShot) {
                self.load_norm_kernels(*dtype)?;
            }
        }
        self.stream.synchronize()?;
        self.exchange(b"prepared").map(|_| ())
    }

    /// Queues a sum with the algorithm that the selector names for this size.
    ///
    /// # Errors
    /// A buffer too small, an earlier failure, or the driver's own error.
    pub fn all_reduce(&mut self, call: &Call<'_>) -> Result<()> {
        let bytes = call.elements.saturating_mul(call.dtype.bytes());
        let algorithm = self.selector.choose(bytes as u64, |a| self.can(a))?;
        self.all_reduce_with(algorithm, call, None)
    }

    /// Queues a sum with a given algorithm, and optionally a given launch shape.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; an algorithm that this communicator cannot run.
    pub fn all_reduce_with(
        &mut self,
        algorithm: Algorithm,
        call: &Call<'_>,
        shape: Option<Shape>,
    ) -> Result<()> {
        self.check()?;
        if !self.can(algorithm) {
            return Err(Error::Invalid(format!(
                "this communicator cannot run {}",
                algorithm.name()
            )));
        }
        let size = call.dtype.bytes();
        let bytes = call
            .elements
            .checked_mul(size)
            .ok_or_else(|| Error::Invalid(format!("{} elements", call.elements)))?;
        let input = call.input.range(call.input_at, bytes)?;
        let output = call.output.range(call.output_at, bytes)?;
        if !input.is_multiple_of(size as u64) || !output.is_multiple_of(size as u64) {
            return Err(Error::Invalid("a buffer that splits an element".into()));
        }
        self.stream.keep(call.input.clone());
        self.stream.keep(call.output.clone());
        if algorithm == Algorithm::Nccl {
            let nccl = self.nccl.as_mut();
            let nccl = nccl.ok_or_else(|| Error::Invalid("no NCCL communicator".into()))?;
            return nccl.all_reduce(&self.stream, input, output, call.elements, call.dtype);
        }
        let piece = algorithm.piece_bytes(self.ranks, &self.options.memory);
        let mut done = 0;
        while done < bytes as u64 {
            let now = piece.min(bytes as u64 - done);
            self.queue_piece(
                algorithm,
                call.dtype,
                input + done,
                output + done,
                now,
                shape,
            )?;
            done += now;
        }
        Ok(())
    }

    fn queue_piece(
        &mut self,
        algorithm: Algorithm,
        dtype: DType,
        input: u64,
        output: u64,
        bytes: u64,
        shape: Option<Shape>,
    ) -> Result<()> {
        let shape = match shape {
            Some(shape) => self.checked(algorithm, shape)?,
            None => self.shape(algorithm, bytes),
        };
        let name = params::kernel(algorithm, bytes, shape);
        let kernel = self.kernels.get(params::file(algorithm), name, dtype)?;
        let opcode = algorithm.code() << 8 | dtype.code();
        let params = self.params(opcode, input, output, bytes, shape);
        let launch = crate::device::Launch::new(shape.blocks, shape.lanes + 32);
        kernel.launch(&self.stream, launch, &[Arg::Bytes(&params.to_bytes())])
    }

    fn params(&self, opcode: u32, input: u64, output: u64, bytes: u64, shape: Shape) -> Params {
        let memory = &self.options.memory;
        self.stream.keep(self.state.clone());
        self.stream.keep_pinned(self.control.clone());
        if let Some(host) = &self.host {
            self.stream.keep_pinned(host.clone());
        }
        for arena in &self._arenas {
            self.stream.keep(arena.clone());
        }
        let arena = if self.arena.is_empty() {
            vec![0; self.ranks]
        } else {
            self.arena.clone()
        };
        Params {
            arena,
            host: self.host.as_ref().map_or(0, PinnedBuffer::address),
            state: self.state.address(),
            control: self.control.address(),
            input,
            output,
            bytes,
            slot_bytes: memory.slot_bytes,
            host_slot_bytes: memory.host_slot_bytes,
            host_bulk_bytes: memory.host_bulk_bytes,
            deadline_ns: u64::try_from(self.options.deadline.as_nanos()).unwrap_or(u64::MAX),
            rank: self.rank as u32,
            aligned: u32::from(input.is_multiple_of(16) && output.is_multiple_of(16)),
            opcode,
            tile_bytes: shape.tile_bytes,
        }
    }

    /// The launch shape this communicator takes for a message of `bytes`.
    pub fn shape(&self, algorithm: Algorithm, bytes: u64) -> Shape {
        params::shape(algorithm, bytes, self.ranks, self.most_blocks())
    }

    /// Most blocks that all ranks on this GPU can run at once.
    pub fn most_blocks(&self) -> u32 {
        let share = self.device().multiprocessors() / self.options.ranks_per_gpu.max(1) as u32;
        share.clamp(1, protocol::MAX_BLOCKS)
    }

    fn checked(&self, algorithm: Algorithm, shape: Shape) -> Result<Shape> {
        let warps = match algorithm {
            Algorithm::HostBulk => 2, // one writes, one reads
            _ => 1,
        };
        let lanes = (32..=512).contains(&shape.lanes) && shape.lanes.is_multiple_of(32 * warps);
        let tile = u64::from(shape.tile_bytes);
        let tiles = tile > 0 && tile.is_multiple_of(protocol::TILE_BYTES);
        if !lanes || !tiles || shape.blocks == 0 || shape.blocks > self.most_blocks() {
            return Err(Error::Invalid(format!(
                "{shape:?}: lanes are a multiple of {} up to 512, tiles of 2 KiB, blocks at most {}",
                32 * warps,
                self.most_blocks()
            )));
        }
        Ok(shape)
    }

    /// The error that a kernel has reported so far, if any. Does not wait.
    ///
    /// # Errors
    /// [`Error::PeerLate`], [`Error::Mismatch`] or [`Error::Aborted`].
    pub fn check(&self) -> Result<()> {
        match self.control.read::<u32>(64)? {
            0 => Ok(()),
            kind => {
                let peer = self.control.read::<u32>(68)? as usize;
                let step = self.control.read::<u32>(72)?;
                let call = u64::from(self.control.read::<u32>(76)?);
                Err(params::failure(kind, self.rank, peer, step, call))
            }
        }
    }

    /// Waits for all queued calls and reports what went wrong in them. Bounded by the deadline.
    ///
    /// # Errors
    /// As [`Communicator::check`], or the driver's own error.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize()?;
        self.check()
    }

    /// Ends the kernels that wait for peers now, from any thread: they report
    /// [`Error::Aborted`].
    ///
    /// # Errors
    /// None in practice; the pinned page is always in range.
    pub fn abort(&self) -> Result<()> {
        self.control.write::<u32>(0, 1)
    }

    /// Joins NCCL too, so that it can be chosen. All ranks must call it; ranks must be on
    /// different GPUs.
    ///
    /// # Errors
    /// No NCCL library, or NCCL's own error.
    pub fn add_nccl(&mut self) -> Result<()> {
        let id = if self.rank == 0 {
            crate::driver::nccl::unique_id()
        } else {
            Ok([0; 128])
        };
        let sent = id.as_ref().map_or(Vec::new(), |id| id.to_vec());
        let all = self.rendezvous.exchange(&sent)?;
        id?;
        let id: [u8; 128] = all[0]
            .as_slice()
            .try_into()
            .map_err(|_| Error::Bootstrap("rank 0 has no NCCL".into()))?;
        self.nccl = Some(Nccl::join(self.device(), &id, self.rank, self.ranks)?);
        Ok(())
    }

    /// Exchanges bytes with all ranks, for the caller's own setup.
    ///
    /// # Errors
    /// A rank is missing or gone.
    pub fn exchange(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.rendezvous.exchange(bytes)
    }

    /// The selector in use.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Takes another selector; it must be the same on all ranks.
    pub fn set_selector(&mut self, selector: Selector) {
        self.selector = selector;
    }

    /// Frees everything and gives the rendezvous back, to build again after a failure.
    pub fn into_rendezvous(self) -> Box<dyn Rendezvous> {
        let _ = self.stream.synchronize();
        self.rendezvous
    }
}
