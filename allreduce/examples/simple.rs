//! Two ranks, each a thread with its own GPU, sum a vector. `cargo run --release --example simple`

use std::time::Duration;

use allreduce::device::{Device, DeviceBuffer};
use allreduce::rendezvous::Threads;
use allreduce::{Call, Communicator, DType, Options, Result};

const RANKS: usize = 2;

fn rank(device: &Device, ends: Threads, ranks_per_gpu: usize) -> Result<Vec<f32>> {
    let options = Options {
        ranks_per_gpu,
        ..Options::default()
    };
    let mut comm = Communicator::new(device, Box::new(ends), options)?;
    comm.prepare(&[DType::F32])?;

    let mine = vec![comm.rank() as f32 + 1.0; 1000];
    let buffer = DeviceBuffer::from_slice(comm.stream(), &mine)?;
    comm.exchange(b"all buffers are ready")?;
    comm.all_reduce(&Call::in_place(&buffer, 1000, DType::F32))?; // queued
    comm.synchronize()?; // waits, and reports a peer that is late
    buffer.download(comm.stream(), 0, 1000)
}

fn main() -> Result<()> {
    let devices = Device::all()?;
    let ranks_per_gpu = RANKS.div_ceil(devices.len());
    let ends = Threads::group(RANKS, Duration::from_secs(30));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (ends.into_iter().enumerate())
            .map(|(r, end)| {
                let device = &devices[r % devices.len()];
                scope.spawn(move || rank(device, end, ranks_per_gpu))
            })
            .collect();
        for thread in threads {
            let sums = thread.join().expect("a rank does not panic")?;
            assert!(sums.iter().all(|s| *s == 3.0), "1 + 2 everywhere");
            println!("a rank has {} sums of {}", sums.len(), sums[0]);
        }
        Ok(())
    })
}
