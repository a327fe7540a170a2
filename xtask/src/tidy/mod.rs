//! `tidy`: the project's own rules, as a command and as a test.
//!
//! What a compiler lint can say is left to the compiler (docs on public items, warnings); this
//! checks what it cannot: sizes, panics on input paths, where I/O and `unsafe` may stand, which
//! crate may depend on which, and what the top folder holds.

mod rust_file;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rust_file::RustFile;

/// Longest file, in lines.
const FILE_LINES_MAX: usize = 500;
/// Longest function, in lines, signature and closing brace included.
const FUNCTION_LINES_MAX: usize = 70;
/// The four libraries, none of which may depend on another.
const LIBRARIES: [&str; 4] = ["kvplan", "pcie-sim", "spec-decode", "allreduce"];
/// What the top folder may hold beside what tools insist on.
const TOP: [&str; 17] = [
    "Cargo.toml",
    "Cargo.lock",
    "README.md",
    "docs",
    ".cargo",
    ".ci",
    ".git",
    ".gitignore",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "deny.toml",
    "target",
    "kvplan",
    "pcie-sim",
    "spec-decode",
    "allreduce",
    "xtask",
];
/// The only places that may hold `unsafe`: calls into CUDA libraries, and kernel launches.
const UNSAFE_FILES: [&str; 2] = ["allreduce/src/driver/", "allreduce/src/launch.rs"];

/// Runs `cargo xtask tidy` on the checkout that holds this source.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let root = workspace_root();
    if !root.join("Cargo.toml").is_file() {
        return Err(crate::input::error(format!(
            "{}: the source checkout is gone; tidy checks the project's own sources",
            root.display()
        )));
    }
    let problems = check(&root);
    for problem in &problems {
        println!("{problem}");
    }
    if problems.is_empty() {
        println!("tidy: nothing to mend");
        Ok(ExitCode::SUCCESS)
    } else {
        println!("tidy: {} to mend", problems.len());
        Ok(ExitCode::from(2))
    }
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Every breach of the rules under `root`, one line each: `file:line: what`.
fn check(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    check_top(root, &mut problems);
    check_dependencies(root, &mut problems);
    for krate in LIBRARIES.iter().chain(&["xtask"]) {
        for path in files_under(&root.join(krate)) {
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            let shown = path
                .strip_prefix(root)
                .unwrap_or(&path)
                .to_string_lossy()
                .replace('\\', "/");
            check_source(krate, &shown, &text, &mut problems);
        }
    }
    problems.sort();
    problems
}

fn check_top(root: &Path, problems: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(root) else {
        problems.push(format!("{}: cannot be listed", root.display()));
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !TOP.contains(&name.as_str()) {
            problems.push(format!("{name}: does not belong in the top folder"));
        }
    }
}

/// Libraries depend on no crate of the workspace and not on anyhow or clap.
fn check_dependencies(root: &Path, problems: &mut Vec<String>) {
    for krate in LIBRARIES {
        let path = root.join(krate).join("Cargo.toml");
        let manifest = fs::read_to_string(&path)
            .ok()
            .and_then(|text| text.parse::<toml::Table>().ok());
        let Some(manifest) = manifest else {
            problems.push(format!("{krate}/Cargo.toml: cannot be read"));
            continue;
        };
        for table in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let Some(deps) = manifest.get(table).and_then(toml::Value::as_table) else {
                continue;
            };
            for name in deps.keys() {
                let sibling = LIBRARIES.contains(&name.as_str()) || name == "xtask";
                if sibling || ["anyhow", "clap"].contains(&name.as_str()) {
                    problems.push(format!(
                        "{krate}/Cargo.toml: {table} has {name}; libraries stand alone"
                    ));
                }
            }
        }
    }
}

fn check_source(krate: &str, shown: &str, text: &str, problems: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        problems.push(format!(
            "{shown}: {lines} lines, more than {FILE_LINES_MAX}"
        ));
    }
    if !shown.ends_with(".rs") {
        return;
    }
    if !text.starts_with("//!") && !text.starts_with("#!") {
        problems.push(format!(
            "{shown}:1: begins without a //! line on what it is"
        ));
    }
    let file = RustFile::parse(text);
    for function in &file.functions {
        if function.lines > FUNCTION_LINES_MAX {
            problems.push(format!(
                "{shown}:{}: fn {} has {} lines, more than {FUNCTION_LINES_MAX}",
                function.line, function.name, function.lines
            ));
        }
    }
    // Tests, benches and examples may panic and print; binaries of a crate may print.
    let production = shown.starts_with(&format!("{krate}/src/")) && !shown.contains("/tests");
    if !production {
        return;
    }
    let binary = shown.contains("/bin/");
    for (line, code) in file.production_lines() {
        check_line(krate, shown, line, code, binary, problems);
    }
}

fn check_line(
    krate: &str,
    shown: &str,
    line: usize,
    code: &str,
    binary: bool,
    problems: &mut Vec<String>,
) {
    const PANICS: [&str; 6] = [
        ".unwrap()",
        ".expect(",
        "panic!(",
        "todo!(",
        "unimplemented!(",
        "dbg!(",
    ];
    const IO: [&str; 6] = [
        "println!(",
        "eprintln!(",
        "print!(",
        "std::fs::",
        "File::open",
        "env::args",
    ];
    if let Some(word) = PANICS.iter().find(|word| code.contains(**word))
        && !shown.contains("/tidy/")
    {
        problems.push(format!(
            "{shown}:{line}: {word} may panic; handle it, or say why it cannot with // INVARIANT:"
        ));
    }
    // The allreduce crate keeps compiled kernels on disk and talks over sockets: that is its work.
    if krate != "xtask"
        && krate != "allreduce"
        && !binary
        && let Some(word) = IO.iter().find(|word| code.contains(**word))
    {
        problems.push(format!("{shown}:{line}: {word} belongs in xtask"));
    }
    let has_unsafe =
        code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl");
    if has_unsafe
        && !UNSAFE_FILES.iter().any(|place| shown.starts_with(place))
        && !shown.contains("/tidy/")
    {
        problems.push(format!(
            "{shown}:{line}: unsafe belongs in {}",
            UNSAFE_FILES.join(" or ")
        ));
    }
}

/// Source files under a folder, without build outputs.
fn files_under(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                if path.file_name().is_none_or(|name| name != "target") {
                    open.push(path);
                }
            } else if path
                .extension()
                .is_some_and(|e| e == "rs" || e == "cu" || e == "cuh")
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_keeps_its_own_rules() {
        let problems = check(&workspace_root());
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn a_long_function_a_panic_and_a_print_are_found() {
        let mut text = String::from("//! A file.\nfn long() {\n");
        text.push_str(&"    let a = 1;\n".repeat(80));
        text.push_str(
            "}\nfn short() {\n    x.unwrap();\n    println!(\"a\");\n    unsafe { y() };\n}\n",
        );
        let mut problems = Vec::new();
        check_source("kvplan", "kvplan/src/a.rs", &text, &mut problems);
        assert_eq!(problems.len(), 4, "{problems:?}");
    }

    #[test]
    fn tests_may_unwrap_and_an_invariant_may_be_stated() {
        let text = "//! A file.\nfn a() {\n    // INVARIANT: set two lines above.\n    x.unwrap();\n}\n\
                    #[cfg(test)]\nmod tests {\n    fn b() {\n        x.unwrap();\n    }\n}\n";
        let mut problems = Vec::new();
        check_source("kvplan", "kvplan/src/a.rs", text, &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
    }
}
