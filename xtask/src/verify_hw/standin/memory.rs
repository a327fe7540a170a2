//! The weights in memory, and the planned pool tried beside them.

use allreduce::device::{Device, DeviceBuffer, Stream};
use allreduce::{Error, Result};
use serde::{Deserialize, Serialize};

use super::model::{Kernels, Weights};
use super::run::{Found, Plan};

/// Bytes free on the GPU as the stand-in is built.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) free_before: u64,
    /// With the target's and the draft's weights.
    pub(crate) free_after_weights: u64,
    pub(crate) target_weights: u64,
    pub(crate) draft_weights: u64,
    /// With the planned pool as well; `None`: it did not fit or was not tried.
    pub(crate) free_after_pool: Option<u64>,
    pub(crate) pool: u64,
}

impl Memory {
    /// One line for people.
    pub(super) fn describe(&self) -> String {
        format!(
            "weights: {:.2} GiB, {:.2} GiB free",
            gib(self.target_weights + self.draft_weights),
            gib(self.free_after_weights)
        )
    }
}

/// Target and draft on the GPU, with what that left free.
pub(super) fn weights(
    plan: &Plan,
    stream: &Stream,
    kernels: &Kernels,
    found: &mut Found,
) -> Result<(Weights, Option<Weights>)> {
    let device = stream.device();
    let (free, total) = device.memory_bytes()?;
    found.memory.total = total as u64;
    found.memory.free_before = free as u64;
    room(plan, free as u64, total as u64)?;
    let small = &kernels.small;
    let target = Weights::target(stream, small, &plan.target, plan.seed)?;
    let draft = plan
        .draft
        .as_ref()
        .map(|d| Weights::draft(stream, small, d, &target, plan.seed + 1))
        .transpose()?;
    found.memory.free_after_weights = device.memory_bytes()?.0 as u64;
    found.memory.target_weights = target.bytes;
    found.memory.draft_weights = draft.as_ref().map_or(0, |d| d.bytes);
    try_pool(plan, device, found)?;
    Ok((target, draft))
}

/// Refuses a GPU that cannot hold the weights, before the driver does.
fn room(plan: &Plan, free: u64, total: u64) -> Result<()> {
    let draft = plan
        .draft
        .as_ref()
        .map_or(0, |d| d.shapes.weight_bytes(false));
    let needed = plan.target.weight_bytes(true) + draft + (1 << 30);
    if needed <= free {
        return Ok(());
    }
    let held = (total - free) as f64 / total as f64;
    Err(Error::Invalid(format!(
        "its weights need {:.1} GiB of a GPU and {:.1} of {:.1} GiB are free{}",
        gib(needed),
        gib(free),
        gib(total),
        if held > 0.1 {
            "; another process holds the rest (nvidia-smi shows which): end it, or pick another GPU \
             with CUDA_VISIBLE_DEVICES"
        } else {
            "; spread it with --tp, or name a smaller --model"
        }
    )))
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Takes the planned pool in pieces, looks, and gives it back.
fn try_pool(plan: &Plan, device: &Device, found: &mut Found) -> Result<()> {
    if plan.pool_bytes == 0 {
        return Ok(());
    }
    let pieces = plan.target.layers.len().max(1) * 2;
    let each = usize::try_from(plan.pool_bytes).unwrap_or(usize::MAX) / pieces;
    let pool: Result<Vec<DeviceBuffer>> = (0..pieces)
        .map(|_| DeviceBuffer::new(device, each))
        .collect();
    if let Ok(pool) = pool {
        found.memory.pool = pool.iter().map(|p| p.bytes() as u64).sum();
        found.memory.free_after_pool = Some(device.memory_bytes()?.0 as u64);
    }
    Ok(())
}
