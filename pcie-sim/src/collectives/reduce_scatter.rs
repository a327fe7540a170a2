//! Reduce-scatter by NCCL's ring: `N-1` steps, each passes a partial sum on.

use super::{Job, all_gather};
use crate::plan::Plan;

/// The reduce-scatter of `job.bytes`; each step moves `S/N`.
pub(super) fn plan(job: &Job<'_>) -> Plan {
    all_gather::half(job, "reduce-scatter")
}
