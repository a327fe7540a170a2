//! Probes of the links: what stores, loads, copies and flags cost, alone and all at once, checked
//! by the GPU that should have received the data.
//!
//! A broken link can hang a driver call for good, so [`supervised`] runs each part in a child
//! process with a deadline; [`Part::run`] is what the child does, and [`Figure`] is a line of its
//! output.

mod flows;

use std::fmt;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// One measured figure. Its text form is one line: `probe WHAT FROM TO VALUE WRONG`.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What was measured: see [`Part`].
    pub what: String,
    /// The GPU that works, or `all`.
    pub from: String,
    /// The GPU or `host` at the other end, or `all`.
    pub to: String,
    /// GB/s (1e9 bytes, total over all flows) or microseconds, by `what`'s ending.
    pub value: f64,
    /// 16-byte units that the receiving GPU found wrong.
    pub wrong: u64,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "probe {} {} {} {:.4} {}",
            self.what, self.from, self.to, self.value, self.wrong
        )
    }
}

impl Figure {
    /// Reads a line of a child's output; `None` for other lines.
    pub fn parse(line: &str) -> Option<Figure> {
        let mut words = line.split_whitespace();
        if words.next() != Some("probe") {
            return None;
        }
        let figure = Figure {
            what: words.next()?.into(),
            from: words.next()?.into(),
            to: words.next()?.into(),
            value: words.next()?.parse().ok()?,
            wrong: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(figure)
    }
}

/// One part of the probe: what one child process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// `empty_kernel_us`: a kernel that does nothing, as one node of a replayed graph.
    Floor,
    /// `flag_us`, `load_us`: one way of a flag between two GPUs, and one remote load.
    Latency,
    /// `store_gb_s`, `load_gb_s`, `copy_gb_s`: each pair of GPUs alone.
    Pairs,
    /// `all_store_gb_s`, `all_load_gb_s`, `all_copy_gb_s`: every pair at once, summed.
    AllPairs,
    /// `h2d_gb_s`, `d2h_gb_s`, `bidir_gb_s` by copy engine, each GPU alone and all at once; and
    /// `host_store_gb_s`, `host_load_gb_s`, `host_kernels_both_gb_s` by kernels: stores, loads, and
    /// both at once.
    Host,
    /// `host_flag_us`: one way of a flag through host memory, between two GPUs or two kernels of one.
    HostLatency,
}

impl Part {
    /// All parts, the cheap ones first.
    pub const ALL: [Part; 6] = [
        Part::Floor,
        Part::Latency,
        Part::Pairs,
        Part::AllPairs,
        Part::Host,
        Part::HostLatency,
    ];

    /// The name a child is told.
    pub fn name(self) -> &'static str {
        match self {
            Part::Floor => "floor",
            Part::Latency => "latency",
            Part::Pairs => "pairs",
            Part::AllPairs => "all-pairs",
            Part::Host => "host",
            Part::HostLatency => "host-latency",
        }
    }

    /// The part of that name.
    pub fn from_name(name: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|p| p.name() == name)
    }

    /// Measures in this process, on all visible GPUs.
    ///
    /// # Errors
    /// No driver or compiler, or the driver's own error. Pairs without peer access are left out.
    pub fn run(self) -> Result<Vec<Figure>> {
        flows::run(self)
    }
}

/// How a box behaves, in the words of pcie-sim's box file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Peer access works at the same rate when all pairs are busy.
    Healthy,
    /// All pairs at once fall below half of what pairs reach alone.
    Collapsed,
    /// Kernel loads are far slower than copies: the driver stages through a mailbox.
    Staged,
    /// The bandwidth is there but the data does not arrive.
    Mirror,
    /// No peer access.
    NoP2p,
    /// A probe did not end in time, or failed.
    Hangs,
}

impl State {
    /// The word in the box file.
    pub fn name(self) -> &'static str {
        match self {
            State::Healthy => "healthy",
            State::Collapsed => "collapsed",
            State::Staged => "staged",
            State::Mirror => "mirror",
            State::NoP2p => "no-p2p",
            State::Hangs => "hangs",
        }
    }

    /// What the figures say about `gpus` GPUs.
    pub fn judge(figures: &[Figure], gpus: usize) -> State {
        let count = |what: &str| figures.iter().filter(|f| f.what == what).count();
        let least = |what: &str| {
            let values = figures.iter().filter(|f| f.what == what).map(|f| f.value);
            values.fold(f64::INFINITY, f64::min)
        };
        let peer = ["store_gb_s", "load_gb_s", "copy_gb_s"];
        if figures.iter().any(|f| f.wrong > 0) {
            return State::Mirror;
        }
        if gpus > 1 && peer.iter().all(|what| count(what) < gpus * (gpus - 1)) {
            return State::NoP2p;
        }
        // A mailbox makes kernel loads about fifteen times slower than copies; a quarter is far
        // from both that and the 0.8 of a direct path.
        if least("load_gb_s") < least("copy_gb_s") / 4.0 {
            return State::Staged;
        }
        for (all, alone) in [
            ("all_store_gb_s", "store_gb_s"),
            ("all_load_gb_s", "load_gb_s"),
        ] {
            let each = least(all) / gpus as f64;
            if each.is_finite() && each < least(alone) / 2.0 {
                return State::Collapsed;
            }
        }
        State::Healthy
    }
}

/// Runs `command`, which must do [`Part::run`] and print the figures, and ends it at `deadline`.
///
/// # Errors
/// It cannot be started, does not end in time, or ends with an error.
pub fn supervised(mut command: Command, deadline: Duration) -> Result<Vec<Figure>> {
    let what = || format!("probe {:?}", command.get_program());
    let name = what();
    let io = |e: &std::io::Error| Error::io(name.clone(), e);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| io(&e))?;
    let pipe = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        pipe.map(|mut pipe| pipe.read_to_string(&mut text));
        text
    });
    let until = Instant::now() + deadline;
    let status = loop {
        match child.try_wait().map_err(|e| io(&e))? {
            Some(status) => break status,
            None if Instant::now() > until => {
                let _ = child.kill();
                // A process stuck in the driver may never be reaped: do not wait for it.
                let why = format!("no answer in {:.0} s", deadline.as_secs_f64());
                return Err(Error::Io { what: name, why });
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let text = reader.join().unwrap_or_default();
    if !status.success() {
        return Err(Error::Io {
            what: name,
            why: format!("ended with {status}"),
        });
    }
    Ok(text.lines().filter_map(Figure::parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rows: &[(&str, f64)]) -> Vec<Figure> {
        let figure = |what: &str, from: &str, to: &str, value| Figure {
            what: what.into(),
            from: from.into(),
            to: to.into(),
            value,
            wrong: 0,
        };
        rows.iter()
            .flat_map(|(what, value)| match what.starts_with("all") {
                true => vec![figure(what, "all", "all", *value)],
                false => vec![
                    figure(what, "0", "1", *value),
                    figure(what, "1", "0", *value),
                ],
            })
            .collect()
    }

    #[test]
    fn states_are_told_apart() {
        let healthy = [
            ("store_gb_s", 45.0),
            ("load_gb_s", 43.0),
            ("copy_gb_s", 54.0),
            ("all_store_gb_s", 88.0),
            ("all_load_gb_s", 80.0),
        ];
        assert_eq!(State::judge(&figures(&healthy), 2), State::Healthy);
        let mut collapsed = healthy;
        collapsed[3].1 = 2.7;
        assert_eq!(State::judge(&figures(&collapsed), 2), State::Collapsed);
        let mut staged = healthy;
        staged[1].1 = 3.0;
        assert_eq!(State::judge(&figures(&staged), 2), State::Staged);
        let mut mirror = figures(&healthy);
        mirror[0].wrong = 9;
        assert_eq!(State::judge(&mirror, 2), State::Mirror);
        assert_eq!(State::judge(&[], 2), State::NoP2p);
        assert_eq!(State::judge(&[], 1), State::Healthy);
    }

    #[test]
    fn a_figure_survives_its_line_and_other_lines_are_skipped() {
        let figure = figures(&[("store_gb_s", 45.25)]).remove(0);
        assert_eq!(Figure::parse(&figure.to_string()), Some(figure));
        assert_eq!(Figure::parse("probe x 0 1 many 0"), None);
        assert_eq!(Figure::parse("warning: something"), None);
    }

    #[test]
    fn a_child_that_hangs_is_ended_at_the_deadline() {
        let mut command = Command::new("sleep");
        command.arg("20");
        let began = Instant::now();
        let error = supervised(command, Duration::from_millis(100)).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(5), "{error}");
    }

    #[test]
    fn a_childs_figures_are_read() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo hello; echo probe flag_us 0 1 0.75 0"]);
        let figures = supervised(command, Duration::from_secs(10)).unwrap();
        assert_eq!(figures.len(), 1);
        assert_eq!(figures[0].value, 0.75);
    }
}
