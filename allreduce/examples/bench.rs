//! Times all-reduces inside replayed CUDA graphs.
//!
//!     bench [WORK...] [--ranks N] [--json FILE] [--slot-mib N] [--bulk-mib N] [--no-peers]
//!                                                   ranks are threads of this process
//!     torchrun --nproc-per-node 2 bench …           ranks are processes (or mpirun, srun)
//!
//! WORK: floor, ours, nccl, host, auto, fused, sweep, sweep-two-shot, host-sweep (default: floor ours
//! nccl fused). `auto` is what a user gets: NCCL joined, `tune`d, then the selector's choice; after
//! `--no-peers` without the peers' memory.
//! Each time is the slowest rank's median over replays of a graph of many calls, divided by the
//! calls. One JSON line a figure goes to FILE. Set NCCL_P2P_DISABLE=1 to time NCCL through host
//! memory.

#[path = "support/mod.rs"]
mod support;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use allreduce::device::{Device, DeviceBuffer, Event, Stream};
use allreduce::probe::Part;
use allreduce::rendezvous::Processes;
use allreduce::{
    Algorithm, Call, Communicator, DType, Error, Memory, NormShape, Options, Result, RowNorm, Shape,
};

const SIZES: [usize; 11] = [
    1024,
    4096,
    14_336,
    57_344,
    131_072,
    262_144,
    524_288,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
];

#[derive(Debug, Clone)]
struct Args {
    work: Vec<String>,
    ranks: usize,
    json: Option<String>,
    slot_mib: u64,
    bulk_mib: u64,
    peers: bool,
}

fn main() -> ExitCode {
    match parse().and_then(|args| run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn parse() -> Result<Args> {
    let mut args = Args {
        work: Vec::new(),
        ranks: 0,
        json: None,
        slot_mib: 32,
        bulk_mib: 4,
        peers: true,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let bad = || Error::Invalid(format!("{word} needs a value"));
        match word.as_str() {
            "--ranks" => args.ranks = words.next().and_then(|n| n.parse().ok()).ok_or_else(bad)?,
            "--slot-mib" => {
                args.slot_mib = words.next().and_then(|n| n.parse().ok()).ok_or_else(bad)?
            }
            "--bulk-mib" => {
                args.bulk_mib = words.next().and_then(|n| n.parse().ok()).ok_or_else(bad)?
            }
            "--no-peers" => args.peers = false,
            "--json" => args.json = Some(words.next().ok_or_else(bad)?),
            _ => args.work.push(word),
        }
    }
    if args.work.is_empty() {
        args.work = ["floor", "ours", "nccl", "fused"]
            .map(String::from)
            .to_vec();
    }
    Ok(args)
}

fn run(args: &Args) -> Result<()> {
    // Generous: a first NCCL call or a slow host thread is not a fault here.
    let mut options = Options {
        deadline: Duration::from_secs(10),
        memory: Memory {
            slot_bytes: args.slot_mib << 20,
            host_bulk_bytes: args.bulk_mib << 20,
            ..Memory::default()
        },
        peers: args.peers,
        ..Options::default()
    };
    let in_processes = [
        "ALLREDUCE_RANK",
        "RANK",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "SLURM_PROCID",
    ]
    .iter()
    .any(|name| std::env::var_os(name).is_some());
    let lines = if in_processes {
        let (launched, ends) = Processes::from_environment(Duration::from_secs(60))?;
        let gpus = allreduce::device::driver_info()?.gpus;
        options.ranks_per_gpu = launched.ranks.div_ceil(gpus.max(1));
        let device = Device::open(launched.local_rank % gpus.max(1))?;
        let comm = Communicator::new(&device, Box::new(ends), options)?;
        Bench::new(comm, "processes")?.work(&args.work)?
    } else {
        let devices = Device::all()?;
        if args.work.iter().any(|w| w == "floor") {
            for part in [Part::Floor, Part::Latency, Part::HostLatency] {
                part.run()?.iter().for_each(|figure| println!("{figure}"));
            }
        }
        let ranks = if args.ranks == 0 {
            devices.len().max(2)
        } else {
            args.ranks
        };
        let results = support::on_ranks(&devices, ranks, &options, |comm| {
            Bench::new(comm, "threads")?.work(&args.work)
        });
        let mut all = Vec::new();
        for result in results {
            all.push(result?);
        }
        all.swap_remove(0)
    };
    if let Some(path) = args.json.as_ref().filter(|_| !lines.is_empty()) {
        let io = |e: std::io::Error| Error::Io {
            what: path.clone(),
            why: e.to_string(),
        };
        std::fs::write(path, lines).map_err(io)?;
    }
    Ok(())
}

struct Bench {
    comm: Communicator,
    mode: &'static str,
    input: DeviceBuffer,
    output: DeviceBuffer,
    lines: String,
}

impl Bench {
    fn new(mut comm: Communicator, mode: &'static str) -> Result<Bench> {
        comm.prepare(&[DType::Bf16])?;
        let most = SIZES[SIZES.len() - 1];
        let input = support::input_bytes(comm.rank(), most / 2, DType::Bf16, 5);
        let input = DeviceBuffer::from_slice(comm.stream(), &input)?;
        let output = DeviceBuffer::zeroed(comm.stream(), most)?;
        Ok(Bench {
            comm,
            mode,
            input,
            output,
            lines: String::new(),
        })
    }

    /// Does the work; rank 0 returns JSON lines, the others nothing.
    fn work(mut self, work: &[String]) -> Result<String> {
        let shared = self.comm.most_blocks() < self.comm.device().multiprocessors();
        for work in work {
            match work.as_str() {
                "floor" => {}
                "ours" => {
                    self.table(&[Algorithm::OneShot, Algorithm::TwoShot, Algorithm::Island])?
                }
                "host" => self.table(&[Algorithm::HostStaged, Algorithm::HostBulk])?,
                "nccl" if shared => println!("nccl: skipped, it cannot put two ranks on one GPU"),
                "nccl" => {
                    self.comm.add_nccl()?;
                    self.table(&[Algorithm::Nccl])?;
                }
                "fused" => self.fused()?,
                "auto" => self.auto()?,
                "sweep" => self.sweep(Algorithm::OneShot)?,
                "sweep-two-shot" => self.sweep(Algorithm::TwoShot)?,
                "host-sweep" => {
                    self.sweep(Algorithm::HostStaged)?;
                    self.sweep(Algorithm::HostBulk)?;
                }
                other => return Err(Error::Invalid(format!("no work '{other}'"))),
            }
        }
        self.comm.exchange(b"end")?;
        Ok(if self.comm.rank() == 0 {
            self.lines
        } else {
            String::new()
        })
    }

    fn table(&mut self, algorithms: &[Algorithm]) -> Result<()> {
        for algorithm in algorithms {
            if !self.comm.can(*algorithm) {
                continue;
            }
            for bytes in SIZES {
                if *algorithm == Algorithm::HostStaged && bytes > 4 << 20 {
                    continue;
                }
                let time = self.time(*algorithm, bytes, None)?;
                let shape = self.comm.shape(*algorithm, bytes as u64);
                self.report(algorithm.name(), bytes, shape, time);
            }
        }
        Ok(())
    }

    /// The selector's choice at every size, measured.
    fn auto(&mut self) -> Result<()> {
        self.comm.add_nccl()?;
        self.comm.tune(true)?;
        if self.comm.rank() == 0 {
            println!(
                "selector: {}",
                self.comm.selector().to_text().replace('\n', "; ")
            );
        }
        for bytes in SIZES {
            let call = Call::new(&self.input, &self.output, bytes / 2, DType::Bf16);
            let comm = &mut self.comm;
            let time = measure(comm, calls_for(bytes), |comm| comm.all_reduce(&call))?;
            let shape = self.comm.shape(Algorithm::Nccl, bytes as u64);
            self.report("auto", bytes, shape, time);
        }
        Ok(())
    }

    fn sweep(&mut self, algorithm: Algorithm) -> Result<()> {
        let most = self.comm.most_blocks();
        for bytes in SIZES {
            let small = algorithm == Algorithm::HostBulk && bytes < 131_072;
            let large = algorithm == Algorithm::HostStaged && bytes > 4 << 20;
            if large || bytes > 16 << 20 || small {
                continue;
            }
            let mut best: Option<(f64, Shape)> = None;
            for lanes in [64, 128, 256, 512] {
                let full = u32::try_from(bytes.div_ceil(16 * lanes as usize)).unwrap_or(most);
                for divisor in [1, 2, 4, 8] {
                    let blocks = (full.min(most) / divisor).max(1);
                    if divisor > 1 && blocks == (full.min(most) * 2 / divisor).max(1) {
                        continue;
                    }
                    for shape in variants(algorithm, blocks, lanes) {
                        let time = self.time(algorithm, bytes, Some(shape))?;
                        self.record(algorithm.name(), bytes, shape, time);
                        if best.is_none_or(|(us, _)| time.0 < us) {
                            best = Some((time.0, shape));
                        }
                    }
                }
            }
            if let (Some((us, shape)), 0) = (best, self.comm.rank()) {
                println!(
                    "best {} {bytes} {us:.2} us with {shape:?}",
                    algorithm.name()
                );
            }
        }
        Ok(())
    }

    /// Median and least time of one call, in microseconds: the slowest rank's.
    fn time(
        &mut self,
        algorithm: Algorithm,
        bytes: usize,
        shape: Option<Shape>,
    ) -> Result<(f64, f64)> {
        let call = Call::new(&self.input, &self.output, bytes / 2, DType::Bf16);
        let comm = &mut self.comm;
        let calls = calls_for(bytes);
        measure(comm, calls, |comm| {
            comm.all_reduce_with(algorithm, &call, shape)
        })
    }

    fn fused(&mut self) -> Result<()> {
        let dtype = DType::Bf16;
        let stream = self.comm.stream().clone();
        let (input, output) = (self.input.clone(), self.output.clone());
        for (rows, hidden) in [
            (1, 4096),
            (1, 7168),
            (2, 7168),
            (4, 7168),
            (8, 7168),
            (4, 8192),
        ] {
            let bytes = rows * hidden * 2;
            let weight = support::input_bytes(20, hidden, dtype, 1);
            let weight = DeviceBuffer::from_slice(&stream, &weight)?;
            let residual_a = DeviceBuffer::zeroed(&stream, bytes)?;
            let residual_b = DeviceBuffer::zeroed(&stream, bytes)?;
            let other = DeviceBuffer::zeroed(&stream, bytes)?;
            let norm = RowNorm {
                input: &input,
                output: &output,
                residual: &residual_a,
                weight: &weight,
                rows,
                hidden,
                eps: 1e-5,
                dtype,
            };
            let alone = RowNorm {
                input: &other,
                output: &other,
                residual: &residual_b,
                ..norm
            };
            self.fused_against_separate(&norm, &alone, bytes)?;
        }
        Ok(())
    }

    /// `norm` fused against one-shot into `alone`'s buffer and the norm there: bits, then times.
    fn fused_against_separate(
        &mut self,
        norm: &RowNorm<'_>,
        alone: &RowNorm<'_>,
        bytes: usize,
    ) -> Result<()> {
        let stream = self.comm.stream().clone();
        let sum = Call::new(norm.input, alone.input, norm.rows * norm.hidden, norm.dtype);
        let launch = self.comm.shape(Algorithm::OneShot, bytes as u64);
        // The default; then a block a row, as most engines' kernels; then a cluster a row.
        let plain = NormShape {
            packs_per_thread: if norm.hidden / 8 > 992 { 2 } else { 1 },
            senders: true,
            cluster: false,
        };
        let cluster = NormShape {
            cluster: true,
            ..plain
        };
        let clusters = self.comm.device().compute_capability().0 >= 9;
        let shapes = [
            ("", None),
            ("-block", Some(plain)),
            ("-cluster", Some(cluster)),
        ];
        for (suffix, shape) in shapes {
            if suffix == "-cluster" && !clusters {
                continue;
            }
            let separate = |comm: &mut Communicator| {
                comm.all_reduce_with(Algorithm::OneShot, &sum, None)?;
                comm.norm_alone(alone, shape)
            };
            let residual = support::input_bytes(21, bytes / 2, norm.dtype, 1);
            norm.residual.upload(&stream, 0, &residual)?;
            alone.residual.upload(&stream, 0, &residual)?;
            self.comm.exchange(b"go")?;
            self.comm.all_reduce_norm_with(norm, shape)?;
            separate(&mut self.comm)?;
            self.comm.synchronize()?;
            for (a, b) in [(norm.output, alone.output), (norm.residual, alone.residual)] {
                let a: Vec<u8> = a.download(&stream, 0, bytes)?;
                let b: Vec<u8> = b.download(&stream, 0, bytes)?;
                if support::first_difference(&a, &b).is_some() {
                    let what = format!("fused{suffix} {} x {} differs", norm.rows, norm.hidden);
                    return Err(Error::Invalid(what));
                }
            }
            let fused = measure(&mut self.comm, 50, |c| c.all_reduce_norm_with(norm, shape))?;
            self.report(&format!("fused{suffix}"), bytes, launch, fused);
            let separate = measure(&mut self.comm, 50, separate)?;
            self.report(&format!("one-shot+norm{suffix}"), bytes, launch, separate);
        }
        Ok(())
    }

    fn report(&mut self, name: &str, bytes: usize, shape: Shape, time: (f64, f64)) {
        if self.comm.rank() == 0 {
            let gb_s = bytes as f64 / time.0 / 1e3;
            println!(
                "{} {name} {bytes} bytes: {:.2} us (min {:.2}) {gb_s:.1} GB/s, {} x {}",
                self.mode, time.0, time.1, shape.blocks, shape.lanes
            );
        }
        self.record(name, bytes, shape, time);
    }

    fn record(&mut self, name: &str, bytes: usize, shape: Shape, time: (f64, f64)) {
        let p2p = if std::env::var_os("NCCL_P2P_DISABLE").is_some() {
            "off"
        } else {
            "on"
        };
        let _ = writeln!(
            self.lines,
            "{{\"algorithm\":\"{name}\",\"bytes\":{bytes},\"ranks\":{},\"dtype\":\"bf16\",\"mode\":\"{}\",\
             \"nccl_p2p\":\"{p2p}\",\"blocks\":{},\"lanes\":{},\"tile_bytes\":{},\"time_us\":{:.3},\"min_us\":{:.3}}}",
            self.comm.ranks(),
            self.mode,
            shape.blocks,
            shape.lanes,
            shape.tile_bytes,
            time.0,
            time.1
        );
    }
}

/// Shapes that differ in what one algorithm alone looks at.
fn variants(algorithm: Algorithm, blocks: u32, lanes: u32) -> Vec<Shape> {
    let tiles: &[u32] = if algorithm == Algorithm::HostBulk {
        &[2, 4, 8, 16]
    } else {
        &[2]
    };
    tiles
        .iter()
        .map(|kib| Shape {
            blocks,
            lanes,
            tile_bytes: kib << 10,
        })
        .collect()
}

fn calls_for(bytes: usize) -> usize {
    match bytes {
        0..=1_048_576 => 50,
        1_048_577..=8_388_608 => 20,
        8_388_609..=33_554_432 => 8,
        _ => 4,
    }
}

/// Median and least time of one `queue`, the slowest rank's, in microseconds.
fn measure(
    comm: &mut Communicator,
    calls: usize,
    queue: impl Fn(&mut Communicator) -> Result<()>,
) -> Result<(f64, f64)> {
    const REPLAYS: usize = 15;
    let stream: Stream = comm.stream().clone();
    comm.exchange(b"go")?;
    queue(comm)?; // loads what is not loaded yet: not allowed inside a capture
    comm.synchronize()?;
    let graph = stream.capture(|_| (0..calls).try_for_each(|_| queue(comm)))?;
    graph.upload(&stream)?;
    stream.synchronize()?;
    let (from, to) = (Event::new(stream.device())?, Event::new(stream.device())?);
    comm.exchange(b"go")?;
    let mut times = Vec::new();
    for _ in 0..REPLAYS {
        // The first replay brings the ranks together; the second is timed.
        graph.launch(&stream)?;
        from.record(&stream)?;
        graph.launch(&stream)?;
        to.record(&stream)?;
        comm.synchronize()?;
        times.push(to.elapsed_us(&from)? / calls as f64);
    }
    let own = [
        support::median(times.clone()),
        times.iter().copied().fold(f64::INFINITY, f64::min),
    ];
    let all = comm.exchange(&own.map(f64::to_le_bytes).concat())?;
    drop(graph);
    let slowest = |at: usize| {
        all.iter()
            .filter_map(|b| b.get(at..at + 8)?.try_into().ok().map(f64::from_le_bytes))
            .fold(0.0, f64::max)
    };
    Ok((slowest(0), slowest(8)))
}
