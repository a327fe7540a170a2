//! Figures measured on a box correct the model there: the ratio measured to modelled, interpolated
//! over the size.

use crate::collectives::{Algorithm, Basis, CollectiveTime, Options, all_reduce};
use crate::topology::Topology;

/// Band left at a size that was measured: repeat runs differ by about 5 %.
const BAND_MEASURED: f64 = 1.1;
/// Band between and beyond sizes that were measured.
const BAND_CORRECTED: f64 = 1.25;

/// Corrects `time` by the box's measured all-reduce rows of the same algorithm and rank count.
pub(crate) fn correct(
    time: &mut CollectiveTime,
    t: &Topology,
    ranks: &[usize],
    algorithm: Algorithm,
    bytes: u64,
    options: &Options,
) {
    let plain = Options {
        use_measured: false,
        ..options.clone()
    };
    let mut ratios: Vec<(u64, f64)> = t
        .measured
        .iter()
        .filter(|m| m.what == "all_reduce")
        .filter(|m| {
            let name = m.algorithm.as_deref().unwrap_or("nccl");
            name.parse() == Ok(algorithm)
                && m.ranks.map_or(t.gpu_count(), |r| r as usize) == ranks.len()
        })
        .filter_map(|m| {
            let (at, us) = (m.bytes?, m.time_us?);
            let modelled = all_reduce(t, ranks, algorithm, at, &plain).ok()?.time_us;
            (modelled > 0.0 && us > 0.0).then(|| (at, (us / modelled).ln()))
        })
        .collect();
    ratios.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let Some(ln_ratio) = interpolate(&ratios, bytes) else {
        return;
    };
    let exact = ratios.iter().any(|(at, _)| *at == bytes);
    let band = if exact { BAND_MEASURED } else { BAND_CORRECTED };
    time.time_us *= ln_ratio.exp();
    time.low_us = time.time_us / band;
    time.high_us = time.time_us * band;
    time.basis = if exact {
        Basis::Measured
    } else {
        Basis::Corrected
    };
}

/// Linear in ln(size) between measured sizes, constant beyond them.
fn interpolate(ratios: &[(u64, f64)], bytes: u64) -> Option<f64> {
    let (first, last) = (ratios.first()?, ratios.last()?);
    if bytes <= first.0 {
        return Some(first.1);
    }
    if bytes >= last.0 {
        return Some(last.1);
    }
    let above = ratios.iter().position(|(at, _)| *at >= bytes)?;
    let (hi, lo) = (ratios[above], ratios[above.checked_sub(1)?]);
    if hi.0 == bytes || hi.0 == lo.0 {
        return Some(hi.1);
    }
    let ln = |b: u64| (b.max(1) as f64).ln();
    let share = (ln(bytes) - ln(lo.0)) / (ln(hi.0) - ln(lo.0));
    Some(lo.1 + (hi.1 - lo.1) * share)
}
