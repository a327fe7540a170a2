//! The engines' custom all-reduce as vLLM and SGLang dispatch it: N = 2 always one-shot; up to 4
//! ranks one-shot below 512 KiB, up to 8 below 256 KiB, two-shot above; beyond 8 MiB NCCL; and
//! without a full NVLink mesh no custom kernel above 2 ranks (custom_all_reduce.cuh).

use super::one_shot::Form;
use super::{Algorithm, Job, Unavailable, all_reduce_plan, one_shot, two_shot};
use crate::plan::Plan;

/// Largest message the engines give to their own kernel, bytes.
const CUSTOM_MAX_BYTES: u64 = 8 << 20;

/// Which generation of the engines' kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    /// vLLM, SGLang up to 0.5.13.
    Pull,
    /// SGLang from 0.5.14.
    Push,
}

/// What the engines would run.
pub(super) fn plan(
    job: &Job<'_>,
    bytes: u64,
    kernel: Kernel,
) -> Result<(Plan, Vec<String>), Unavailable> {
    let n = job.n();
    let mesh = job.t.full_gpu_link(job.ranks);
    let size_ok = bytes < CUSTOM_MAX_BYTES;
    let counted = matches!(n, 2 | 4 | 6 | 8);
    if !size_ok || !counted || (n > 2 && !mesh) || one_shot::needs_peer_access(job).is_err() {
        let (plan, mut notes) =
            all_reduce_plan(job.t, job.ranks, Algorithm::Nccl, bytes, job.options)?;
        notes.push("the engines leave this size and wiring to NCCL".to_string());
        return Ok((plan, notes));
    }
    let one_stage_below = if n <= 4 { 512 << 10 } else { 256 << 10 };
    let mut plan = if n == 2 || bytes < one_stage_below {
        match kernel {
            Kernel::Pull => one_shot::pull(job, Form::Engine)?,
            Kernel::Push => one_shot::push(job, Form::Engine)?,
        }
    } else {
        two_shot::plan(job, Form::Engine, kernel == Kernel::Push)?
    };
    plan.name = format!("engine-{}", plan.name);
    Ok((plan, Vec::new()))
}
