//! One process a rank: CUDA IPC handles over a Unix socket, and a rank that is killed.

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use allreduce::device::{Device, DeviceBuffer};
use allreduce::rendezvous::Processes;
use allreduce::{Algorithm, Call, Communicator, DType, Error, Options, Result};

/// Starts `ranks` copies of this program.
fn spawn(ranks: usize, gpus: usize, job: &str) -> Result<Vec<Child>> {
    let io = |e: std::io::Error| Error::Io {
        what: "starting a rank".into(),
        why: e.to_string(),
    };
    let program = std::env::current_exe().map_err(io)?;
    let socket = std::env::temp_dir().join(format!("allreduce-{}-{job}.sock", std::process::id()));
    (0..ranks)
        .map(|rank| {
            Command::new(&program)
                .arg(job)
                .env("ALLREDUCE_RANK", rank.to_string())
                .env("ALLREDUCE_RANKS", ranks.to_string())
                .env("ALLREDUCE_LOCAL_RANK", (rank % gpus).to_string())
                .env("ALLREDUCE_SOCKET", &socket)
                .stdin(Stdio::null())
                .spawn()
                .map_err(io)
        })
        .collect()
}

fn wait(children: Vec<Child>, limit: Duration) -> Vec<Option<i32>> {
    let until = Instant::now() + limit;
    children
        .into_iter()
        .map(|mut child| {
            loop {
                match child.try_wait() {
                    Ok(Some(status)) => return status.code(),
                    Ok(None) if Instant::now() < until => {
                        std::thread::sleep(Duration::from_millis(5))
                    }
                    _ => {
                        let _ = child.kill();
                        let _ = child.wait();
                        return None;
                    }
                }
            }
        })
        .collect()
}

pub(crate) fn all(devices: &[Device]) -> Result<String> {
    let gpus = devices.len();
    let codes = wait(spawn(2, gpus, "correct")?, Duration::from_secs(60));
    if codes != [Some(0), Some(0)] {
        return Err(Error::Invalid(format!("processes ended with {codes:?}")));
    }
    // Rank 1 ends itself in the middle; rank 0 must report it and end well.
    let codes = wait(spawn(2, gpus, "killed")?, Duration::from_secs(60));
    if codes != [Some(0), Some(9)] {
        return Err(Error::Invalid(format!("with a killed rank: {codes:?}")));
    }
    let codes = wait(spawn(2, gpus, "correct")?, Duration::from_secs(60));
    if codes != [Some(0), Some(0)] {
        return Err(Error::Invalid(format!("after a killed rank: {codes:?}")));
    }
    // Rank 1 has no file descriptors left; both must say so in time, and work once it has.
    let began = Instant::now();
    let codes = wait(spawn(2, gpus, "exhausted")?, Duration::from_secs(60));
    if codes != [Some(0), Some(0)] {
        return Err(Error::Invalid(format!("with nothing left: {codes:?}")));
    }
    Ok(format!(
        "IPC correct, a killed rank reported, IPC correct again, exhausted and mended in {:.1} s",
        began.elapsed().as_secs_f64()
    ))
}

/// What a spawned copy does; exit code 0 is success.
pub(crate) fn child(args: &[String]) -> ExitCode {
    let job = args.first().map_or("", String::as_str);
    match run(job) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("process: {error}");
            ExitCode::from(1)
        }
    }
}

fn run(job: &str) -> Result<()> {
    if job == "exhausted" {
        return exhausted();
    }
    let (launched, ends) = Processes::from_environment(Duration::from_secs(20))?;
    let device = Device::open(launched.local_rank)?;
    let options = Options {
        deadline: Duration::from_secs(if job == "killed" { 1 } else { 10 }),
        memory: crate::small_memory(),
        ..Options::default()
    };
    let mut comm = Communicator::new(&device, Box::new(ends), options)?;
    if job == "killed" {
        return killed(&mut comm);
    }
    if !comm.can(Algorithm::OneShot) {
        return Err(Error::Invalid("no peer access between processes".into()));
    }
    let done = crate::check_sizes(&mut comm, &[1, 9, 7168, 28_672, 300_001], &DType::ALL)?;
    crate::random_calls(&mut comm, 500, 77)?;
    crate::graph_on(&mut comm)?;
    comm.exchange(&done.to_le_bytes())?;
    Ok(())
}

fn killed(comm: &mut Communicator) -> Result<()> {
    let buffer = DeviceBuffer::zeroed(comm.stream(), 1 << 20)?;
    let call = Call::in_place(&buffer, 4096, DType::Bf16);
    for round in 0.. {
        if round == 20 && comm.rank() == 1 {
            // As sudden as a signal: no destructor runs.
            std::process::exit(9);
        }
        let result = comm
            .all_reduce_with(Algorithm::OneShot, &call, None)
            .and_then(|()| comm.synchronize());
        match result {
            Ok(()) if round < 25 => {}
            Err(Error::PeerLate { peer: 1, .. }) if round >= 20 => {
                println!("processes: rank 0 reported the killed rank in round {round}");
                break;
            }
            other => return Err(Error::Invalid(format!("round {round}: {other:?}"))),
        }
    }
    // The GPU still works.
    let word = DeviceBuffer::from_slice(comm.stream(), &[5u32])?;
    let back: Vec<u32> = word.download(comm.stream(), 0, 1)?;
    if back == [5] {
        Ok(())
    } else {
        Err(Error::Invalid("the GPU is lost".into()))
    }
}

/// Building fails on every rank while rank 1 can open no file: not for its handles, not the shared
/// memory. Then it can again, and the same processes on the same GPUs build a group that works.
fn exhausted() -> Result<()> {
    let limit = Duration::from_secs(10);
    let build = |device: &Device, ends| {
        let options = Options {
            memory: crate::small_memory(),
            ..Options::default()
        };
        Communicator::new(device, Box::new(ends), options)
    };
    let (launched, ends) = Processes::from_environment(limit)?;
    let device = Device::open(launched.local_rank)?;
    let mut held = Vec::new();
    if launched.rank == 1 {
        while let Ok(file) = std::fs::File::open("/dev/null") {
            held.push(file);
        }
    }
    let began = Instant::now();
    let built = build(&device, ends);
    let seconds = began.elapsed().as_secs_f64();
    drop(held);
    match built {
        Err(error) if seconds < limit.as_secs_f64() => {
            println!(
                "exhausted: rank {} after {seconds:.2} s: {error}",
                launched.rank
            );
        }
        other => {
            let rank = launched.rank;
            return Err(Error::Invalid(format!(
                "rank {rank}, {seconds} s: {other:?}"
            )));
        }
    }
    let (_, ends) = Processes::from_environment(limit)?;
    let mut comm = build(&device, ends)?;
    crate::check_sizes(&mut comm, &[9, 28_672], &[DType::Bf16])?;
    comm.exchange(b"done")?;
    Ok(())
}
