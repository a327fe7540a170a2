//! Correctness on this machine's GPUs: every algorithm, type and size against the CPU, bit for
//! bit; reuse, graphs, wrap-around, processes, faults.
//!
//!     check [PART...]     parts: sizes fused reuse graph wrap nan tune faults processes (all by default)
//!     check quick         one short run, for compute-sanitizer

#[path = "support/faults.rs"]
mod faults;
#[path = "support/fused.rs"]
mod fused;
#[path = "support/processes.rs"]
mod processes;
#[path = "support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use allreduce::device::{Device, DeviceBuffer};
use allreduce::{Algorithm, Call, Communicator, DType, Error, Memory, Options, Result, protocol};
use support::{expected_bytes, first_difference, guarded, input_bytes, mix, on_ranks};

type Part = fn(&[Device]) -> Result<String>;

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if std::env::var_os("ALLREDUCE_RANK").is_some() {
        return processes::child(&args);
    }
    let devices = match Device::all() {
        Ok(devices) if !devices.is_empty() => devices,
        Ok(_) => return stop("no GPU"),
        Err(error) => return stop(&error.to_string()),
    };
    let parts: [(&str, Part); 10] = [
        ("quick", quick),
        ("sizes", sizes),
        ("fused", fused::all),
        ("reuse", reuse),
        ("graph", graph),
        ("wrap", wrap),
        ("nan", nan),
        ("tune", tune),
        ("faults", faults::all),
        ("processes", processes::all),
    ];
    let mut failed = 0;
    for (name, part) in parts {
        let wanted = if args.is_empty() {
            name != "quick"
        } else {
            args.iter().any(|a| a == name)
        };
        if !wanted {
            continue;
        }
        let began = Instant::now();
        let (verdict, detail) = match part(&devices) {
            Ok(detail) => ("ok", detail),
            Err(error) => {
                failed += 1;
                ("FAILED", error.to_string())
            }
        };
        println!(
            "{name}: {verdict} in {:.1} s: {detail}",
            began.elapsed().as_secs_f64()
        );
    }
    std::process::ExitCode::from(failed.min(1))
}

fn stop(why: &str) -> std::process::ExitCode {
    eprintln!("error: {why}");
    std::process::ExitCode::from(2)
}

/// Small enough for eight ranks, and for messages to need several pieces.
fn small_memory() -> Memory {
    Memory {
        slot_bytes: 2 << 20,
        host_slot_bytes: 256 << 10,
        host_bulk_bytes: 512 << 10,
    }
}

fn options(memory: Memory) -> Options {
    Options {
        deadline: Duration::from_secs(4),
        memory,
        ..Options::default()
    }
}

/// The first error of any rank, rather one of its own than that a peer left.
pub(crate) fn first_error<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let own = |r: &Result<T>| !matches!(r, Ok(_) | Err(Error::Bootstrap(_)));
    match results.iter().position(own) {
        Some(rank) => Err(results
            .into_iter()
            .nth(rank)
            .and_then(Result::err)
            .unwrap_or_else(|| Error::Invalid("no error".into()))),
        None => results.into_iter().collect(),
    }
}

/// One call, checked against the CPU on this rank, with the bytes around the output.
pub(crate) fn check_one(
    comm: &mut Communicator,
    algorithm: Algorithm,
    elements: usize,
    dtype: DType,
    offset: usize,
    in_place: bool,
) -> Result<()> {
    let seed = mix(elements as u64 ^ (dtype as u64) << 40);
    let stream = comm.stream().clone();
    let bytes = elements * dtype.bytes();
    let input = guarded(
        &stream,
        &input_bytes(comm.rank(), elements, dtype, seed),
        offset,
    )?;
    let output = if in_place {
        input.clone()
    } else {
        guarded(&stream, &vec![0xa5; bytes], offset)?
    };
    let call = Call {
        input: &input,
        input_at: offset,
        output: &output,
        output_at: offset,
        elements,
        dtype,
    };
    // Ranks that share a GPU must not free memory while a peer's kernel waits for theirs.
    comm.exchange(b"go")?;
    comm.all_reduce_with(algorithm, &call, None)?;
    comm.synchronize()?;
    let got: Vec<u8> = output.download(&stream, 0, offset + bytes + 64)?;
    let (want, error) = expected_bytes(comm.ranks(), elements, dtype, seed);
    let what = || {
        format!(
            "{} {} x {elements}, offset {offset}, in place {in_place}",
            algorithm.name(),
            dtype.name()
        )
    };
    if let Some(at) = first_difference(&got[offset..offset + bytes], &want) {
        return Err(Error::Invalid(format!(
            "{}: rank {} differs at byte {at}",
            what(),
            comm.rank()
        )));
    }
    if got[..offset]
        .iter()
        .chain(&got[offset + bytes..])
        .any(|b| *b != 0xa5)
    {
        return Err(Error::Invalid(format!(
            "{}: bytes beside the output changed",
            what()
        )));
    }
    // One rounding of the result, and one f32 rounding for each addition.
    if error > 1.0 + comm.ranks() as f64 {
        return Err(Error::Invalid(format!(
            "{}: {error} units from the f64 sum",
            what()
        )));
    }
    Ok(())
}

fn check_sizes(comm: &mut Communicator, elements: &[usize], dtypes: &[DType]) -> Result<usize> {
    let mut done = 0;
    comm.prepare(dtypes)?;
    for algorithm in Algorithm::OWN
        .into_iter()
        .filter(|a| comm.can(*a))
        .collect::<Vec<_>>()
    {
        for dtype in dtypes {
            for (index, count) in elements.iter().enumerate() {
                let offset = if index % 3 == 2 { dtype.bytes() } else { 0 };
                check_one(comm, algorithm, *count, *dtype, offset, index % 2 == 1)?;
                done += 1;
            }
        }
    }
    Ok(done)
}

fn quick(devices: &[Device]) -> Result<String> {
    let results = on_ranks(devices, 2, &options(small_memory()), |mut comm| {
        let calls = check_sizes(&mut comm, &[1, 7, 511, 4096, 40_001], &[DType::Bf16])?;
        let norms = if comm.can(Algorithm::OneShot) {
            fused::tiny(&mut comm)?
        } else {
            0
        };
        Ok(calls + norms)
    });
    Ok(format!("{:?} calls a rank", first_error(results)?))
}

fn sizes(devices: &[Device]) -> Result<String> {
    const SMALL: [usize; 14] = [
        1, 2, 3, 5, 8, 9, 16, 63, 255, 1000, 7168, 28_673, 65_536, 300_001,
    ];
    let mut report = Vec::new();
    let one = &devices[..1];
    let mut layouts: Vec<(&[Device], usize)> = [2, 3, 4, 8].map(|n| (one, n)).to_vec();
    if devices.len() > 1 {
        layouts.extend([(devices, 2), (devices, 4), (devices, 8)]);
    }
    for (gpus, ranks) in layouts {
        let results = on_ranks(gpus, ranks, &options(small_memory()), |mut comm| {
            check_sizes(&mut comm, &SMALL, &DType::ALL)
        });
        let calls = first_error(results)
            .map_err(|e| Error::Invalid(format!("{ranks} ranks on {} GPUs: {e}", gpus.len())))?;
        report.push(format!(
            "{ranks} ranks on {} GPUs {} calls",
            gpus.len(),
            calls[0]
        ));
    }
    // 64 MiB, in one piece and in many.
    let results = on_ranks(devices, 2, &options(Memory::default()), |mut comm| {
        check_sizes(&mut comm, &[(4 << 20) + 3, 32 << 20], &[DType::Bf16])
    });
    first_error(results)?;
    report.push("64 MiB".into());
    Ok(report.join(", "))
}

/// Random sizes and algorithms, many calls queued without waiting.
fn random_calls(comm: &mut Communicator, calls: usize, seed: u64) -> Result<usize> {
    const BATCH: usize = 50;
    const MOST: usize = 24_000;
    let stream = comm.stream().clone();
    let able: Vec<Algorithm> = Algorithm::OWN
        .into_iter()
        .filter(|a| comm.can(*a))
        .collect();
    let input = input_bytes(comm.rank(), MOST, DType::Bf16, seed);
    let (want, _) = expected_bytes(comm.ranks(), MOST, DType::Bf16, seed);
    let input = DeviceBuffer::from_slice(&stream, &input)?;
    let outputs: Vec<DeviceBuffer> = (0..BATCH)
        .map(|_| DeviceBuffer::new(&comm.device().clone(), MOST * 2))
        .collect::<Result<_>>()?;
    comm.prepare(&[DType::Bf16])?;
    for batch in 0..calls / BATCH {
        let mut counts = Vec::new();
        for (index, output) in outputs.iter().enumerate() {
            // The same on all ranks: most small, some large.
            let r = mix(seed ^ ((batch * BATCH + index) as u64) << 8);
            let most = if r.is_multiple_of(4) { MOST } else { 600 };
            let count = 1 + (r >> 8) as usize % most;
            let algorithm = able[(r >> 40) as usize % able.len()];
            let call = Call::new(&input, output, count, DType::Bf16);
            comm.all_reduce_with(algorithm, &call, None)?;
            counts.push((count, algorithm));
        }
        comm.synchronize()?;
        for ((count, algorithm), output) in counts.into_iter().zip(&outputs) {
            let got: Vec<u8> = output.download(&stream, 0, count * 2)?;
            if let Some(at) = first_difference(&got, &want[..count * 2]) {
                return Err(Error::Invalid(format!(
                    "batch {batch}: {} x {count} differs at byte {at}",
                    algorithm.name()
                )));
            }
        }
    }
    Ok(calls)
}

fn reuse(devices: &[Device]) -> Result<String> {
    let run = |gpus: &[Device], ranks: usize, calls: usize| {
        first_error(on_ranks(
            gpus,
            ranks,
            &options(small_memory()),
            |mut comm| random_calls(&mut comm, calls, 0x51),
        ))
    };
    run(devices, 2, 10_000)?;
    run(&devices[..1], 4, 2_000)?;
    run(&devices[..1], 3, 1_000)?;
    Ok("10,000 calls on 2 ranks, 2,000 on 4, 1,000 on 3".into())
}

fn graph_on(comm: &mut Communicator) -> Result<usize> {
    const MOST: usize = 40_000;
    const REPLAYS: usize = 101;
    let stream = comm.stream().clone();
    let input = DeviceBuffer::from_slice(&stream, &input_bytes(comm.rank(), MOST, DType::F16, 3))?;
    let (want, _) = expected_bytes(comm.ranks(), MOST, DType::F16, 3);
    // An odd number of calls, so that successive replays use different slots.
    let mut calls = Vec::new();
    comm.prepare(&[DType::F16])?;
    for algorithm in Algorithm::OWN.into_iter().filter(|a| comm.can(*a)) {
        calls.extend([(algorithm, 3), (algorithm, 7_168), (algorithm, MOST)]);
    }
    if calls.len() % 2 == 0 {
        calls.pop();
    }
    let outputs: Vec<DeviceBuffer> = calls
        .iter()
        .map(|(_, count)| DeviceBuffer::zeroed(&stream, count * 2))
        .collect::<Result<_>>()?;
    for ((algorithm, count), output) in calls.iter().zip(&outputs) {
        comm.all_reduce_with(
            *algorithm,
            &Call::new(&input, output, *count, DType::F16),
            None,
        )?;
    }
    comm.synchronize()?;
    for output in &outputs {
        output.fill(&stream, 0xa5)?;
    }
    let graph = stream.capture(|_| {
        calls
            .iter()
            .zip(&outputs)
            .try_for_each(|((algorithm, count), output)| {
                comm.all_reduce_with(
                    *algorithm,
                    &Call::new(&input, output, *count, DType::F16),
                    None,
                )
            })
    })?;
    graph.upload(&stream)?;
    stream.synchronize()?;
    comm.exchange(b"go")?;
    for replay in 0..REPLAYS {
        graph.launch(&stream)?;
        if replay % 25 == 24 && comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(20)); // a slow rank now and then
        }
    }
    comm.synchronize()?;
    for ((algorithm, count), output) in calls.iter().zip(&outputs) {
        let got: Vec<u8> = output.download(&stream, 0, count * 2)?;
        if let Some(at) = first_difference(&got, &want[..count * 2]) {
            return Err(Error::Invalid(format!(
                "{} x {count} differs at byte {at}",
                algorithm.name()
            )));
        }
    }
    Ok(calls.len() * REPLAYS)
}

fn graph(devices: &[Device]) -> Result<String> {
    let two = first_error(on_ranks(devices, 2, &options(small_memory()), |mut c| {
        graph_on(&mut c)
    }))?;
    let four = first_error(on_ranks(
        &devices[..1],
        4,
        &options(small_memory()),
        |mut c| graph_on(&mut c),
    ))?;
    Ok(format!(
        "{} replayed calls on 2 ranks, {} on 4 of one GPU",
        two[0], four[0]
    ))
}

fn wrap(devices: &[Device]) -> Result<String> {
    let options = Options {
        first_call: protocol::CALL_MODULUS - 5,
        ..options(small_memory())
    };
    let results = on_ranks(devices, 2, &options, |mut comm| {
        random_calls(&mut comm, 200, 9)
    });
    first_error(results)?;
    Ok("200 calls across the wrap of the call number".into())
}

/// The one bit pattern that means "not arrived" arrives as another NaN.
fn nan(devices: &[Device]) -> Result<String> {
    let results = on_ranks(devices, 2, &options(small_memory()), |mut comm| {
        let stream = comm.stream().clone();
        for algorithm in Algorithm::OWN
            .into_iter()
            .filter(|a| comm.can(*a))
            .collect::<Vec<_>>()
        {
            let buffer = DeviceBuffer::from_slice(&stream, &[u32::MAX; 1024])?;
            comm.exchange(b"go")?;
            comm.all_reduce_with(algorithm, &Call::in_place(&buffer, 2048, DType::Bf16), None)?;
            comm.synchronize()?;
            let got: Vec<u16> = buffer.download(&stream, 0, 2048)?;
            if got.iter().any(|h| h & 0x7f80 != 0x7f80 || h & 0x7f == 0) {
                return Err(Error::Invalid(format!(
                    "{}: a NaN was lost",
                    algorithm.name()
                )));
            }
        }
        Ok(())
    });
    first_error(results)?;
    Ok("all ones".into())
}

fn tune(devices: &[Device]) -> Result<String> {
    let results = on_ranks(devices, 2, &options(Memory::default()), |mut comm| {
        comm.tune(true)?;
        Ok(comm.selector().to_text())
    });
    let tables = first_error(results)?;
    if tables.iter().any(|t| *t != tables[0]) {
        return Err(Error::Invalid(format!(
            "ranks chose differently: {tables:?}"
        )));
    }
    Ok(tables[0].replace('\n', "; "))
}
