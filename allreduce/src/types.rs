//! Element types and algorithms.

use crate::protocol::{HEADER_BYTES, MAX_RANKS};
use crate::{Error, Result};

/// Element type of a reduction; sums are f32, rounded once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
}

impl DType {
    /// All of them.
    pub const ALL: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
        }
    }

    /// The short name: `f32`, `f16`, `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
        }
    }

    /// The number the kernels know the type by.
    pub(crate) fn code(self) -> u32 {
        match self {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::Bf16 => 2,
        }
    }
}

/// How a reduction is done. All give the same bits: f32 sums in rank order, rounded once
/// (NCCL apart, which has its own order).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Every rank sends everything to every rank. Small messages; any size for two ranks.
    OneShot,
    /// Each rank owns a chunk: scatter, sum, gather. Large messages.
    TwoShot,
    /// Two groups of ranks joined by few links: sum inside, exchange between twins. Even N from 4.
    Island,
    /// Through pinned host memory, with marks in the data: GPUs without peer access.
    HostStaged,
    /// Through pinned host memory in tiles: the same for large messages.
    HostBulk,
    /// NVIDIA's library, as baseline and fallback.
    Nccl,
}

impl Algorithm {
    /// The crate's own algorithms.
    pub const OWN: [Algorithm; 5] = [
        Algorithm::OneShot,
        Algorithm::TwoShot,
        Algorithm::Island,
        Algorithm::HostStaged,
        Algorithm::HostBulk,
    ];

    /// The name in tables and files, such as `one-shot`.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::OneShot => "one-shot",
            Algorithm::TwoShot => "two-shot",
            Algorithm::Island => "island",
            Algorithm::HostStaged => "host-staged",
            Algorithm::HostBulk => "host-bulk",
            Algorithm::Nccl => "nccl",
        }
    }

    /// The algorithm of that name.
    pub fn from_name(name: &str) -> Option<Algorithm> {
        Algorithm::OWN
            .into_iter()
            .chain([Algorithm::Nccl])
            .find(|a| a.name() == name)
    }

    /// Whether GPUs must reach each other's memory.
    pub fn needs_peers(self) -> bool {
        matches!(
            self,
            Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Island
        )
    }

    /// Whether it works for `ranks` ranks.
    pub fn fits(self, ranks: usize) -> bool {
        (2..=MAX_RANKS).contains(&ranks)
            && (self != Algorithm::Island || ranks >= 4 && ranks.is_multiple_of(2))
    }

    pub(crate) fn code(self) -> u32 {
        match self {
            Algorithm::OneShot => 1,
            Algorithm::TwoShot => 2,
            Algorithm::Island => 3,
            Algorithm::HostStaged => 4,
            Algorithm::HostBulk => 5,
            Algorithm::Nccl => 6,
        }
    }

    /// Most bytes that one launch may reduce; longer messages are done in pieces.
    pub(crate) fn piece_bytes(self, ranks: usize, memory: &Memory) -> u64 {
        let ranks = ranks as u64;
        let packs = memory.slot_bytes / 16;
        match self {
            Algorithm::OneShot => packs / (ranks - 1) * 16,
            Algorithm::TwoShot => packs / (2 * (ranks - 1)) * ranks * 16,
            Algorithm::Island => {
                let group = ranks / 2;
                // Scatter and gather from G-1 members each, f32 partials (two packs for a 16-bit
                // pack), and the result coming back.
                packs / (2 * (group - 1) + 3) * group * 16
            }
            Algorithm::HostStaged => memory.host_slot_bytes,
            Algorithm::HostBulk => memory.host_bulk_bytes,
            Algorithm::Nccl => u64::MAX,
        }
    }
}

/// How much memory a communicator takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Data bytes of one of the two slots of a rank's inbox, in device memory.
    pub slot_bytes: u64,
    /// Data bytes of one of the four host slots of a rank, small messages.
    pub host_slot_bytes: u64,
    /// Data bytes of one of the four host slots of a rank, large messages.
    pub host_bulk_bytes: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Memory {
            slot_bytes: 32 << 20,
            host_slot_bytes: 1 << 20,
            host_bulk_bytes: 4 << 20,
        }
    }
}

impl Memory {
    pub(crate) fn check(&self, ranks: usize) -> Result<()> {
        let least = 64 * ranks as u64 * 16;
        let multiple = crate::protocol::TILE_BYTES;
        for (name, bytes) in [
            ("slot_bytes", self.slot_bytes),
            ("host_slot_bytes", self.host_slot_bytes),
            ("host_bulk_bytes", self.host_bulk_bytes),
        ] {
            let fits = bytes.is_multiple_of(multiple) && (least..1 << 31).contains(&bytes);
            if !fits || !HEADER_BYTES.is_multiple_of(16) {
                return Err(Error::Invalid(format!(
                    "{name} = {bytes}: a multiple of {multiple} between {least} and 2 GiB"
                )));
            }
        }
        Ok(())
    }
}
