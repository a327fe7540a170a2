//! The fused kernel and the norm alone against the CPU: the residual bit for bit, the norm against
//! f64.

use allreduce::device::{Device, DeviceBuffer, Stream};
use allreduce::{Communicator, DType, Error, NormShape, Result, RowNorm};

use crate::support::{
    decode, encode, expected_bytes, first_difference, input_bytes, mix, on_ranks,
};

const EPS: f32 = 1e-5;

/// Rows and what they become.
struct Case {
    rows: usize,
    hidden: usize,
    dtype: DType,
    seed: u64,
}

impl Case {
    fn elements(&self) -> usize {
        self.rows * self.hidden
    }

    fn residual(&self) -> Vec<u8> {
        input_bytes(30, self.elements(), self.dtype, self.seed)
    }

    fn weight(&self) -> Vec<u8> {
        input_bytes(31, self.hidden, self.dtype, self.seed)
    }

    fn values(&self, bytes: &[u8]) -> Vec<f32> {
        bytes
            .chunks_exact(self.dtype.bytes())
            .map(|b| {
                let bits = b.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
                decode(bits, self.dtype)
            })
            .collect()
    }

    /// The residual's bytes afterwards, and the norm in f64.
    fn expected(&self, ranks: usize) -> (Vec<u8>, Vec<f64>) {
        let (sum, _) = expected_bytes(ranks, self.elements(), self.dtype, self.seed);
        let (sum, residual) = (self.values(&sum), self.values(&self.residual()));
        let weight = self.values(&self.weight());
        let h: Vec<f32> = sum.iter().zip(&residual).map(|(s, r)| s + r).collect();
        let mut bytes = Vec::new();
        for value in &h {
            bytes.extend(&encode(*value, self.dtype).to_le_bytes()[..self.dtype.bytes()]);
        }
        let mut norm = Vec::new();
        for row in h.chunks_exact(self.hidden) {
            let squares: f64 = row.iter().map(|v| f64::from(*v).powi(2)).sum();
            let scale = 1.0 / (squares / self.hidden as f64 + f64::from(EPS)).sqrt();
            let scaled = row.iter().zip(&weight);
            norm.extend(scaled.map(|(v, w)| f64::from(*v) * scale * f64::from(*w)));
        }
        (bytes, norm)
    }

    /// Runs the fused kernel once and compares.
    fn check(&self, comm: &mut Communicator, shape: Option<NormShape>) -> Result<()> {
        let stream: Stream = comm.stream().clone();
        let bytes = self.elements() * self.dtype.bytes();
        let own = input_bytes(comm.rank(), self.elements(), self.dtype, self.seed);
        let input = DeviceBuffer::from_slice(&stream, &own)?;
        let output = DeviceBuffer::from_slice(&stream, &vec![0xa5u8; bytes])?;
        let residual = DeviceBuffer::from_slice(&stream, &self.residual())?;
        let weight = DeviceBuffer::from_slice(&stream, &self.weight())?;
        let norm = RowNorm {
            input: &input,
            output: &output,
            residual: &residual,
            weight: &weight,
            rows: self.rows,
            hidden: self.hidden,
            eps: EPS,
            dtype: self.dtype,
        };
        // Ranks that share a GPU must not free memory while a peer's kernel waits for theirs.
        comm.exchange(b"go")?;
        comm.all_reduce_norm_with(&norm, shape)?;
        comm.synchronize()?;
        let (want_residual, want) = self.expected(comm.ranks());
        let what = |why: String| {
            let (rows, hidden, name) = (self.rows, self.hidden, self.dtype.name());
            Error::Invalid(format!("fused {rows} x {hidden} {name} {shape:?}: {why}"))
        };
        let got: Vec<u8> = residual.download(&stream, 0, bytes)?;
        if let Some(at) = first_difference(&got, &want_residual) {
            return Err(what(format!("residual differs at byte {at}")));
        }
        let got = self.values(&output.download::<u8>(&stream, 0, bytes)?);
        let unit = match self.dtype {
            DType::F32 => 4e-6, // f32 sums of up to 8192 squares, and rsqrt
            DType::F16 => 2f64.powi(-10),
            DType::Bf16 => 2f64.powi(-7),
        };
        for (index, (got, want)) in got.iter().zip(&want).enumerate() {
            let error = (f64::from(*got) - want).abs();
            if error.is_nan() || error > unit * want.abs() + 1e-6 {
                return Err(what(format!("element {index}: {got}, should be {want}")));
            }
        }
        Ok(())
    }
}

fn check_rows(comm: &mut Communicator, rows: &[(usize, usize)], dtypes: &[DType]) -> Result<usize> {
    comm.prepare(dtypes)?;
    let mut done = 0;
    for dtype in dtypes {
        for (rows, hidden) in rows {
            let seed = mix((rows * 31 + hidden) as u64);
            let case = Case {
                rows: *rows,
                hidden: *hidden,
                dtype: *dtype,
                seed,
            };
            let narrow = hidden * dtype.bytes() / 16 <= 992;
            let block = NormShape {
                packs_per_thread: if narrow { 1 } else { 4 },
                senders: false,
                cluster: false,
            };
            for shape in [None, Some(block)] {
                case.check(comm, shape)?;
                done += 1;
            }
        }
    }
    Ok(done)
}

/// Small enough for compute-sanitizer.
pub(crate) fn tiny(comm: &mut Communicator) -> Result<usize> {
    check_rows(comm, &[(1, 64), (2, 4104)], &[DType::Bf16])
}

pub(crate) fn all(devices: &[Device]) -> Result<String> {
    const ROWS: [(usize, usize); 8] = [
        (1, 8),
        (3, 520),
        (1, 4096),
        (4, 7168),
        (5, 8192),
        (17, 5120),
        (150, 512),
        (2, 4104),
    ];
    let mut report = Vec::new();
    let one = &devices[..1];
    let mut layouts: Vec<(&[Device], usize)> = [2, 3, 4, 8].map(|n| (one, n)).to_vec();
    if devices.len() > 1 {
        layouts.push((devices, 2));
    }
    for (gpus, ranks) in layouts {
        let options = crate::options(crate::small_memory());
        let calls = on_ranks(gpus, ranks, &options, |mut comm| {
            // Longer rows than an inbox takes belong to fewer ranks.
            let rows = if ranks > 4 { &ROWS[..4] } else { &ROWS[..] };
            check_rows(&mut comm, rows, &DType::ALL)
        });
        let calls = crate::first_error(calls)
            .map_err(|e| Error::Invalid(format!("{ranks} ranks on {} GPUs: {e}", gpus.len())))?;
        report.push(format!("{} on {ranks} of {} GPUs", calls[0], gpus.len()));
    }
    Ok(format!("calls: {}", report.join(", ")))
}
