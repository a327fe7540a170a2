//! Faults: late ranks, different calls, aborts; each must end in an error in time, and the GPU
//! and the process must be usable afterwards.

use std::time::{Duration, Instant};

use allreduce::device::{Device, DeviceBuffer};
use allreduce::{Algorithm, Call, Communicator, DType, Error, Options, Result, RowNorm};

use crate::support::on_ranks;

const DEADLINE: Duration = Duration::from_millis(500);

fn options() -> Options {
    Options {
        deadline: DEADLINE,
        memory: crate::small_memory(),
        ..Options::default()
    }
}

fn call_once(comm: &mut Communicator, algorithm: Algorithm, elements: usize) -> Result<()> {
    let buffer = DeviceBuffer::zeroed(comm.stream(), elements * 2)?;
    comm.all_reduce_with(
        algorithm,
        &Call::in_place(&buffer, elements, DType::Bf16),
        None,
    )?;
    comm.synchronize()
}

/// What every rank got, and how long the slowest took.
fn provoke(
    devices: &[Device],
    work: impl Fn(&mut Communicator) -> Result<()> + Sync,
) -> (Vec<Result<()>>, f64) {
    let began = Instant::now();
    let results = on_ranks(devices, 2, &options(), |mut comm| {
        // On one GPU loading a kernel would wait for the peer's, which waits for this rank.
        comm.prepare(&[DType::Bf16])?;
        let result = work(&mut comm);
        // Stay until the peer is done: it may still write to this rank's inbox.
        comm.exchange(b"done")?;
        result
    });
    (results, began.elapsed().as_secs_f64())
}

/// A group built anew on the same GPUs works.
fn rebuilt(devices: &[Device]) -> Result<()> {
    let results = on_ranks(devices, 2, &options(), |mut comm| {
        comm.prepare(&[DType::Bf16])?;
        for algorithm in Algorithm::OWN
            .into_iter()
            .filter(|a| comm.can(*a))
            .collect::<Vec<_>>()
        {
            crate::check_one(&mut comm, algorithm, 5000, DType::Bf16, 0, true)?;
        }
        Ok(())
    });
    crate::first_error(results).map(|_| ())
}

fn expect(what: &str, held: bool, got: &dyn std::fmt::Debug) -> Result<()> {
    if held {
        Ok(())
    } else {
        Err(Error::Invalid(format!("{what}: got {got:?}")))
    }
}

pub(crate) fn all(devices: &[Device]) -> Result<String> {
    let mut report = String::new();
    for algorithm in [
        Algorithm::OneShot,
        Algorithm::TwoShot,
        Algorithm::HostStaged,
        Algorithm::HostBulk,
    ] {
        report = absent(devices, algorithm)?;
        wrong_size(devices, algorithm)?;
        rebuilt(devices)?;
    }
    fused_absent(devices)?;
    rebuilt(devices)?;
    stopped(devices)?;
    rebuilt(devices)?;
    aborted(devices)?;
    rebuilt(devices)?;
    Ok(format!(
        "absent rank: {report}; wrong size; stopped 5 s; aborted; each time built again"
    ))
}

/// Rank 1 never calls; gives rank 0's words.
fn absent(devices: &[Device], algorithm: Algorithm) -> Result<String> {
    let (results, seconds) = provoke(devices, |comm| {
        if comm.rank() == 0 {
            call_once(comm, algorithm, 4096)
        } else {
            Ok(())
        }
    });
    let named = matches!(
        results[0],
        Err(Error::PeerLate {
            rank: 0,
            peer: 1,
            ..
        })
    );
    let what = format!("{}, absent rank", algorithm.name());
    expect(
        &what,
        named && results[1].is_ok() && seconds < 3.0,
        &results,
    )?;
    Ok(results[0]
        .as_ref()
        .err()
        .map_or(String::new(), ToString::to_string))
}

/// The same in the fused kernel, whose blocks also wait for each other.
fn fused_absent(devices: &[Device]) -> Result<()> {
    for hidden in [4096, 7168] {
        let (results, seconds) = provoke(devices, |comm| {
            if comm.rank() == 1 {
                return Ok(());
            }
            let stream = comm.stream().clone();
            let rows = || DeviceBuffer::zeroed(&stream, 4 * hidden);
            let (input, output, residual, weight) = (rows()?, rows()?, rows()?, rows()?);
            let norm = RowNorm {
                input: &input,
                output: &output,
                residual: &residual,
                weight: &weight,
                rows: 2,
                hidden,
                eps: 1e-5,
                dtype: DType::Bf16,
            };
            // The second call finds the rank poisoned.
            let both = comm
                .all_reduce_norm(&norm)
                .and_then(|()| comm.all_reduce_norm(&norm));
            both.and(comm.synchronize())
        });
        let named = matches!(results[0], Err(Error::PeerLate { peer: 1, .. }));
        expect("fused, absent rank", named && seconds < 3.0, &results)?;
    }
    Ok(())
}

/// Rank 1 calls with half the size.
fn wrong_size(devices: &[Device], algorithm: Algorithm) -> Result<()> {
    let (results, _) = provoke(devices, |comm| {
        call_once(
            comm,
            algorithm,
            if comm.rank() == 0 { 40_000 } else { 20_000 },
        )?;
        // Through host memory the rank that sent too little notices in its next call.
        call_once(comm, algorithm, 1000)
    });
    let named = results.iter().enumerate().all(|(rank, r)| match r {
        Err(Error::Mismatch { peer, .. } | Error::PeerLate { peer, .. }) => *peer == 1 - rank,
        _ => false,
    });
    let seen = results
        .iter()
        .any(|r| matches!(r, Err(Error::Mismatch { .. })));
    expect(
        &format!("{}, wrong size", algorithm.name()),
        named && seen,
        &results,
    )
}

/// A rank that stops for 5 s, with calls queued behind: one deadline in all, not one a call.
fn stopped(devices: &[Device]) -> Result<()> {
    let (results, _) = provoke(devices, |comm| {
        let began = Instant::now();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_secs(5));
        }
        let buffer = DeviceBuffer::zeroed(comm.stream(), 8192)?;
        let call = Call::in_place(&buffer, 4096, DType::Bf16);
        let mut result = Ok(());
        for _ in 0..100 {
            result = comm.all_reduce_with(Algorithm::OneShot, &call, None);
        }
        let result = result.and(comm.synchronize());
        let seconds = began.elapsed().as_secs_f64();
        expect("queued calls", comm.rank() == 1 || seconds < 2.5, &seconds)?;
        result
    });
    let named = matches!(results[0], Err(Error::PeerLate { peer: 1, .. }));
    expect("stopped rank", named, &results)
}

fn aborted(devices: &[Device]) -> Result<()> {
    let (results, seconds) = provoke(devices, |comm| {
        if comm.rank() == 1 {
            return Ok(());
        }
        let buffer = DeviceBuffer::zeroed(comm.stream(), 8192)?;
        let call = Call::in_place(&buffer, 4096, DType::Bf16);
        comm.all_reduce_with(Algorithm::OneShot, &call, None)?;
        comm.abort()?;
        comm.synchronize()
    });
    let named = matches!(results[0], Err(Error::Aborted { .. }));
    expect("abort", named && seconds < 3.0, &results)
}
