//! Work on all ranks of this process: all-reduce curves, and the stand-in under tensor
//! parallelism. A rank is a thread; several may share a GPU as a mock.

use std::time::Duration;

use allreduce::device::{Device, DeviceBuffer, Event, Stream};
use allreduce::rendezvous::Threads;
use allreduce::{Algorithm, Call, Communicator, DType, Error, Options, Result};
use serde::{Deserialize, Serialize};

use super::standin::run::{Found, Plan, rank};

/// A communicator waits this long for a peer: compiling kernels on a busy host takes seconds.
const PEER_DEADLINE: Duration = Duration::from_secs(20);
/// Largest sum that goes through host memory by lines (docs/HARDWARE.md: tiles win from 1 MiB).
const HOST_LINES_BYTES: usize = 512 << 10;
/// Calls of one captured graph, fewer for large messages.
const CALLS: usize = 20;

/// One point of a curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CurvePoint {
    pub(crate) algorithm: String,
    pub(crate) bytes: u64,
    pub(crate) time_us: f64,
}

/// Runs `work` on one thread a rank, rank r on GPU r modulo their number; results by rank.
fn on_ranks<T: Send>(
    ranks: usize,
    work: impl Fn(Communicator) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let devices = Device::all()?;
    let gpus = devices.len().max(1);
    let options = Options {
        deadline: PEER_DEADLINE,
        ranks_per_gpu: ranks.div_ceil(gpus),
        ..Options::default()
    };
    let (options, work, devices) = (&options, &work, &devices);
    std::thread::scope(|scope| {
        let threads: Vec<_> = Threads::group(ranks, Duration::from_secs(60))
            .into_iter()
            .enumerate()
            .map(|(rank, end)| {
                scope.spawn(move || {
                    let device = devices.get(rank % gpus);
                    let device = device.ok_or_else(|| Error::Invalid("no GPU".into()))?;
                    work(Communicator::new(device, Box::new(end), options.clone())?)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                let panicked = |_| Err(Error::Invalid("a rank panicked".into()));
                thread.join().unwrap_or_else(panicked)
            })
            .collect()
    })
}

/// Times of all-reduces of bf16 by algorithm and size, each inside a replayed graph; the slowest
/// rank counts. `nccl`: NCCL too.
///
/// # Errors
/// A rank fails or is late.
pub(crate) fn curves(ranks: usize, sizes: &[u64], nccl: bool) -> Result<Vec<CurvePoint>> {
    let largest = sizes.iter().max().copied().unwrap_or(1024);
    let by_rank = on_ranks(ranks, |mut comm| {
        comm.prepare(&[DType::Bf16])?;
        if nccl {
            comm.add_nccl()?;
        }
        let stream = comm.stream().clone();
        let buffer = DeviceBuffer::zeroed(&stream, usize::try_from(largest).unwrap_or(1 << 20))?;
        let mut found = Vec::new();
        for algorithm in Algorithm::OWN.into_iter().chain([Algorithm::Nccl]) {
            if !comm.can(algorithm) {
                continue;
            }
            for &bytes in sizes {
                let time_us = time(&mut comm, &stream, &buffer, algorithm, bytes)?;
                found.push(CurvePoint {
                    algorithm: algorithm.name().to_string(),
                    bytes,
                    time_us,
                });
            }
        }
        Ok(found)
    })?;
    let mut merged: Vec<CurvePoint> = Vec::new();
    for point in by_rank.into_iter().flatten() {
        match merged
            .iter_mut()
            .find(|m| m.algorithm == point.algorithm && m.bytes == point.bytes)
        {
            Some(known) => known.time_us = known.time_us.max(point.time_us),
            None => merged.push(point),
        }
    }
    Ok(merged)
}

fn time(
    comm: &mut Communicator,
    stream: &Stream,
    buffer: &DeviceBuffer,
    algorithm: Algorithm,
    bytes: u64,
) -> Result<f64> {
    let call = Call::in_place(buffer, bytes as usize / 2, DType::Bf16);
    let calls = if bytes > 1 << 20 { 4 } else { CALLS };
    comm.all_reduce_with(algorithm, &call, None)?;
    comm.synchronize()?;
    let graph = stream
        .capture(|_| (0..calls).try_for_each(|_| comm.all_reduce_with(algorithm, &call, None)))?;
    let (from, to) = (Event::new(stream.device())?, Event::new(stream.device())?);
    let mut times = Vec::new();
    for round in 0..12 {
        // All ranks start together, so that none is timed waiting for the others' host thread.
        comm.exchange(&[])?;
        graph.launch(stream)?;
        from.record(stream)?;
        graph.launch(stream)?;
        to.record(stream)?;
        comm.synchronize()?;
        if round > 1 {
            times.push(to.elapsed_us(&from)? / calls as f64);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Runs the stand-in on all ranks; rank 0 reports. `algorithm`: `nccl`, one of ours, or `auto`
/// for ours as measured.
///
/// # Errors
/// A rank fails or is late, or the algorithm cannot run here.
pub(crate) fn stand_in(plan: &Plan, ranks: usize, algorithm: &str) -> Result<Found> {
    if ranks <= 1 {
        let stream = Stream::new(&Device::open(0)?)?;
        return rank(plan, &stream, &mut |_, _| Ok(()), true);
    }
    let all = on_ranks(ranks, |mut comm| {
        comm.prepare(&[DType::Bf16])?;
        let chosen = match Algorithm::from_name(algorithm) {
            Some(Algorithm::Nccl) => {
                comm.add_nccl()?;
                Some(Algorithm::Nccl)
            }
            Some(own) => Some(own),
            None => {
                comm.tune(false)?;
                None
            }
        };
        let loud = comm.rank() == 0;
        let stream = comm.stream().clone();
        let mut reduce = |buffer: &DeviceBuffer, elements: usize| -> Result<()> {
            if elements == 0 {
                // No sum: the ranks' host threads meet.
                return comm.exchange(&[]).map(|_| ());
            }
            let call = Call::in_place(buffer, elements, DType::Bf16);
            match chosen {
                // Through host memory: by lines while small, then in tiles, as the selector has it.
                Some(Algorithm::HostStaged) if 2 * elements > HOST_LINES_BYTES => {
                    comm.all_reduce_with(Algorithm::HostBulk, &call, None)
                }
                Some(algorithm) => comm.all_reduce_with(algorithm, &call, None),
                None => comm.all_reduce(&call),
            }
        };
        rank(plan, &stream, &mut reduce, loud)
    })?;
    all.into_iter()
        .next()
        .ok_or_else(|| Error::Invalid("no rank".into()))
}
