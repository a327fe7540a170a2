//! Which algorithm for which size.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::{Call, Communicator};
use crate::device::{DeviceBuffer, Event};
use crate::types::{Algorithm, DType};
use crate::{Error, Result};

/// One step of the table: `algorithm` for messages up to `up_to_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Largest message in bytes, inclusive.
    pub up_to_bytes: u64,
    /// What to use.
    pub algorithm: Algorithm,
}

/// A table from size to algorithm, the same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// Steps by growing size; the last one serves everything beyond.
    pub steps: Vec<Step>,
}

impl Selector {
    /// What to use before anything is measured: one-shot while a rank's traffic, (N-1) x size, is
    /// small, then two-shot; without peers host-staged, in tiles beyond 256 KiB.
    pub fn unmeasured(ranks: usize, peers: bool) -> Selector {
        let step = |up_to_bytes, algorithm| Step {
            up_to_bytes,
            algorithm,
        };
        let steps = if !peers {
            vec![
                step(512 << 10, Algorithm::HostStaged),
                step(u64::MAX, Algorithm::HostBulk),
            ]
        } else if ranks == 2 {
            vec![step(u64::MAX, Algorithm::OneShot)]
        } else {
            let crossover = (1 << 20) / ranks.max(1) as u64;
            vec![
                step(crossover, Algorithm::OneShot),
                step(u64::MAX, Algorithm::TwoShot),
            ]
        };
        Selector { steps }
    }

    /// The algorithm for `bytes`, or the next one that `can` run.
    pub(super) fn choose(&self, bytes: u64, can: impl Fn(Algorithm) -> bool) -> Result<Algorithm> {
        let named = self
            .steps
            .iter()
            .find(|s| bytes <= s.up_to_bytes)
            .or(self.steps.last());
        named
            .map(|s| s.algorithm)
            .into_iter()
            .chain([Algorithm::OneShot, Algorithm::HostStaged, Algorithm::Nccl])
            .find(|a| can(*a))
            .ok_or_else(|| Error::Invalid("no algorithm works on this communicator".into()))
    }

    /// As lines `bytes algorithm`, to be cached.
    pub fn to_text(&self) -> String {
        self.steps.iter().fold(String::new(), |mut text, step| {
            let _ = writeln!(text, "{} {}", step.up_to_bytes, step.algorithm.name());
            text
        })
    }

    /// From [`Selector::to_text`]; `None` where a line does not parse or nothing is left.
    pub fn from_text(text: &str) -> Option<Selector> {
        let steps: Option<Vec<Step>> = text
            .lines()
            .map(|line| {
                let (bytes, name) = line.split_once(' ')?;
                let algorithm = Algorithm::from_name(name.trim())?;
                Some(Step {
                    up_to_bytes: bytes.parse().ok()?,
                    algorithm,
                })
            })
            .collect();
        steps
            .filter(|s| !s.is_empty())
            .map(|steps| Selector { steps })
    }

    /// Merges neighbours that agree. `winners` are (bytes, fastest) by growing size.
    pub fn from_winners(winners: &[(u64, Algorithm)]) -> Option<Selector> {
        let mut steps: Vec<Step> = Vec::new();
        for (bytes, algorithm) in winners {
            match steps.last_mut() {
                Some(last) if last.algorithm == *algorithm => last.up_to_bytes = *bytes,
                _ => steps.push(Step {
                    up_to_bytes: *bytes,
                    algorithm: *algorithm,
                }),
            }
        }
        steps.last_mut()?.up_to_bytes = u64::MAX;
        Some(Selector { steps })
    }
}

const TUNE_BYTES: [u64; 11] = [
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
];

impl Communicator {
    /// Measures every algorithm this communicator can run, and takes the fastest at each size.
    ///
    /// All ranks must call it. The table is cached under the folder of compiled kernels by GPU,
    /// rank count and what can run; `again` measures even if a cached table is there.
    ///
    /// # Errors
    /// A peer is late or gone, or the driver's own error.
    pub fn tune(&mut self, again: bool) -> Result<()> {
        let path = self.selector_path();
        let cached = path
            .as_ref()
            .filter(|_| !again)
            .and_then(|p| std::fs::read_to_string(p).ok())
            .and_then(|text| Selector::from_text(&text));
        // All ranks measure unless all have the same table.
        let text = cached.as_ref().map_or(String::new(), Selector::to_text);
        let all = self.exchange(text.as_bytes())?;
        if let Some(cached) = cached.filter(|_| all.iter().all(|other| *other == all[0])) {
            self.set_selector(cached);
            return Ok(());
        }
        let winners = self.measure_winners()?;
        if let Some(selector) = Selector::from_winners(&winners) {
            if let Some(path) = path.filter(|_| self.rank() == 0) {
                let folder = path.parent().map(std::fs::create_dir_all);
                if folder.is_some_and(|made| made.is_ok()) {
                    let _ = std::fs::write(path, selector.to_text());
                }
            }
            self.set_selector(selector);
        }
        Ok(())
    }

    fn selector_path(&self) -> Option<PathBuf> {
        let runs: Vec<&str> = Algorithm::OWN
            .into_iter()
            .chain([Algorithm::Nccl])
            .filter(|a| self.can(*a))
            .map(Algorithm::name)
            .collect();
        let name = format!(
            "{}-{}-{}.table",
            self.device().name(),
            self.ranks(),
            runs.join("+")
        );
        crate::driver::nvrtc::cache_folder().map(|f| f.join(name.replace([' ', '/'], "-")))
    }

    fn measure_winners(&mut self) -> Result<Vec<(u64, Algorithm)>> {
        self.prepare(&[DType::Bf16])?;
        let largest = TUNE_BYTES[TUNE_BYTES.len() - 1] as usize;
        let buffer = DeviceBuffer::zeroed(self.stream(), largest)?;
        let mut winners = Vec::new();
        for bytes in TUNE_BYTES {
            let mut best: Option<(f64, Algorithm)> = None;
            for algorithm in Algorithm::OWN.into_iter().chain([Algorithm::Nccl]) {
                if !self.can(algorithm) {
                    continue;
                }
                let own_us = self.time_us(algorithm, &buffer, bytes as usize)?;
                let all = self.exchange(&own_us.to_le_bytes())?;
                let slowest_us = all
                    .iter()
                    .filter_map(|b| b.as_slice().try_into().ok().map(f64::from_le_bytes))
                    .fold(0.0, f64::max);
                if best.is_none_or(|(us, _)| slowest_us < us) {
                    best = Some((slowest_us, algorithm));
                }
            }
            winners.extend(best.map(|(_, algorithm)| (bytes, algorithm)));
        }
        Ok(winners)
    }

    /// Median time of one call inside a replayed graph, in microseconds.
    fn time_us(
        &mut self,
        algorithm: Algorithm,
        buffer: &DeviceBuffer,
        bytes: usize,
    ) -> Result<f64> {
        let calls = if bytes <= 1 << 20 { 20 } else { 4 };
        let stream = self.stream().clone();
        let call = Call::in_place(buffer, bytes / 2, DType::Bf16);
        self.all_reduce_with(algorithm, &call, None)?;
        self.synchronize()?;
        let graph = stream.capture(|_| {
            (0..calls).try_for_each(|_| self.all_reduce_with(algorithm, &call, None))
        })?;
        graph.upload(&stream)?;
        stream.synchronize()?;
        self.exchange(b"go")?;
        let (from, to) = (Event::new(stream.device())?, Event::new(stream.device())?);
        let mut times = Vec::new();
        for _ in 0..7 {
            from.record(&stream)?;
            graph.launch(&stream)?;
            to.record(&stream)?;
            self.synchronize()?;
            times.push(to.elapsed_us(&from)? / calls as f64);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_survives_its_text_and_merges_equal_neighbours() {
        let winners = [
            (4096, Algorithm::OneShot),
            (65536, Algorithm::OneShot),
            (1 << 20, Algorithm::TwoShot),
            (4 << 20, Algorithm::Nccl),
        ];
        let table = Selector::from_winners(&winners).unwrap();
        assert_eq!(table.steps.len(), 3);
        assert_eq!(Selector::from_text(&table.to_text()).as_ref(), Some(&table));
        assert_eq!(Selector::from_text("many one-shot"), None);
        assert_eq!(Selector::from_text(""), None);
        let pick = |bytes| table.choose(bytes, |_| true).unwrap();
        assert_eq!(pick(1), Algorithm::OneShot);
        assert_eq!(pick(65537), Algorithm::TwoShot);
        assert_eq!(pick(1 << 40), Algorithm::Nccl);
        let without = table
            .choose(1 << 40, |a| a == Algorithm::HostStaged)
            .unwrap();
        assert_eq!(without, Algorithm::HostStaged);
        assert!(table.choose(1, |_| false).is_err());
    }
}
