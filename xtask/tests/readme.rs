//! Every command shown in README.md and docs/ is run, and its output compared with what stands
//! there. `UPDATE_DOCS=1 cargo test -p xtask --test readme` writes the present output.
//!
//! A block is fenced as ```console; a line beginning with `$ cargo xtask` is run from the
//! workspace's root, the lines up to the next `$` are its output. A line that is only `…` stands
//! for any lines. A block that names a path not in the checkout (measured data) is skipped where
//! that path is absent, and says so. Blocks fenced ```text (runs on a GPU) are not run.

use std::path::{Path, PathBuf};
use std::process::Command;

struct Shown {
    file: PathBuf,
    line: usize,
    command: String,
    output: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

fn shown_in(file: &Path) -> Vec<Shown> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut found: Vec<Shown> = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            inside = !inside && line.trim_start().starts_with("```console");
            continue;
        }
        if !inside {
            continue;
        }
        if let Some(command) = line.strip_prefix("$ ") {
            found.push(Shown {
                file: file.to_path_buf(),
                line: index + 1,
                command: command.to_string(),
                output: Vec::new(),
            });
        } else if let Some(last) = found.last_mut() {
            last.output.push(line.trim_end().to_string());
        }
    }
    found
}

/// Splits a command as a shell would, as far as quotes go.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    for c in command.chars() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(q), c) if c == q => quote = None,
            (None, ' ') => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            _ => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

fn run(command: &str) -> Option<Vec<String>> {
    let words = words(command);
    let arguments = words.strip_prefix(&["cargo".to_string(), "xtask".to_string()])?;
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("the tool starts");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Some(text.lines().map(|l| l.trim_end().to_string()).collect())
}

/// Whether shown lines match real ones; `…` alone stands for any lines.
fn matches(shown: &[String], real: &[String]) -> bool {
    match shown.split_first() {
        None => real.is_empty(),
        Some((first, rest)) if first.trim() == "…" => {
            (0..=real.len()).any(|skip| matches(rest, &real[skip..]))
        }
        Some((first, rest)) => real
            .split_first()
            .is_some_and(|(line, more)| first == line && matches(rest, more)),
    }
}

/// The present output in the shape of what was shown: all of it, or, where `…` stood, for each line
/// shown the next real line that resembles it most.
fn refill(shown: &[String], real: &[String]) -> Vec<String> {
    if !shown.iter().any(|l| l.trim() == "…") {
        return real.to_vec();
    }
    let mut filled = Vec::new();
    let mut at = 0;
    let mut gap = false;
    for line in shown {
        if line.trim() == "…" {
            gap = true;
            filled.push(line.clone());
            continue;
        }
        let candidates = &real[at..];
        let offset = if gap {
            let best = candidates.iter().map(|r| likeness(line, r)).max();
            candidates
                .iter()
                .position(|r| Some(likeness(line, r)) == best)
        } else {
            (!candidates.is_empty()).then_some(0)
        };
        if let Some(offset) = offset {
            filled.push(candidates[offset].clone());
            at += offset + 1;
        }
        gap = false;
    }
    filled
}

/// Words that two lines share at their beginning, then words that they share anywhere.
fn likeness(a: &str, b: &str) -> (usize, usize) {
    let (a, b): (Vec<&str>, Vec<&str>) = (a.split(' ').collect(), b.split(' ').collect());
    let begin = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    (begin, a.iter().filter(|w| b.contains(w)).count())
}

#[test]
fn every_command_in_the_docs_prints_what_the_docs_say() {
    let update = std::env::var_os("UPDATE_DOCS").is_some();
    let mut wrong = Vec::new();
    let mut ran = 0;
    for page in pages() {
        let mut replacements = Vec::new();
        for shown in shown_in(&page) {
            let absent = words(&shown.command)
                .into_iter()
                .find(|w| w.starts_with("../") && !root().join(w).exists());
            if let Some(path) = absent {
                println!("skipped: `{}`: {path} is not here", shown.command);
                continue;
            }
            let Some(real) = run(&shown.command) else {
                continue;
            };
            ran += 1;
            if matches(&shown.output, &real) {
                continue;
            }
            let refilled = refill(&shown.output, &real);
            if update && matches(&refilled, &real) {
                replacements.push((shown.line, shown.output.len(), refilled));
            } else {
                wrong.push(format!(
                    "{}:{}: `{}` prints\n{}",
                    shown.file.display(),
                    shown.line,
                    shown.command,
                    real.join("\n")
                ));
            }
        }
        if !replacements.is_empty() {
            rewrite(&page, replacements);
        }
    }
    println!("{ran} commands of the docs were run");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn rewrite(page: &Path, mut replacements: Vec<(usize, usize, Vec<String>)>) {
    let text = std::fs::read_to_string(page).expect("the page was read before");
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    replacements.sort_by_key(|r| std::cmp::Reverse(r.0));
    for (line, length, real) in replacements {
        lines.splice(line..line + length, real);
    }
    std::fs::write(page, lines.join("\n") + "\n").expect("the page can be written");
}
