//! Two-shot (vLLM and SGLang 2-stage): each rank loads its shard from all others and sums it; a
//! fenced barrier; each rank loads all other shards. `2 (N-1)/N S` into each GPU.

use super::one_shot::{
    Form, all_to_all, barrier_and_read_us, load_cap, needs_peer_access, push_cap, start_us,
};
use super::{Job, Unavailable};
use crate::plan::{Plan, Round};
use crate::tlp::Access;

/// Reduce-scatter and all-gather by loads, or with `push` by stores that carry their own mark.
pub(super) fn plan(job: &Job<'_>, form: Form, push: bool) -> Result<Plan, Unavailable> {
    needs_peer_access(job)?;
    let shard = job.bytes / job.n() as f64;
    let transfers = || all_to_all(job, shard, Access::KernelLoad);
    let c = job.c();
    let gpu_link = job.class().is_gpu_link();
    let first_us = if push && gpu_link {
        c.family(job.t.arch).nvlink_push_us
    } else {
        barrier_and_read_us(job, form)
    };
    let second_us = if push && gpu_link {
        first_us
    } else if gpu_link && form == Form::Engine {
        c.family(job.t.arch).nvlink_fence_us * (job.n() as f64 / 8.0).powf(0.8)
    } else {
        first_us
    };
    let mut scatter = Round::once("load my shard from all", transfers(), first_us);
    let mut gather = Round::once("load all shards", transfers(), second_us);
    if gpu_link {
        scatter.cap_gb_s = if push {
            push_cap(job) * TWO_SHOT_PUSH
        } else {
            load_cap(job) / (job.n() as f64 - 1.0) * TWO_SHOT_CAP
        };
        gather.cap_gb_s = scatter.cap_gb_s;
        gather.overlap = 2.0;
    }
    Ok(Plan {
        name: "two-shot".to_string(),
        base_us: start_us(job),
        rounds: vec![scatter, gather],
    })
}

/// Two-shot over NVLink keeps this many times the bytes of a one-to-one load in flight per rank:
/// its loops are shorter, so peers' loads do not add up as in one-shot. Fitted on the engines'
/// graph rows above 512 KiB (AIConfigurator 0.12.0 custom all-reduce tables).
const TWO_SHOT_CAP: f64 = 1.15;
/// A push two-shot reaches this share of a one-shot's store rate (the same tables, SGLang 0.5.14).
const TWO_SHOT_PUSH: f64 = 0.8;
