//! Side by side with SimGrid on the same flow sets: end times within 1 %, and how many times
//! faster. Needs `g++` and libsimgrid-dev (Debian); says so and ends well where they are absent.
//!
//! `cargo bench -p pcie-sim --bench simgrid`

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use pcie_sim::sim::{simulate, us_from_ps};

#[path = "../collectives/flow_sets.rs"]
mod flow_sets;

use flow_sets::FlowSet;

fn main() {
    let folder = std::env::temp_dir().join(format!("pcie-sim-simgrid-{}", std::process::id()));
    let program = match build(&folder) {
        Ok(program) => program,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    println!(
        "flow set                        ours       SimGrid    ratio   largest difference of an end"
    );
    let mut held = true;
    held &= compare(
        "56 flows, 8 GPUs",
        &flow_sets::all_pairs_8(),
        &program,
        &folder,
    );
    let tree = flow_sets::fat_tree(10_000);
    held &= compare("10,000 flows, 1,000 links", &tree, &program, &folder);
    // Best effort: a temporary folder that stays is no fault of the figures.
    let _ = std::fs::remove_dir_all(&folder);
    assert!(held, "end times differ by more than 1 %");
}

fn build(folder: &Path) -> Result<PathBuf, String> {
    std::fs::create_dir_all(folder).map_err(|e| e.to_string())?;
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/simgrid/flows.cpp");
    let program = folder.join("flows");
    let output = Command::new("g++")
        .args(["-O2", "-std=c++17", source, "-lsimgrid", "-o"])
        .arg(&program)
        .output()
        .map_err(|e| format!("g++ cannot be run ({e})"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let first = text.lines().find(|l| l.contains("error")).unwrap_or("");
        return Err(format!(
            "no SimGrid here (apt-get install libsimgrid-dev): {first}"
        ));
    }
    Ok(program)
}

/// Prints one line; true when all end times are within 1 %.
fn compare(name: &str, set: &FlowSet, program: &Path, folder: &Path) -> bool {
    let tasks = set.tasks();
    // The fastest of both sides: other work on the machine only adds.
    let begun = Instant::now();
    let mut ours = simulate(&set.capacities_gb_s, &tasks);
    let mut fastest = begun.elapsed().as_secs_f64();
    while begun.elapsed().as_secs_f64() < 0.5 {
        let start = Instant::now();
        ours = simulate(&set.capacities_gb_s, &tasks);
        fastest = fastest.min(start.elapsed().as_secs_f64());
    }
    let file = folder.join("flows.txt");
    std::fs::write(&file, set.text()).expect("temporary file");
    let (mut wall, mut ends) = (f64::INFINITY, Vec::new());
    let repeats = if set.flows.len() > 1_000 { 1 } else { 20 };
    for _ in 0..repeats {
        let output = Command::new(program).arg(&file).output().expect("runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines = text.lines();
        let first = lines.next().and_then(|l| l.strip_prefix("wall "));
        wall = wall.min(first.and_then(|w| w.parse().ok()).unwrap_or(f64::INFINITY));
        ends = lines.filter_map(|l| l.parse::<f64>().ok()).collect();
    }
    let worst = ours
        .spans
        .iter()
        .zip(&ends)
        .map(|(span, end)| (us_from_ps(span.end_ps) / 1e6 / end - 1.0).abs())
        .fold(0.0, f64::max);
    println!(
        "{name:<28} {:>10.6} s {:>10.6} s {:>7.1}x   {:.4} %",
        fastest,
        wall,
        wall / fastest,
        worst * 100.0
    );
    ends.len() == tasks.len() && worst < 0.01
}
