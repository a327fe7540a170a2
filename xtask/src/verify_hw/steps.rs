//! The steps of a verification: a progress line each, a deadline, and a child process of this
//! same program where a broken driver or link could hang it.
//!
//! The child reads its job as one line of JSON from standard input, which stays open: when it
//! closes, the parent is gone and the child ends, so that nothing stays on the GPU. It answers
//! with lines `note TEXT` and one `result JSON` or `fault TEXT`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::input;

/// Progress on standard error: a spinner for people, plain lines otherwise.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
    began: Instant,
}

impl Progress {
    /// Starts the clock.
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        Self {
            bar,
            began: Instant::now(),
        }
    }

    /// A step begins.
    pub(crate) fn begin(&self, what: &str) {
        self.bar.set_message(what.to_string());
        self.bar.reset_elapsed();
        self.bar.enable_steady_tick(Duration::from_millis(120));
    }

    /// A step is done; the line stays.
    pub(crate) fn done(&self, what: &str) {
        let line = format!("{:6.1} s  {what}", self.began.elapsed().as_secs_f64());
        if self.bar.is_hidden() {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }

    /// Takes the spinner away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// What a child is asked to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "job")]
pub(crate) enum Job {
    /// GPUs, memory, peers.
    Facts,
    /// One part of the link probes, by name.
    Probe { part: String },
    /// All-reduce times by algorithm and size.
    Curves {
        ranks: usize,
        sizes: Vec<u64>,
        nccl: bool,
    },
    /// The stand-in model.
    StandIn {
        plan: Box<super::standin::run::Plan>,
        ranks: usize,
        algorithm: String,
    },
}

/// Why a step gave no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The child said why.
    Said(String),
    /// It did not end in time.
    Late(Duration),
    /// It ended without an answer.
    Died(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Said(why) => f.write_str(why),
            Self::Late(deadline) => write!(
                f,
                "no answer in {:.0} s and was ended; a driver or link hangs there",
                deadline.as_secs_f64()
            ),
            Self::Died(how) => write!(f, "ended without an answer ({how})"),
        }
    }
}

/// Runs a job in a child process.
///
/// # Errors
/// [`Failure`], with the child ended.
pub(crate) fn in_child<T: DeserializeOwned>(
    job: &Job,
    deadline: Duration,
    progress: &Progress,
) -> Result<T, Failure> {
    let died = |e: &dyn std::fmt::Display| Failure::Died(e.to_string());
    let program = std::env::current_exe().map_err(|e| died(&e))?;
    let mut command = Command::new(program);
    command.arg("verify-hw-job");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| died(&e))?;
    let mut line = serde_json::to_string(job).map_err(|e| died(&e))?;
    line.push('\n');
    // Kept open until the end: the child watches it.
    let mut stdin = child.stdin.take();
    if let Some(pipe) = stdin.as_mut() {
        let _ = pipe.write_all(line.as_bytes());
        let _ = pipe.flush();
    }
    let answer = listen(&mut child, deadline, progress);
    if answer.is_err() {
        let _ = child.kill();
    }
    drop(stdin);
    reap(&mut child);
    let text = answer?;
    serde_json::from_str(&text).map_err(|e| died(&e))
}

/// A process stuck in the driver may never be reaped: it is waited for a moment only.
fn reap(child: &mut Child) {
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
}

fn listen(child: &mut Child, deadline: Duration, progress: &Progress) -> Result<String, Failure> {
    let (send, receive) = mpsc::channel();
    if let Some(pipe) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
    }
    let (send_error, errors) = mpsc::channel();
    if let Some(pipe) = child.stderr.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if send_error.send(line).is_err() {
                    return;
                }
            }
        });
    }
    let until = Instant::now() + deadline;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match receive.recv_timeout(left) {
            Ok(line) => {
                if let Some(text) = line.strip_prefix("note ") {
                    progress.done(text);
                } else if let Some(json) = line.strip_prefix("result ") {
                    return Ok(json.to_string());
                } else if let Some(why) = line.strip_prefix("fault ") {
                    return Err(Failure::Said(why.to_string()));
                }
            }
            Err(RecvTimeoutError::Timeout) => return Err(Failure::Late(deadline)),
            Err(RecvTimeoutError::Disconnected) => {
                let last = errors.recv_timeout(Duration::from_millis(300)).ok();
                let status = child
                    .wait()
                    .map_or_else(|e| e.to_string(), |s| s.to_string());
                return Err(Failure::Died(match last {
                    Some(line) => format!("{status}: {line}"),
                    None => status,
                }));
            }
        }
    }
}

/// What the child does: reads its job, does it, answers.
pub(crate) fn child() -> anyhow::Result<ExitCode> {
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .map_err(|e| input::error(format!("verify-hw-job: {e}")))?;
    let job: Job = serde_json::from_str(&line).map_err(|e| {
        input::error(format!(
            "verify-hw-job is run by verify-hw, not by hand: {e}"
        ))
    })?;
    std::thread::spawn(|| {
        let mut rest = String::new();
        // Ends when the parent closes the pipe or dies.
        let _ = std::io::stdin().read_line(&mut rest);
        std::process::exit(3);
    });
    match super::work(&job) {
        Ok(json) => println!("result {json}"),
        Err(error) => {
            let why = format!("{error:#}").replace('\n', " ");
            // What a job refuses is no argument of the person who reads it.
            println!("fault {}", why.trim_start_matches("invalid argument: "));
        }
    }
    let _ = std::io::stdout().flush();
    Ok(ExitCode::SUCCESS)
}

/// A line of progress from inside a child.
pub(crate) fn note(text: &str) {
    println!("note {}", text.replace('\n', " "));
    let _ = std::io::stdout().flush();
}
