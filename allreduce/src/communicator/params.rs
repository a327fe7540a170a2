//! What a kernel is told, and what it reports.

use super::Shape;
use crate::Error;
use crate::kernels::KernelFile;
use crate::protocol::TILE_BYTES;
use crate::types::Algorithm;

/// `struct Params` of `common.cuh`, field for field.
#[derive(Debug, Clone)]
pub(super) struct Params {
    pub(super) arena: Vec<u64>,
    pub(super) host: u64,
    pub(super) state: u64,
    pub(super) control: u64,
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) bytes: u64,
    pub(super) slot_bytes: u64,
    pub(super) host_slot_bytes: u64,
    pub(super) host_bulk_bytes: u64,
    pub(super) deadline_ns: u64,
    pub(super) rank: u32,
    pub(super) aligned: u32,
    pub(super) opcode: u32,
    pub(super) tile_bytes: u32,
}

impl Params {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let wide = [
            self.host,
            self.state,
            self.control,
            self.input,
            self.output,
            self.bytes,
            self.slot_bytes,
            self.host_slot_bytes,
            self.host_bulk_bytes,
            self.deadline_ns,
        ];
        let narrow = [self.rank, self.aligned, self.opcode, self.tile_bytes];
        let mut bytes = Vec::with_capacity(self.arena.len() * 8 + 96);
        bytes.extend(self.arena.iter().chain(&wide).flat_map(|v| v.to_ne_bytes()));
        bytes.extend(narrow.iter().flat_map(|v| v.to_ne_bytes()));
        bytes
    }
}

/// From this size on a thread of the one-shot kernel holds several packs at once.
const WIDE_FROM_BYTES: u64 = 1 << 20;

pub(super) fn file(algorithm: Algorithm) -> KernelFile {
    match algorithm {
        Algorithm::OneShot | Algorithm::Nccl => KernelFile::OneShot,
        Algorithm::TwoShot => KernelFile::TwoShot,
        Algorithm::Island => KernelFile::Island,
        Algorithm::HostStaged | Algorithm::HostBulk => KernelFile::HostStaged,
    }
}

/// All kernels of an algorithm.
pub(super) fn kernels(algorithm: Algorithm) -> &'static [&'static str] {
    match algorithm {
        Algorithm::OneShot => &["one_shot", "one_shot_wide"],
        Algorithm::TwoShot => &["two_shot"],
        Algorithm::Island => &["island"],
        Algorithm::HostStaged => &["host_staged"],
        Algorithm::HostBulk => &["host_bulk"],
        Algorithm::Nccl => &[],
    }
}

/// The kernel for one message.
pub(super) fn kernel(algorithm: Algorithm, bytes: u64, shape: Shape) -> &'static str {
    let one_round = u64::from(shape.blocks) * u64::from(shape.lanes) * 16;
    let names = kernels(algorithm);
    let wide = algorithm == Algorithm::OneShot && bytes > one_round.max(WIDE_FROM_BYTES / 2);
    names.get(usize::from(wide)).copied().unwrap_or_default()
}

/// Launch shapes as measured best on two H200 (docs/allreduce.md): one pack a thread over as many
/// blocks as can run, in the narrowest blocks that allow it.
pub(super) fn shape(algorithm: Algorithm, bytes: u64, ranks: usize, most_blocks: u32) -> Shape {
    let packs = bytes.div_ceil(16);
    let ranks = ranks as u64;
    let most = most_blocks.max(1);
    if algorithm == Algorithm::HostBulk {
        return bulk_shape(bytes, most);
    }
    // How many threads can work side by side.
    let width = match algorithm {
        Algorithm::TwoShot => packs.div_ceil(ranks),
        Algorithm::Island => packs.div_ceil(ranks / 2),
        Algorithm::HostStaged => packs + 1, // and the header
        _ => packs,
    };
    let fits = |lanes: &u32| u64::from(lanes * most) >= width;
    let lanes = match width {
        65..=128 if algorithm == Algorithm::HostStaged => 128, // one block: 3.0 us, two 3.25
        0..=512 => 64,
        _ => [128, 256].into_iter().find(fits).unwrap_or(512),
    };
    let needed = width.div_ceil(u64::from(lanes)).max(1);
    Shape {
        blocks: u32::try_from(needed).unwrap_or(u32::MAX).min(most),
        lanes,
        tile_bytes: TILE_BYTES as u32,
    }
}

/// Two warps that write and two that read in a block, a tile each.
fn bulk_shape(bytes: u64, most: u32) -> Shape {
    let tile_bytes = if bytes <= 1 << 20 {
        TILE_BYTES
    } else {
        2 * TILE_BYTES
    };
    let needed = bytes.div_ceil(tile_bytes).div_ceil(2).max(1);
    Shape {
        blocks: u32::try_from(needed).unwrap_or(u32::MAX).min(most).min(128),
        lanes: 128,
        tile_bytes: tile_bytes as u32,
    }
}

pub(super) fn failure(kind: u32, rank: usize, peer: usize, step: u32, call: u64) -> Error {
    const STEPS: [&str; 5] = ["header", "data", "scatter", "cross", "gather"];
    let step = STEPS.get(step as usize).copied().unwrap_or("unknown");
    match kind {
        1 => Error::PeerLate {
            rank,
            peer,
            step,
            call,
        },
        2 => Error::Mismatch { rank, peer, call },
        _ => Error::Aborted { rank, call },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_never_pass_the_block_limit() {
        for algorithm in Algorithm::OWN {
            for bytes in [1, 16, 1024, 57_344, 1 << 20, 1 << 30] {
                for most in [1, 4, 66, 132, 256] {
                    let shape = shape(algorithm, bytes, 4, most);
                    assert!(
                        shape.blocks >= 1 && shape.blocks <= most,
                        "{algorithm:?} {bytes}"
                    );
                    assert!(shape.lanes.is_multiple_of(32) && (32..=512).contains(&shape.lanes));
                }
            }
        }
    }
}
