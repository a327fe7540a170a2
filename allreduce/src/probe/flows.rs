//! The measurements.

use super::{Figure, Part};
use crate::device::{
    Arg, Device, DeviceBuffer, Event, Kernel, Launch, Module, PinnedBuffer, Stream,
};
use crate::kernels::KernelFile;
use crate::{Error, Result};

/// Long enough that start-up does not count, short enough for a start-up probe: 64 MiB takes
/// 0.2 ms on NVLink and 30 ms on an old PCIe link.
const BYTES: usize = 64 << 20;
const REPEATS: usize = 8;
const THREADS: u32 = 512;
const FLAG_ROUNDS: u32 = 20_000;
const FLAG_DEADLINE_NS: u64 = 2_000_000_000;

struct Gpu {
    device: Device,
    stream: Stream,
    module: Module,
}

impl Gpu {
    fn new(device: &Device) -> Result<Gpu> {
        let file = KernelFile::Probe;
        let module = Module::compile(device, file.name(), &file.source(), &[])?;
        Ok(Gpu {
            device: device.clone(),
            stream: Stream::new(device)?,
            module,
        })
    }

    fn blocks(&self) -> u32 {
        self.device.multiprocessors() * 2
    }

    fn name(&self) -> String {
        self.device.ordinal().to_string()
    }
}

pub(super) fn run(part: Part) -> Result<Vec<Figure>> {
    let gpus: Vec<Gpu> = Device::all()?.iter().map(Gpu::new).collect::<Result<_>>()?;
    match part {
        Part::Floor => gpus.iter().map(floor).collect(),
        Part::Latency => latency(&gpus),
        Part::Pairs => pairs(&gpus),
        Part::AllPairs => all_pairs(&gpus),
        Part::Host => host(&gpus),
        Part::HostLatency => host_latency(&gpus),
    }
}

fn figure(what: &str, from: &str, to: &str, value: f64, wrong: u64) -> Figure {
    Figure {
        what: what.into(),
        from: from.into(),
        to: to.into(),
        value,
        wrong,
    }
}

fn floor(gpu: &Gpu) -> Result<Figure> {
    const NODES: usize = 200;
    let kernel = gpu.module.kernel("nothing")?;
    let graph = gpu.stream.capture(|stream| {
        (0..NODES).try_for_each(|_| kernel.launch(stream, Launch::new(1, 32), &[]))
    })?;
    let (from, to) = (Event::new(&gpu.device)?, Event::new(&gpu.device)?);
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        graph.launch(&gpu.stream)?;
        from.record(&gpu.stream)?;
        graph.launch(&gpu.stream)?;
        to.record(&gpu.stream)?;
        gpu.stream.synchronize()?;
        best = best.min(to.elapsed_us(&from)? / NODES as f64);
    }
    Ok(figure("empty_kernel_us", &gpu.name(), &gpu.name(), best, 0))
}

/// Ordered pairs of GPUs that the driver says can reach each other, with the way opened.
fn reachable(gpus: &[Gpu]) -> Result<Vec<(usize, usize)>> {
    let mut pairs = Vec::new();
    for (a, from) in gpus.iter().enumerate() {
        for (b, to) in gpus.iter().enumerate() {
            if a != b && from.device.can_access(&to.device)? {
                from.device.enable_access(&to.device)?;
                pairs.push((a, b));
            }
        }
    }
    Ok(pairs)
}

/// One-way time of a flag bounced between two places that `a` and `b` poll.
fn bounce(a: &Gpu, b: &Gpu, a_place: u64, b_place: u64) -> Result<f64> {
    let results = [
        PinnedBuffer::new(&a.device, 16)?,
        PinnedBuffer::new(&b.device, 16)?,
    ];
    // Loaded before either runs: loading may wait for a running kernel, here for ever.
    let kernels = [a.module.kernel("ping_pong")?, b.module.kernel("ping_pong")?];
    for (gpu, kernel, theirs, mine, first, result) in [
        (a, &kernels[0], b_place, a_place, 1, &results[0]),
        (b, &kernels[1], a_place, b_place, 0, &results[1]),
    ] {
        kernel.launch(
            &gpu.stream,
            Launch::new(1, 1),
            &[
                Arg::Address(theirs),
                Arg::Address(mine),
                Arg::U32(first),
                Arg::U32(FLAG_ROUNDS),
                Arg::U64(FLAG_DEADLINE_NS),
                Arg::Pinned(result),
            ],
        )?;
    }
    a.stream.synchronize()?;
    b.stream.synchronize()?;
    let rounds: u64 = results[0].read(0)?;
    let ns: u64 = results[0].read(8)?;
    if rounds != u64::from(FLAG_ROUNDS) {
        return Err(Error::Invalid(format!(
            "a flag was lost after {rounds} rounds"
        )));
    }
    Ok(ns as f64 / 1e3 / (f64::from(FLAG_ROUNDS) * 0.9) / 2.0)
}

fn latency(gpus: &[Gpu]) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (a, b) in reachable(gpus)? {
        let (from, to) = (&gpus[a], &gpus[b]);
        if a < b {
            let flags = [
                DeviceBuffer::zeroed(&from.stream, 128)?,
                DeviceBuffer::zeroed(&to.stream, 128)?,
            ];
            let us = bounce(from, to, flags[0].address(), flags[1].address())?;
            figures.push(figure("flag_us", &from.name(), &to.name(), us, 0));
        }
        const LINES: u32 = 4096;
        const LOADS: u32 = 4000;
        let memory = DeviceBuffer::zeroed(&to.stream, LINES as usize * 128)?;
        let result = PinnedBuffer::new(&from.device, 8)?;
        let args = [
            Arg::Device(&memory),
            Arg::U32(LOADS),
            Arg::U32(LINES),
            Arg::Pinned(&result),
        ];
        from.module
            .kernel("load_latency")?
            .launch(&from.stream, Launch::new(1, 1), &args)?;
        from.stream.synchronize()?;
        let us = result.read::<u64>(0)? as f64 / 1e3 / f64::from(LOADS);
        figures.push(figure("load_us", &from.name(), &to.name(), us, 0));
    }
    Ok(figures)
}

fn host_latency(gpus: &[Gpu]) -> Result<Vec<Figure>> {
    let second;
    let (a, b) = match gpus {
        [a, b, ..] => (a, b),
        [a] => {
            second = Gpu::new(&a.device)?; // two kernels of one GPU
            (a, &second)
        }
        [] => return Ok(Vec::new()),
    };
    let flags = PinnedBuffer::new(&a.device, 256)?;
    let us = bounce(a, b, flags.address(), flags.address() + 128)?;
    Ok(vec![figure("host_flag_us", &a.name(), &b.name(), us, 0)])
}

/// One flow of data: what `gpu` does with `buffer` on another GPU or in host memory.
struct Flow<'a> {
    gpu: &'a Gpu,
    stream: Stream,
    work: Work<'a>,
    blocks: u32,
}

enum Work<'a> {
    Store {
        to: u64,
        kernel: Kernel,
    },
    Load {
        from: u64,
        sink: DeviceBuffer,
        kernel: Kernel,
    },
    Copy {
        from: &'a DeviceBuffer,
        to: &'a DeviceBuffer,
    },
    ToHost {
        from: DeviceBuffer,
        to: PinnedBuffer,
    },
    FromHost {
        from: PinnedBuffer,
        to: DeviceBuffer,
    },
}

impl<'a> Flow<'a> {
    fn new(gpu: &'a Gpu, work: Work<'a>, blocks: u32) -> Result<Flow<'a>> {
        Ok(Flow {
            gpu,
            stream: Stream::new(&gpu.device)?,
            work,
            blocks,
        })
    }

    fn store(gpu: &'a Gpu, to: u64, blocks: u32) -> Result<Flow<'a>> {
        Flow::new(
            gpu,
            Work::Store {
                to,
                kernel: gpu.module.kernel("store_stream")?,
            },
            blocks,
        )
    }

    fn load(gpu: &'a Gpu, from: u64, blocks: u32) -> Result<Flow<'a>> {
        let sink = DeviceBuffer::new(&gpu.device, 16)?;
        Flow::new(
            gpu,
            Work::Load {
                from,
                sink,
                kernel: gpu.module.kernel("load_stream")?,
            },
            blocks,
        )
    }

    fn queue(&self, seed: u32) -> Result<()> {
        let launch = Launch::new(self.blocks, THREADS);
        let packs = Arg::U64((BYTES / 16) as u64);
        match &self.work {
            Work::Store { to, kernel } => kernel.launch(
                &self.stream,
                launch,
                &[Arg::Address(*to), packs, Arg::U32(seed)],
            ),
            Work::Load { from, sink, kernel } => kernel.launch(
                &self.stream,
                launch,
                &[Arg::Address(*from), packs, Arg::Device(sink)],
            ),
            Work::Copy { from, to } => to.copy_from(&self.stream, from, BYTES),
            Work::ToHost { from, to } => to.copy_from_device(&self.stream, from, BYTES),
            Work::FromHost { from, to } => from.copy_to_device(&self.stream, to, BYTES),
        }
    }
}

/// Runs all flows at once and gives the sum of their rates in GB/s.
fn rate(flows: &[Flow<'_>], seed: u32) -> Result<f64> {
    let mut events = Vec::new();
    for flow in flows {
        flow.queue(seed)?;
        events.push((Event::new(&flow.gpu.device)?, Event::new(&flow.gpu.device)?));
    }
    for flow in flows {
        flow.stream.synchronize()?;
    }
    for (flow, (from, _)) in flows.iter().zip(&events) {
        from.record(&flow.stream)?;
    }
    for _ in 0..REPEATS {
        for flow in flows {
            flow.queue(seed)?;
        }
    }
    for (flow, (_, to)) in flows.iter().zip(&events) {
        to.record(&flow.stream)?;
    }
    let mut total = 0.0;
    for (flow, (from, to)) in flows.iter().zip(&events) {
        flow.stream.synchronize()?;
        total += (BYTES * REPEATS) as f64 / to.elapsed_us(from)? / 1e3;
    }
    Ok(total)
}

/// Packs of `buffer` that are not what a store flow with `seed` wrote, counted by its own GPU.
fn count_wrong(owner: &Gpu, buffer: &DeviceBuffer, seed: u32) -> Result<u64> {
    let wrong = DeviceBuffer::zeroed(&owner.stream, 16)?;
    owner.module.kernel("check_stream")?.launch(
        &owner.stream,
        Launch::new(owner.blocks(), THREADS),
        &[
            Arg::Device(buffer),
            Arg::U64((BYTES / 16) as u64),
            Arg::U32(seed),
            Arg::Device(&wrong),
        ],
    )?;
    Ok(u64::from(wrong.download::<u32>(&owner.stream, 0, 1)?[0]))
}

fn buffers(
    gpus: &[Gpu],
    pairs: &[(usize, usize)],
    end: impl Fn(&(usize, usize)) -> usize,
) -> Result<Vec<DeviceBuffer>> {
    pairs
        .iter()
        .map(|pair| DeviceBuffer::zeroed(&gpus[end(pair)].stream, BYTES))
        .collect()
}

/// Stores, loads and copies over `pairs` at once: GB/s and wrong packs of each kind.
fn three_ways(gpus: &[Gpu], pairs: &[(usize, usize)], seed: u32) -> Result<[(f64, u64); 3]> {
    let near = buffers(gpus, pairs, |p| p.0)?;
    let far = buffers(gpus, pairs, |p| p.1)?;
    // Flows of one GPU share its multiprocessors.
    let share = |gpu: &Gpu| (gpu.blocks() / (gpus.len() as u32 - 1).max(1)).max(8);
    let wrong = |buffers: &[DeviceBuffer], owner: fn(&(usize, usize)) -> usize, seed| {
        pairs
            .iter()
            .zip(buffers)
            .map(|(pair, buffer)| count_wrong(&gpus[owner(pair)], buffer, seed))
            .sum::<Result<u64>>()
    };
    let each = || {
        pairs
            .iter()
            .zip(&far)
            .map(|((a, _), buffer)| (&gpus[*a], buffer.address()))
    };
    let stores: Vec<Flow<'_>> = each()
        .map(|(gpu, at)| Flow::store(gpu, at, share(gpu)))
        .collect::<Result<_>>()?;
    let store = (rate(&stores, seed)?, wrong(&far, |p| p.1, seed)?);
    let loads: Vec<Flow<'_>> = each()
        .map(|(gpu, at)| Flow::load(gpu, at, share(gpu)))
        .collect::<Result<_>>()?;
    let load_gb_s = rate(&loads, seed)?;
    // What a load returns is checked by the loading GPU over the same path.
    let load = (load_gb_s, wrong(&far, |p| p.0, seed)?);
    let copies = pairs
        .iter()
        .enumerate()
        .map(|(i, (a, _))| {
            Flow::new(
                &gpus[*a],
                Work::Copy {
                    from: &near[i],
                    to: &far[i],
                },
                1,
            )
        })
        .collect::<Result<Vec<_>>>()?;
    for (i, (a, _)) in pairs.iter().enumerate() {
        let fill = Flow::store(&gpus[*a], near[i].address(), gpus[*a].blocks())?;
        fill.queue(seed + 1)?;
        fill.stream.synchronize()?;
    }
    let copy = (rate(&copies, seed)?, wrong(&far, |p| p.1, seed + 1)?);
    Ok([store, load, copy])
}

fn pairs(gpus: &[Gpu]) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (index, pair) in reachable(gpus)?.into_iter().enumerate() {
        let results = three_ways(gpus, &[pair], 17 + index as u32 * 2)?;
        for (what, (gb_s, wrong)) in ["store_gb_s", "load_gb_s", "copy_gb_s"].iter().zip(results) {
            figures.push(figure(
                what,
                &gpus[pair.0].name(),
                &gpus[pair.1].name(),
                gb_s,
                wrong,
            ));
        }
    }
    Ok(figures)
}

fn all_pairs(gpus: &[Gpu]) -> Result<Vec<Figure>> {
    let pairs = reachable(gpus)?;
    if pairs.is_empty() {
        return Ok(Vec::new());
    }
    let names = ["all_store_gb_s", "all_load_gb_s", "all_copy_gb_s"];
    let results = three_ways(gpus, &pairs, 401)?;
    Ok(names
        .iter()
        .zip(results)
        .map(|(w, (gb_s, wrong))| figure(w, "all", "all", gb_s, wrong))
        .collect())
}

fn host(gpus: &[Gpu]) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for gpu in gpus {
        figures.extend(host_figures(std::slice::from_ref(gpu), &gpu.name())?);
    }
    if gpus.len() > 1 {
        figures.extend(host_figures(gpus, "all")?);
    }
    Ok(figures)
}

fn host_figures(gpus: &[Gpu], name: &str) -> Result<Vec<Figure>> {
    let mut down = Vec::new();
    let mut up = Vec::new();
    let (mut stores, mut loads) = (Vec::new(), Vec::new());
    for gpu in gpus {
        let (host, device) = (
            PinnedBuffer::new(&gpu.device, BYTES)?,
            DeviceBuffer::new(&gpu.device, BYTES)?,
        );
        let address = host.address();
        down.push(Flow::new(
            gpu,
            Work::FromHost {
                from: host.clone(),
                to: device.clone(),
            },
            1,
        )?);
        let other = PinnedBuffer::new(&gpu.device, BYTES)?;
        up.push(Flow::new(
            gpu,
            Work::ToHost {
                from: device,
                to: other,
            },
            1,
        )?);
        stores.push(Flow::store(gpu, address, 64)?);
        loads.push(Flow::load(gpu, address, 64)?);
    }
    let mut figures = vec![
        figure("h2d_gb_s", name, "host", rate(&down, 1)?, 0),
        figure("d2h_gb_s", name, "host", rate(&up, 1)?, 0),
        figure("host_store_gb_s", name, "host", rate(&stores, 1)?, 0),
        figure("host_load_gb_s", name, "host", rate(&loads, 1)?, 0),
    ];
    down.append(&mut up);
    figures.push(figure("bidir_gb_s", name, "host", rate(&down, 1)?, 0));
    stores.append(&mut loads);
    let both = rate(&stores, 1)?;
    figures.push(figure("host_kernels_both_gb_s", name, "host", both, 0));
    Ok(figures)
}
