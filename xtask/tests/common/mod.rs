//! Runs the tool as users do, from the repository's root.

// Every test binary compiles this file and takes what it needs of it.
#![allow(dead_code)]

use std::path::Path;
use std::process::{Command, Output};

pub(crate) fn xtask(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .expect("the tool starts")
}

/// What is printed when the tool answers.
pub(crate) fn answers(arguments: &[&str]) -> String {
    let output = xtask(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The one line with which the tool refuses its input.
pub(crate) fn refusal(arguments: &[&str]) -> String {
    let output = xtask(arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert_eq!(
        error.trim_end().lines().count(),
        1,
        "{arguments:?}: {error}"
    );
    error
}
