//! SGLang's automatic `--mem-fraction-static`, four generations (server_args.py of each, memory_hook.py
//! from 0.5.19 to 0.5.23).

use super::prefill;
use crate::engine::Version;
use crate::model::Model;
use crate::setup::{Setup, SpecKind};

/// Generations of the automatic fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Generation {
    /// Early 2024: 0.9.
    Zero,
    /// Mid 2024 to May 2025: by tp alone.
    A,
    /// May to September 2025: a fixed reserve by capacity.
    B,
    /// From autumn 2025: a reserve from chunk and graph sizes, to mid 2026 plus a flat share for
    /// speculation.
    C,
}

pub(crate) fn generation(version: Version) -> Generation {
    if version.since((0, 5, 3), (2025, 10)) {
        Generation::C
    } else if version.since((0, 4, 7), (2025, 6)) {
        Generation::B
    } else if version.since((0, 2, 0), (2024, 6)) {
        Generation::A
    } else {
        Generation::Zero
    }
}

/// Default chunked prefill size and largest captured batch by capacity (generation C). Those of
/// 20 to 35 GiB grew in 0.5.20.
fn tier(setup: &Setup<'_>) -> (f64, f64) {
    let wide = setup.sharding.tp >= 4;
    let newest = setup.engine.version.since((0, 5, 20), (2026, 10));
    let pick = |narrow: f64, wide_value: f64| if wide { wide_value } else { narrow };
    match setup.card_gib {
        m if m < 20.0 => (2048.0, 8.0),
        m if m < 35.0 && newest => (4096.0, pick(48.0, 160.0)),
        m if m < 35.0 => (2048.0, pick(24.0, 80.0)),
        m if m < 60.0 => (4096.0, pick(32.0, 160.0)),
        m if m < 160.0 => (8192.0, pick(256.0, 512.0)),
        _ => (16384.0, 512.0),
    }
}

pub(super) fn chunk_and_batch(setup: &Setup<'_>) -> (f64, f64) {
    let (chunk, mut batch) = tier(setup);
    // Since 0.5.22 none is captured that the server is told not to run.
    let told = setup.max_running.map_or(f64::INFINITY, |n| n as f64);
    if setup.engine.version.since((0, 5, 22), (2026, 11)) {
        batch = batch.min(told);
    }
    (
        setup.batched_tokens.map_or(chunk, |tokens| tokens as f64),
        setup.graph_max_batch.map_or(batch, |batch| batch as f64),
    )
}

/// Reserve in MiB of generation C.
fn reserve_mib(setup: &Setup<'_>) -> f64 {
    let version = setup.engine.version;
    let (chunk, batch) = chunk_and_batch(setup);
    let ranks = setup.ranks() as f64;
    let dp = setup.sharding.dp_attention as f64;
    let mut reserve = 512.0 + 1.5 * chunk.max(2048.0) + 2.0 * batch + ranks / 8.0 * 1024.0;
    if dp > 1.0 {
        reserve += 3.0 * batch * dp;
        if batch > 300.0 {
            reserve += 1.5 * batch * dp;
        }
    }
    reserve += prefill::reserve_mib(setup, chunk);
    if setup.card_gib > 60.0 {
        reserve = reserve.max(10240.0);
    }
    // The floor comes before the share of speculation, which is measured since 0.5.14.
    match setup.speculation.map(|spec| spec.kind) {
        _ if version.since((0, 5, 14), (2026, 7)) => {}
        Some(SpecKind::Standalone) => reserve += 6144.0,
        Some(SpecKind::Ngram) | None => {}
        Some(_) if version.since((0, 5, 10), (2026, 4)) => reserve += 4096.0,
        Some(_) => reserve += 2048.0,
    }
    reserve
}

/// The vision factor: the default fraction shrinks with the size of the vision tower.
fn vision_factor(model: &Model) -> f64 {
    let Some(vision) = model.vision else {
        return 1.0;
    };
    let hidden = vision.hidden as f64;
    // Relative to a CLIP ViT-L: 24 layers, width 1024.
    let size = vision.layers as f64 * hidden * hidden / (24.0 * 1024.0 * 1024.0);
    0.95 * (1.0 - 0.1 * (size - 1.0)).clamp(0.8, 1.05)
}

/// The fraction this version takes by itself.
pub(crate) fn automatic_fraction(setup: &Setup<'_>) -> f64 {
    let tp = setup.sharding.tp;
    let mib = setup.card_gib * 1024.0;
    let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
    let fraction = match generation(setup.engine.version) {
        Generation::Zero => 0.9,
        Generation::A => match tp {
            16.. => 0.79,
            8.. => 0.81,
            4.. => 0.85,
            2.. => 0.87,
            _ => 0.88,
        },
        Generation::B => {
            let ranks = setup.ranks() as f64;
            let mut reserve = match setup.card_gib {
                m if m < 35.0 => 2.8 + ranks / 10.0,
                m if m < 90.0 => 9.5 + ranks / 2.0,
                m if m < 160.0 => 12.0 + ranks / 2.0,
                _ => 32.0,
            };
            match setup.speculation.map(|spec| spec.kind) {
                Some(SpecKind::Standalone) => reserve += 6.0,
                Some(SpecKind::Ngram) | None => {}
                Some(_) => reserve += 2.0,
            }
            if setup.sharding.dp_attention > 1 {
                reserve += 4.0;
            }
            rounded((setup.card_gib - reserve) / setup.card_gib)
        }
        Generation::C => rounded((mib - reserve_mib(setup)) / mib),
    };
    (fraction * vision_factor(setup.model)).clamp(0.0, 1.0)
}
