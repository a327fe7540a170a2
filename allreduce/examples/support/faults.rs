//! Faults: late ranks, different calls, aborts; each must end in an error in time, and the GPU
//! and the process must be usable afterwards.

use std::time::{Duration, Instant};

use allreduce::device::{Device, DeviceBuffer};
use allreduce::{Algorithm, Call, Communicator, DType, Error, Options, Result};

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
    let mut report = Vec::new();
    for algorithm in [
        Algorithm::OneShot,
        Algorithm::TwoShot,
        Algorithm::HostStaged,
        Algorithm::HostBulk,
    ] {
        let name = algorithm.name();
        // Rank 1 never calls.
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
        expect(
            &format!("{name}, absent rank"),
            named && results[1].is_ok() && seconds < 3.0,
            &results,
        )?;
        if report.is_empty() {
            report.push(format!(
                "absent rank: {}",
                results[0]
                    .as_ref()
                    .err()
                    .map_or(String::new(), ToString::to_string)
            ));
        }
        // Rank 1 calls with half the size.
        let (results, _) = provoke(devices, |comm| {
            call_once(
                comm,
                algorithm,
                if comm.rank() == 0 { 40_000 } else { 20_000 },
            )
        });
        let named = results.iter().enumerate().all(|(rank, r)| {
            matches!(r, Err(Error::Mismatch { peer, .. }) if *peer == 1 - rank)
                || matches!(r, Err(Error::PeerLate { peer, .. }) if *peer == 1 - rank)
        });
        let seen = results
            .iter()
            .any(|r| matches!(r, Err(Error::Mismatch { .. })));
        expect(&format!("{name}, wrong size"), named && seen, &results)?;
        rebuilt(devices)?;
    }
    // A rank that stops for 5 s, with calls queued behind: one deadline in all, not one a call.
    let (results, _) = provoke(devices, |comm| {
        let began = Instant::now();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_secs(5));
        }
        let buffer = DeviceBuffer::zeroed(comm.stream(), 8192)?;
        let mut result = Ok(());
        for _ in 0..100 {
            result = comm.all_reduce_with(
                Algorithm::OneShot,
                &Call::in_place(&buffer, 4096, DType::Bf16),
                None,
            );
        }
        let result = result.and(comm.synchronize());
        let seconds = began.elapsed().as_secs_f64();
        expect("queued calls", comm.rank() == 1 || seconds < 2.5, &seconds)?;
        result
    });
    expect(
        "stopped rank",
        matches!(results[0], Err(Error::PeerLate { peer: 1, .. })),
        &results,
    )?;
    rebuilt(devices)?;
    report.push("stopped 5 s".into());

    let (results, seconds) = provoke(devices, |comm| {
        if comm.rank() == 1 {
            return Ok(());
        }
        let buffer = DeviceBuffer::zeroed(comm.stream(), 8192)?;
        comm.all_reduce_with(
            Algorithm::OneShot,
            &Call::in_place(&buffer, 4096, DType::Bf16),
            None,
        )?;
        comm.abort()?;
        comm.synchronize()
    });
    expect(
        "abort",
        matches!(results[0], Err(Error::Aborted { .. })) && seconds < 3.0,
        &results,
    )?;
    rebuilt(devices)?;
    report.push("aborted and rebuilt".into());
    Ok(report.join("; "))
}
