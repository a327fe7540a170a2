//! `verify-hw` where there is no GPU, and against a stub server on the loopback interface that
//! speaks the protocol of vLLM and SGLang.

mod common;

use common::xtask;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn refused(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    let last = error.lines().last().unwrap_or_default().to_string();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(last.starts_with("error: "), "{error}");
    assert!(!error.contains("panicked"), "{error}");
    last
}

/// What the stub pretends to be.
#[derive(Clone)]
struct Stub {
    sglang: bool,
    /// Time of a pass with that many requests, ms.
    step_ms: BTreeMap<u64, f64>,
    /// Tokens a pass gives each request; above 1 it says that it speculates with 3 drafts.
    accept_length: f64,
    chunked: bool,
    ignores_eos: bool,
}

#[derive(Default)]
struct Load {
    active: AtomicU64,
    cycles: AtomicU64,
    requests: AtomicU64,
    accepted: Mutex<f64>,
}

impl Stub {
    fn start(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let load = Arc::new(Load::default());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (stub, load) = (self.clone(), Arc::clone(&load));
                std::thread::spawn(move || stub.serve(stream, &load));
            }
        });
        format!("http://{address}")
    }

    fn serve(&self, stream: TcpStream, load: &Load) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let path = line.split_whitespace().nth(1)?.to_string();
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            if header.trim().is_empty() {
                break;
            }
            let header = header.to_ascii_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let (status, text) = self.answer(&path, &body, load);
        self.send(stream, status, &text)
    }

    fn send(&self, mut stream: TcpStream, status: u16, text: &str) -> Option<()> {
        if !self.chunked {
            let head = format!(
                "HTTP/1.1 {status} OK\r\nContent-Length: {}\r\n\r\n",
                text.len()
            );
            return stream.write_all(format!("{head}{text}").as_bytes()).ok();
        }
        let head = format!("HTTP/1.1 {status} OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        stream.write_all(head.as_bytes()).ok()?;
        for piece in text.as_bytes().chunks(700) {
            let size = format!("{:x}\r\n", piece.len());
            stream.write_all(size.as_bytes()).ok()?;
            stream.write_all(piece).ok()?;
            stream.write_all(b"\r\n").ok()?;
        }
        stream.write_all(b"0\r\n\r\n").ok()
    }

    fn answer(&self, path: &str, body: &[u8], load: &Load) -> (u16, String) {
        let version = r#"{"version":"0.24.0"}"#.to_string();
        match path {
            "/v1/models" => (
                200,
                r#"{"object":"list","data":[{"id":"served","root":"org/Llama-3.1-8B","max_model_len":8192}]}"#
                    .to_string(),
            ),
            "/version" if !self.sglang => (200, version),
            "/get_server_info" if self.sglang => (200, version),
            "/metrics" => (200, self.metrics(load)),
            "/v1/completions" => self.complete(body, load),
            _ => (404, r#"{"detail":"Not Found"}"#.to_string()),
        }
    }

    fn metrics(&self, load: &Load) -> String {
        let cycles = load.cycles.load(Ordering::SeqCst) as f64;
        let accepted = *load.accepted.lock().expect("a lock");
        let use_ = if load.active.load(Ordering::SeqCst) > 0 {
            0.25
        } else {
            0.0
        };
        if self.sglang {
            let length = if self.accept_length > 1.0 {
                self.accept_length
            } else {
                0.0
            };
            let requests = load.requests.load(Ordering::SeqCst);
            // The first token of a request comes from its prefill.
            let tokens = self.accept_length * cycles + requests as f64;
            return format!(
                "sglang:spec_accept_length 0{length}\nsglang:token_usage {use_}\n\
                 sglang:generation_tokens_total{{is_streaming=\"false\"}} {tokens}\n\
                 sglang:num_requests_total{{is_streaming=\"false\"}} {requests}\n{}",
                if self.accept_length > 1.0 {
                    format!("sglang:spec_verify_calls_total {cycles}\nsglang:spec_num_steps 3\n")
                } else {
                    String::new()
                }
            );
        }
        let mut text = format!("# HELP x y\nvllm:kv_cache_usage_perc{{engine=\"0\"}} {use_}\n");
        if self.accept_length > 1.0 {
            text.push_str(&format!(
                "vllm:spec_decode_num_drafts_total{{engine=\"0\"}} {cycles}\n\
                 vllm:spec_decode_num_draft_tokens_total{{engine=\"0\"}} {}\n\
                 vllm:spec_decode_num_accepted_tokens_total{{engine=\"0\"}} {accepted}\n",
                3.0 * cycles
            ));
        }
        text
    }

    fn complete(&self, body: &[u8], load: &Load) -> (u16, String) {
        let body: serde_json::Value = serde_json::from_slice(body).expect("JSON");
        let prompt = body["prompt"].as_array().expect("token ids");
        assert!(prompt.iter().all(serde_json::Value::is_u64));
        assert_eq!(body["ignore_eos"], true);
        let tokens = body["max_tokens"].as_u64().expect("max_tokens");
        load.active.fetch_add(1, Ordering::SeqCst);
        let began = Instant::now();
        // The others arrive before the batch size is read, as they join a running batch.
        std::thread::sleep(Duration::from_millis(60));
        let active = load.active.load(Ordering::SeqCst);
        let step = self
            .step_ms
            .range(..=active)
            .next_back()
            .map_or(1.0, |(_, ms)| *ms);
        let cycles = tokens as f64 / self.accept_length;
        let time = Duration::from_secs_f64((60.0 + cycles * step) / 1000.0);
        std::thread::sleep(time.saturating_sub(began.elapsed()));
        load.active.fetch_sub(1, Ordering::SeqCst);
        load.cycles
            .fetch_add(cycles.round() as u64, Ordering::SeqCst);
        load.requests.fetch_add(1, Ordering::SeqCst);
        *load.accepted.lock().expect("a lock") += cycles.round() * (self.accept_length - 1.0);
        let made = if self.ignores_eos { tokens } else { tokens / 2 };
        if body["stream"] == true {
            let event = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
            return (200, format!("{}data: [DONE]\n\n", event.repeat(48)));
        }
        let usage = format!(
            r#"{{"prompt_tokens":{},"completion_tokens":{made}}}"#,
            prompt.len()
        );
        (
            200,
            format!(r#"{{"choices":[{{"text":"x"}}],"usage":{usage}}}"#),
        )
    }
}

fn plain() -> Stub {
    Stub {
        sglang: false,
        step_ms: BTreeMap::from([(1, 5.0), (4, 5.4), (16, 6.0)]),
        accept_length: 1.0,
        chunked: true,
        ignores_eos: true,
    }
}

#[test]
fn without_a_gpu_or_a_server_one_line_says_so_with_exit_code_2() {
    // A machine that has a driver cannot show its absence.
    if !Path::new("/dev/nvidiactl").exists() {
        for arguments in [vec!["verify-hw"], vec!["verify-hw", "--quick", "--json"]] {
            let error = refused(&xtask(&arguments));
            assert!(error.contains("libcuda.so.1"), "{error}");
        }
    }
    let error = refused(&xtask(&["verify-hw", "--engine-url", "http://127.0.0.1:9"]));
    assert!(error.contains("no connection"), "{error}");
    let error = refused(&xtask(&["verify-hw", "--engine-url", "https://x"]));
    assert!(error.contains("--engine-url https://x"), "{error}");
}

#[test]
fn a_plain_server_gives_a_sweep_that_predicts_its_speculative_twin() {
    let plain_url = plain().start();
    // The law's own figures: a verify of 4 tokens a sequence costs what 4 x as many plain ones do,
    // and three draft steps are added.
    let speculative_url = Stub {
        accept_length: 2.5,
        step_ms: BTreeMap::from([(1, 5.4 + 3.0 * 0.65), (4, 6.0 + 3.0 * 0.67)]),
        chunked: false,
        ..plain()
    }
    .start();
    let output = xtask(&[
        "verify-hw",
        "--quick",
        "--json",
        "--concurrency",
        "1,4,16",
        "--gpu",
        "h200-sxm",
        "--engine-url",
        &plain_url,
        "--engine-url",
        &speculative_url,
    ]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["plain"]["version"], "0.24.0");
    let points = answer["speculative"]["points"].as_array().expect("points");
    for point in points {
        let accept = point["accept_length"].as_f64().expect("an accept length");
        assert!((accept - 2.5).abs() < 0.01, "{point}");
        assert_eq!(point["steps"], 3, "{point}");
    }
    let rate = answer["plain"]["points"][0]["output_tok_s"]
        .as_f64()
        .expect("a rate");
    assert!(
        (rate - 200.0).abs() < 30.0,
        "one token each 5 ms, measured {rate} tok/s"
    );
    let speedups: Vec<_> = answer["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .filter(|row| row["group"] == "speedup")
        .collect();
    assert_eq!(speedups.len(), 3, "{answer}");
    for row in &speedups[..2] {
        let error = row["calibrated"]["error"].as_f64().expect("a prediction");
        assert!(error.abs() < 0.2, "the stub is built on the law: {row}");
        assert!(
            row["from_scratch"]["value"]
                .as_f64()
                .is_some_and(|v| v > 1.0),
            "{row}"
        );
    }
}

#[test]
fn the_saved_sweep_is_a_baseline_for_a_second_run_against_sglang() {
    let folder = std::env::temp_dir().join(format!("xtask-verify-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let sweep = folder.join("plain.csv");
    let sweep = sweep.to_str().expect("a path");
    let url = Stub {
        sglang: true,
        ..plain()
    }
    .start();
    let flags = [
        "verify-hw",
        "--quick",
        "--concurrency",
        "1,4",
        "--engine-url",
    ];
    let output = xtask(&[&flags[..], &[&url, "--save", sweep]].concat());
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(sweep).expect("the sweep");
    assert!(text.starts_with("concurrency,tok_s\n1,"), "{text}");
    let url = Stub {
        sglang: true,
        accept_length: 2.0,
        ..plain()
    }
    .start();
    let again = [&url, "--baseline", sweep, "--json"];
    let output = xtask(&[&flags[..], &again].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for point in answer["speculative"]["points"].as_array().expect("points") {
        let accept = point["accept_length"].as_f64().expect("an accept length");
        assert!((accept - 2.0).abs() < 0.01, "{point}");
        assert_eq!(point["steps"], 3, "{point}");
    }
    let rows = answer["rows"].as_array().expect("rows");
    assert!(rows.iter().any(|r| r["group"] == "speedup"), "{answer}");
    // The file reads as a sweep in every form this program writes.
    std::fs::write(folder.join("again.json"), &output.stdout).expect("a file");
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn a_server_that_stops_early_or_is_none_is_refused_in_one_line() {
    let url = Stub {
        ignores_eos: false,
        ..plain()
    }
    .start();
    let error = refused(&xtask(&["verify-hw", "--quick", "--engine-url", &url]));
    assert!(error.contains("ignore_eos"), "{error}");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n");
        }
    });
    let error = refused(&xtask(&[
        "verify-hw",
        "--engine-url",
        &format!("http://{address}"),
    ]));
    assert!(error.contains("does not answer in HTTP"), "{error}");
    let error = refused(&xtask(&[
        "verify-hw",
        "--context",
        "8k",
        "--engine-url",
        &plain().start(),
    ]));
    assert!(
        error.contains("--context 8192") && error.contains("8192"),
        "{error}"
    );
}
