//! `simulate`: the links alone. Times by size and algorithm, the busiest link, the wiring with its
//! loads, and the questions people ask of a box: who slows whom, which GPUs belong together, where
//! one algorithm overtakes another.

mod groups;
mod json;
mod overtaking;
mod questions;
mod trace;
mod tree;

use std::process::ExitCode;

use pcie_sim::{Algorithm, Arch, Basis, CollectiveTime, Options, Topology};

use crate::cli::SimulateArgs;
use crate::input;
use crate::scenario::hardware::{self, BoxRequest, Hardware};
use crate::scenario::nccl::NcclSaid;
use crate::scenario::{Scenario, parse};
use crate::table;

/// The default scenario's box.
const DEFAULT_BOX: &str = "two-switch-8";

/// Everything the output is made from.
pub(crate) struct Answer {
    pub(crate) hardware: Hardware,
    pub(crate) topology: Topology,
    pub(crate) ranks: Vec<usize>,
    /// Groups that reduce at once.
    pub(crate) groups: Vec<Vec<usize>>,
    pub(crate) options: Options,
    pub(crate) sizes: Vec<u64>,
    pub(crate) algorithms: Vec<Algorithm>,
    /// By algorithm, then size; None where it cannot run.
    pub(crate) times: Vec<Vec<Option<CollectiveTime>>>,
    /// Why an algorithm cannot run here.
    pub(crate) refused: Vec<(Algorithm, String)>,
    /// Whether NCCL's level is that of a wiring which nobody showed.
    pub(crate) level_is_taken: bool,
    /// What was assumed of the box, with what settles it.
    pub(crate) assumptions: Vec<(String, String)>,
}

impl Answer {
    /// The fastest algorithm at a size, by index.
    pub(crate) fn fastest(&self, size: usize) -> Option<usize> {
        (0..self.algorithms.len())
            .filter_map(|a| Some((a, self.times[a][size].as_ref()?.time_us)))
            .min_by(|x, y| x.1.total_cmp(&y.1))
            .map(|(a, _)| a)
    }

    /// Index of the size that details are shown for: the verify of 4 tokens of the default
    /// scenario where it is asked for, else the middle one.
    pub(crate) fn detail(&self) -> usize {
        self.sizes
            .iter()
            .position(|b| *b == 57_344)
            .unwrap_or(self.sizes.len() / 2)
    }
}

/// Runs `cargo xtask simulate`.
pub(crate) fn run(args: &SimulateArgs) -> anyhow::Result<ExitCode> {
    let (card, wiring) = (args.gpu.as_deref(), args.box_name.as_deref());
    if let Some(list) = crate::scenario::lists::asked(None, card, wiring) {
        input::print(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    let answer = answer(args)?;
    if let Some(path) = &args.trace {
        trace::write(path, &answer)?;
    }
    let text = if args.json {
        serde_json::to_string_pretty(&json::of(&answer))? + "\n"
    } else {
        text(&answer, args.sources)
    };
    input::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn answer(args: &SimulateArgs) -> anyhow::Result<Answer> {
    let nothing_named = args.box_name.is_none() && args.gpu.is_none() && args.topology.is_none();
    let hardware = hardware::resolve(&BoxRequest {
        box_name: args
            .box_name
            .clone()
            .or_else(|| nothing_named.then(|| DEFAULT_BOX.to_string())),
        gpu: args.gpu.clone(),
        gpus: args.gpus,
        peers_by: None,
        gpus_by: None,
        topology: args.topology.clone(),
        nccl: NcclSaid::by_flags(&args.nccl),
    })?;
    let arch = Arch::parse(&hardware.gpu.arch).unwrap_or(Arch::AMPERE);
    let topology = Topology::from_spec(&hardware.wiring, arch)
        .map_err(|e| input::error(format!("box {}: {e}", hardware.wiring.name)))?;
    let ranks = ranks(args, &topology)?;
    let sizes = once(parse::byte_sizes("--bytes", &args.bytes)?);
    let all = args.algorithm.trim() == "all";
    let algorithms: Vec<Algorithm> = if all {
        Algorithm::SHOWN.to_vec()
    } else {
        args.algorithm
            .split(',')
            .map(|name| {
                name.parse()
                    .map_err(|e| input::error(format!("--algorithm {}: {e}", args.algorithm)))
            })
            .collect::<anyhow::Result<_>>()?
    };
    let algorithms = once(algorithms);
    let groups = groups::asked(args.groups.as_deref(), &ranks)?;
    let taken = hardware.is_usual() && args.nccl.p2p_level.is_none();
    let mut answer = build((hardware, taken), topology, ranks, sizes, algorithms, all)?;
    answer.groups = groups;
    Ok(answer)
}

/// A list without what stands in it twice.
fn once<T: PartialEq>(list: Vec<T>) -> Vec<T> {
    let mut kept: Vec<T> = Vec::with_capacity(list.len());
    for entry in list {
        if !kept.contains(&entry) {
            kept.push(entry);
        }
    }
    kept
}

/// The answer for a scenario's box at one payload: what `predict` draws and traces.
///
/// # Errors
/// A box that cannot be simulated.
pub(crate) fn of_scenario(scenario: &Scenario, bytes: u64) -> anyhow::Result<Answer> {
    let hardware = Hardware {
        gpu: scenario.gpu,
        wiring: scenario.wiring.clone(),
        source: String::new(),
        served: Vec::new(),
    };
    let arch = Arch::parse(&hardware.gpu.arch).unwrap_or(Arch::AMPERE);
    let topology = Topology::from_spec(&hardware.wiring, arch)
        .map_err(|e| input::error(format!("box {}: {e}", hardware.wiring.name)))?;
    build(
        (hardware, false),
        topology,
        scenario.ranks.clone(),
        vec![bytes.max(1)],
        Algorithm::SHOWN.to_vec(),
        true,
    )
}

/// The wiring with its loads.
pub(crate) fn drawing(answer: &Answer) -> String {
    tree::text(answer)
}

/// Writes a trace for ui.perfetto.dev.
pub(crate) fn write_trace(path: &std::path::Path, answer: &Answer) -> anyhow::Result<()> {
    trace::write(path, answer)
}

fn build(
    (hardware, level_is_taken): (Hardware, bool),
    topology: Topology,
    ranks: Vec<usize>,
    sizes: Vec<u64>,
    algorithms: Vec<Algorithm>,
    all: bool,
) -> anyhow::Result<Answer> {
    let options = Options::default();
    let mut times = Vec::new();
    let mut refused = Vec::new();
    for &algorithm in &algorithms {
        let mut row = Vec::new();
        for &bytes in &sizes {
            match pcie_sim::all_reduce(&topology, &ranks, algorithm, bytes, &options) {
                Ok(time) => row.push(Some(time)),
                Err(why) => {
                    if !all || algorithm == Algorithm::Nccl {
                        let name = algorithm.name();
                        return Err(input::error(format!("--algorithm {name}: {why}")));
                    }
                    if !refused.iter().any(|(a, _)| *a == algorithm) {
                        refused.push((algorithm, why.to_string()));
                    }
                    row.push(None);
                }
            }
        }
        times.push(row);
    }
    let mut answer = Answer {
        hardware,
        level_is_taken,
        assumptions: topology.assumptions.clone(),
        topology,
        ranks,
        groups: Vec::new(),
        options,
        sizes,
        algorithms,
        times,
        refused,
    };
    let of_cpu = questions::cpu_assumed(&answer);
    let of_nccl = questions::nccl_assumed(&answer);
    answer.assumptions.extend(of_cpu.into_iter().chain(of_nccl));
    Ok(answer)
}

/// GPUs that take part: those named, else all that are simulated at most.
fn ranks(args: &SimulateArgs, topology: &Topology) -> anyhow::Result<Vec<usize>> {
    let have = topology.gpu_count();
    let ranks = match &args.ranks {
        Some(text) => parse::gpu_list("--ranks", text)?,
        None => {
            let wanted = args.gpus.map_or(have, |g| (g as usize).min(have));
            (0..wanted).collect()
        }
    };
    if let Some(bad) = ranks.iter().find(|r| **r >= have) {
        return Err(input::error(format!(
            "--ranks: GPU {bad} is not in the box, which has {have} (numbered from 0)"
        )));
    }
    if ranks.is_empty() || ranks.len() > pcie_sim::topology::GPUS_MAX {
        return Err(input::error(format!(
            "{} GPUs take part: 1 to {} are simulated; choose some by --ranks 0,1,…",
            ranks.len(),
            pcie_sim::topology::GPUS_MAX
        )));
    }
    Ok(ranks)
}

fn text(answer: &Answer, sources: bool) -> String {
    let t = &answer.topology;
    let mut out = format!(
        "{}: {} x {}, {} take{} part, {}\n\n",
        t.name,
        t.gpu_count(),
        answer.hardware.gpu.name,
        answer.ranks.len(),
        if answer.ranks.len() == 1 { "s" } else { "" },
        state(t)
    );
    if answer.ranks.len() < 2 {
        out.push_str("one GPU takes part: there is nothing to reduce (--gpus N, --ranks 0,1,…)\n");
        return out;
    }
    out.push_str("all-reduce, us                (payload of one rank)\n");
    out.push_str(&table::text(&times_table(answer), 2));
    out.push('\n');
    out.push_str(&details(answer));
    out.push_str(&tree::text(answer));
    out.push_str(&questions::text(answer));
    for alike in answer.refused.chunk_by(|a, b| a.1 == b.1) {
        let names: Vec<&str> = alike
            .iter()
            .map(|(algorithm, _)| algorithm.name())
            .collect();
        let why = alike.first().map_or("", |(_, why)| why.as_str());
        out.push_str(&format!("not here    {}: {why}\n", names.join(", ")));
    }
    for (what, settles) in &answer.assumptions {
        out.push_str(&format!("assumed     {what} (settled by: {settles})\n"));
    }
    if sources {
        out.push_str(&format!("source      wiring: {}\n", answer.hardware.source));
        if let Some(source) = &answer.hardware.wiring.source {
            out.push_str(&format!("source      box: {source}\n"));
        }
        out.push_str("source      constants: pcie-sim/src/constants.rs, nccl.rs, tlp.rs; how fitted and how well: docs/pcie-sim.md\n");
    }
    out
}

fn state(t: &Topology) -> &'static str {
    use pcie_sim::box_spec::{FabricState, P2p};
    match (t.state, t.p2p) {
        (_, P2p::Off) => "no peer access over PCIe",
        (FabricState::Healthy, _) => "fabric taken as healthy",
        (FabricState::Collapsed, _) => "fabric collapses under all-to-all load",
        (FabricState::Staged, _) => "peer access is staged",
        (FabricState::AcsRedirect, _) => "ACS sends peer traffic to the root",
    }
}

fn times_table(answer: &Answer) -> comfy_table::Table {
    let mut header = vec!["bytes"];
    let shown: Vec<usize> = (0..answer.algorithms.len())
        .filter(|a| answer.times[*a].iter().any(Option::is_some))
        .collect();
    header.extend(shown.iter().map(|a| answer.algorithms[*a].name()));
    header.extend(["NCCL takes", "fastest"]);
    let mut table = table::plain(&header, &[header.len() - 2, header.len() - 1]);
    for (s, bytes) in answer.sizes.iter().enumerate() {
        let mut row = vec![table::bytes(*bytes)];
        row.extend(
            shown
                .iter()
                .map(|a| answer.times[*a][s].as_ref().map_or("-".to_string(), cell)),
        );
        let nccl = pcie_sim::all_reduce(
            &answer.topology,
            &answer.ranks,
            Algorithm::Nccl,
            *bytes,
            &answer.options,
        );
        row.push(nccl.map_or("-".to_string(), |n| {
            pcie_sim::nccl_choice(&n.algorithm_name)
                .unwrap_or(&n.algorithm_name)
                .to_string()
        }));
        let fastest = answer.fastest(s).map(|a| answer.algorithms[a].name());
        row.push(fastest.unwrap_or("-").to_string());
        table.add_row(row);
    }
    table
}

/// A time; `*` where it was measured at this size, `+` where measured figures correct it.
fn cell(time: &CollectiveTime) -> String {
    let mark = match time.basis {
        Basis::Modelled => "",
        Basis::Corrected => "+",
        Basis::Measured => "*",
    };
    format!("{}{mark}", table::three(time.time_us))
}

fn details(answer: &Answer) -> String {
    let at = answer.detail();
    let mut out = format!("at {}\n", table::bytes(answer.sizes[at]));
    let mut table = table::plain(
        &["algorithm", "us", "90 %", "busiest", "busy", "", "kernel"],
        &[0, 3, 5, 6],
    );
    for (row, algorithm) in answer.times.iter().zip(&answer.algorithms) {
        let Some(time) = &row[at] else { continue };
        // The engines' kernel left to NCCL is NCCL's row again.
        if *algorithm == Algorithm::Engine && pcie_sim::is_nccl_plan(&time.algorithm_name) {
            continue;
        }
        let basis = match time.basis {
            Basis::Modelled => "modelled",
            Basis::Corrected => "modelled, corrected by measured sizes",
            Basis::Measured => "measured on this box",
        };
        table.add_row(vec![
            time.algorithm_name.clone(),
            table::three(time.time_us),
            format!(
                "{}-{}",
                table::three(time.low_us),
                table::three(time.high_us)
            ),
            time.link_busiest.clone().unwrap_or_else(|| "-".to_string()),
            format!("{:.0} %", time.link_busy_fraction * 100.0),
            basis.to_string(),
            crate::predict::made_by(*algorithm, time, &answer.topology, &answer.ranks).to_string(),
        ]);
    }
    out.push_str(&table::text(&table, 2));
    let mut notes: Vec<&String> = answer
        .times
        .iter()
        .filter_map(|row| row[at].as_ref())
        .flat_map(|time| time.notes.iter())
        .collect();
    notes.dedup();
    for note in notes {
        out.push_str(&format!("  note: {note}\n"));
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    pub(super) fn answered(flags: &[&str]) -> anyhow::Result<Answer> {
        let line = ["xtask", "simulate"].iter().chain(flags);
        let cli = crate::cli::Cli::try_parse_from(line)?;
        match &cli.command {
            crate::cli::Command::Simulate(args) => answer(args),
            _ => anyhow::bail!("not simulate"),
        }
    }

    #[test]
    fn the_default_box_shows_the_collapse_and_what_to_do() {
        let a = answered(&[]).expect("answers");
        let shown = text(&a, true);
        for line in [
            "fabric collapses under all-to-all load",
            "collapsed fabric",
            "NCCL_GRAPH_FILE",
            "placement   half of the GPUs as one group, by the engine's own choice, 56 KiB: best [0, 1, 2, 3]",
            "sw0 pex890xx",
            "assumed",
        ] {
            assert!(shown.contains(line), "{line} not in\n{shown}");
        }
    }

    #[test]
    fn json_keeps_the_keys_of_the_contract() {
        let a = answered(&["--bytes", "57344", "--algorithm", "nccl,one-shot"]).expect("answers");
        let value = json::of(&a);
        assert_eq!(value["box"], "two-switch-8");
        let results = value["results"].as_array().expect("results");
        assert_eq!(results.len(), 2);
        for key in [
            "algorithm",
            "ranks",
            "bytes",
            "time_us",
            "link_busiest",
            "link_busy_fraction",
        ] {
            assert!(results.iter().all(|r| !r[key].is_null()), "{key}");
        }
    }

    #[test]
    fn faults_of_the_input_are_one_line_each() {
        for flags in [
            &["--ranks", "0,9"][..],
            &["--ranks", "0,0"],
            &["--bytes", "0"],
            &["--algorithm", "fastest"],
            &["--box", "no-such-box"],
            &["--box", "2x-rtx-4090", "--algorithm", "one-shot"],
        ] {
            let error = answered(flags).err().expect("refused");
            assert!(error.is::<input::InputError>(), "{flags:?}");
            assert!(!error.to_string().contains('\n'), "{flags:?}");
        }
    }

    const BRIDGED: &[&str] = &["--box", "4x-rtx-3090-nvlink", "--bytes", "8k,32k"];

    fn bridged(more: &[&str]) -> Answer {
        answered(&[BRIDGED, more].concat()).expect("answers")
    }

    #[test]
    fn times_of_unlike_kernels_are_labelled_with_whose_kernel_and_which_algorithm() {
        let shown = text(&bridged(&["--ranks", "0,2"]), false);
        for label in ["NCCL", "vLLM, SGLang", "lean: p2pmark", "ours (allreduce)"] {
            assert!(shown.contains(label), "{label} not in\n{shown}");
        }
        let shown = text(&bridged(&[]), false);
        let line = |start: &str| {
            let found = shown.lines().find(|l| l.starts_with(start));
            found.unwrap_or_default().to_string()
        };
        assert!(line("groups").contains("NCCL, 32 KiB"), "{shown}");
        assert!(
            line("placement").contains("best [0, 2]")
                && line("placement").contains("(engine-one-shot)"),
            "{shown}"
        );
    }

    #[test]
    fn without_peer_access_the_refusal_names_the_bridges_and_the_remedy() {
        let a = bridged(&[]);
        for algorithm in [Algorithm::OneShot, Algorithm::Island] {
            let why = a.refused.iter().find(|(r, _)| *r == algorithm);
            let why = why.map_or("", |(_, why)| why.as_str());
            for part in [
                "0 and 1 have none",
                "[0, 2] and [1, 3]",
                "use nccl",
                "a group inside [0, 2]",
            ] {
                assert!(why.contains(part), "{part} not in {why}");
            }
        }
    }
}
