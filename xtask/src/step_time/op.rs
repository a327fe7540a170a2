//! What every operation model returns, and the number classes that decide which units compute.

use std::ops::{Add, AddAssign, Mul};

use kvplan::WeightFormat;

use crate::gpus::{Family, Gpu};

/// Time of one kernel or a few that belong together, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct OpTime {
    /// Launch, ramp and tail: what remains when there is no data.
    pub(crate) fixed_us: f64,
    /// Reading weights or cache at the bandwidth this kernel reaches.
    pub(crate) memory_us: f64,
    /// What arithmetic adds beyond that.
    pub(crate) compute_us: f64,
    /// Kernels launched, for engines that launch them one by one.
    pub(crate) kernels: f64,
}

impl OpTime {
    /// A kernel whose memory and compute phases overlap: the cubic mean of both, which is within
    /// 26 % of the longer one and equals it when the other is small.
    pub(crate) fn overlapped(fixed_us: f64, memory_us: f64, compute_us: f64, kernels: f64) -> Self {
        let both = (memory_us.powi(3) + compute_us.powi(3)).cbrt();
        Self {
            fixed_us,
            memory_us,
            compute_us: (both - memory_us).max(0.0),
            kernels,
        }
    }

    /// Time beyond the fixed part.
    pub(crate) fn work_us(&self) -> f64 {
        self.memory_us + self.compute_us
    }

    /// All of it.
    pub(crate) fn total_us(&self) -> f64 {
        self.fixed_us + self.work_us()
    }
}

impl Add for OpTime {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            fixed_us: self.fixed_us + other.fixed_us,
            memory_us: self.memory_us + other.memory_us,
            compute_us: self.compute_us + other.compute_us,
            kernels: self.kernels + other.kernels,
        }
    }
}

impl AddAssign for OpTime {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Mul<f64> for OpTime {
    type Output = Self;
    fn mul(self, times: f64) -> Self {
        Self {
            fixed_us: self.fixed_us * times,
            memory_us: self.memory_us * times,
            compute_us: self.compute_us * times,
            kernels: self.kernels * times,
        }
    }
}

/// Share of the data sheet's bandwidth that a kernel reaches on this card, where `fitted` was
/// measured on a card of the same family with other memory.
///
/// GA102 and kin read GDDR6(X), not the A100's HBM: as the RTX PRO 6000's GDDR7 does, 0.90. GB10
/// reads LPDDR5X, 0.78 whatever the format, since its SMs wait for a sixth of an RTX PRO 6000's
/// bandwidth and no kernel's own pace shows: Llama-3.1-8B on a DGX Spark reaches 0.64 (fp8, 20.5
/// tok/s) to 0.80 (NVFP4, 38.7) once launches are taken off.
pub(crate) fn memory_share(gpu: &Gpu, fitted: f64) -> f64 {
    match gpu.arch.as_str() {
        "sm_121" => 0.78,
        "sm_86" => fitted.max(0.90),
        _ => fitted,
    }
}

/// Which units multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// 16-bit operands.
    Half,
    /// 8-bit operands (fp8, mxfp8, int8).
    Byte,
    /// 4-bit operands on units that take them.
    Fp4,
    /// 4- or 8-bit weights widened to 16 bits before multiplying (Marlin and kin).
    WeightOnly4,
}

/// MXFP4 (gpt-oss) runs other kernels than grouped int4: 0.531 bytes a weight against 0.516 (groups
/// of 128) and 0.563 (of 32). Groups of 64 have its very bytes and are rare.
pub(crate) fn is_mxfp4(bytes: f64) -> bool {
    (0.525..0.54).contains(&bytes)
}

/// Weights that one SM widens to 16 bits, per ns. Ordinary lanes do that, so it follows neither
/// memory nor tensor flops: 16 to 47 a clock, fitted on the w4a16_mxfp4 and int4_wo rows of
/// `data/op_times/moe_*` for Hopper and RTX PRO. Older cards, without a table, take the RTX PRO's;
/// data-centre Blackwell what the served steps of Kimi-K2.5 INT4 ask for.
pub(crate) fn widened_per_ns(family: Family, mxfp4: bool) -> f64 {
    match family {
        Family::Hopper | Family::Cdna3 if mxfp4 => 55.0,
        Family::Hopper | Family::Cdna3 => 82.0,
        Family::Blackwell => 166.0,
        Family::BlackwellRtx | Family::Ada if mxfp4 => 28.0,
        _ => 46.0,
    }
}

/// A weight format on a card: units, bytes and rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Numbers {
    /// Units that multiply.
    pub(crate) class: Class,
    /// Bytes a weight takes, scales included.
    pub(crate) bytes: f64,
    /// Dense data-sheet rate of those units, TFLOPS.
    pub(crate) tflops: f64,
}

impl Numbers {
    /// How `format` runs on `gpu`. A card without the units runs it weight-only.
    pub(crate) fn of(format: WeightFormat, gpu: &Gpu) -> Self {
        let half = gpu.tflops_bf16.max(1.0);
        let (class, tflops) = match format {
            WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::F16 => (Class::Half, half),
            WeightFormat::Fp8 | WeightFormat::Fp8Block | WeightFormat::Mxfp8 => {
                if gpu.tflops_fp8 > 0.0 {
                    (Class::Byte, gpu.tflops_fp8)
                } else {
                    (Class::WeightOnly4, half)
                }
            }
            WeightFormat::Int8 => (Class::Byte, gpu.tops_int8.max(half)),
            // Data-centre Blackwell multiplies MXFP4 weights with 8-bit activations as they are.
            WeightFormat::Mxfp4 if gpu.family == Family::Blackwell => {
                (Class::Fp4, gpu.tflops_fp8.max(half))
            }
            WeightFormat::Nvfp4 if gpu.tflops_fp4 > 0.0 => (Class::Fp4, gpu.tflops_fp4),
            WeightFormat::Nvfp4
            | WeightFormat::Int4 { .. }
            | WeightFormat::Mxfp4
            | WeightFormat::Gguf { .. } => (Class::WeightOnly4, half),
        };
        Self {
            class,
            bytes: format.bytes_per_param(),
            tflops,
        }
    }
}
