//! `accept`: accept length by depth from what was measured, with its band and what looks wrong.

mod agree;
mod figures;
mod notes;
mod reached;
mod simulated;
mod subject;

use std::process::ExitCode;

use serde_json::{Value, json};
use spec_decode::acceptance::prior::HOTTEST;
use spec_decode::acceptance::warnings::{Observed, Severity, Warning, diagnose};
use spec_decode::trees::{TreeBasis, TreeEstimate, tree_accept_length};
use spec_decode::{
    AcceptanceBand, AcceptancePrior, Evidence, HeadKind, Posterior, PriorQuery, Task,
};

use crate::cli::AcceptCommandArgs;
use crate::input;
use crate::scenario::{parse, training_of, unmeasured_band};
use crate::table;
use simulated::Simulated;

/// Coverage of the bands printed.
const COVERAGE: f64 = 0.9;

/// Everything that is printed.
struct Report {
    head: HeadKind,
    /// Head, target and line, where a log says.
    head_by_log: Option<String>,
    measured: Vec<String>,
    depths: Vec<AcceptanceBand>,
    posterior: Posterior,
    tree: Option<(u32, u32, TreeEstimate)>,
    simulated: Option<Simulated>,
    warnings: Vec<Warning>,
    assumed: Vec<String>,
    sources: Vec<String>,
}

/// Runs `cargo xtask accept`.
pub(crate) fn run(args: &AcceptCommandArgs) -> anyhow::Result<ExitCode> {
    let report = report(args)?;
    if args.json {
        crate::input::print(&(serde_json::to_string_pretty(&as_json(&report))? + "\n"))?;
    } else {
        crate::input::print(&as_text(&report, args.sources))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn report(args: &AcceptCommandArgs) -> anyhow::Result<Report> {
    let depths = parse::depths("--depths", &args.depths)?;
    let mut figures = figures::read(args)?;
    let subject = subject::Subject::of(args, &figures)?;
    let head = subject.head;
    for figure in &mut figures {
        figure.observed.head = Some(head);
    }
    let query = query(args, &subject)?;
    let prior = AcceptancePrior::new(&query);
    let evidence: Vec<Evidence> = figures.iter().map(|f| f.evidence.clone()).collect();
    let posterior =
        Posterior::new(&prior, &evidence).map_err(|e| input::error(format!("--accept: {e}")))?;
    let mut assumed = subject.notes;
    if figures.is_empty() {
        assumed.push(
            "nothing measured: the band is that of public pairs of draft and target; one accept \
             length from your own prompts (--accept 2.3@3) narrows it most"
                .to_string(),
        );
    }
    assumed.extend(figures.iter().flat_map(|f| f.assumed.iter().cloned()));
    assumed.extend(notes::context(args, &query, !figures.is_empty()));
    if let Some(temperature) = args.temperature.filter(|t| *t > HOTTEST) {
        assumed.push(format!(
            "--temperature {temperature}: taken as {HOTTEST}; pairs are measured from 0 to 1"
        ));
    }
    assumed.extend(notes::training(
        subject.model.as_deref(),
        args.model.is_some(),
        &query,
    ));
    let dispute = agree::dispute(&figures, &posterior);
    let mut warned = warnings(args, &figures);
    warned.extend(dispute.as_ref().map(|found| found.warning.clone()));
    Ok(Report {
        head,
        head_by_log: subject.by_log,
        measured: figures.iter().map(|f| f.shown.clone()).collect(),
        depths: depths
            .iter()
            .map(|&d| {
                let band = match figures.is_empty() {
                    true => unmeasured_band(&query, &posterior, d, COVERAGE),
                    false => posterior.band(d, COVERAGE),
                };
                dispute.as_ref().map_or(band, |found| found.widen(&band))
            })
            .collect(),
        tree: tree(args, &posterior, &depths)?,
        simulated: simulated::simulate(args, &posterior, &depths)?,
        warnings: warned,
        assumed,
        sources: prior.sources,
        posterior,
    })
}

fn query(args: &AcceptCommandArgs, subject: &subject::Subject) -> anyhow::Result<PriorQuery> {
    let mut query = PriorQuery::of(subject.head);
    if let Some(name) = &args.task {
        let task = Task::parse(name).map_err(|e| input::error(format!("--task {name}: {e}")))?;
        query.task = Some(task);
    }
    if let Some(temperature) = args.temperature {
        if !(0.0..=10.0).contains(&temperature) {
            return Err(input::error(format!(
                "--temperature {temperature}: give a number from 0 to 10"
            )));
        }
        query.temperature = Some(temperature);
    }
    let tokens = |flag: &str, text: &Option<String>| -> anyhow::Result<Option<f64>> {
        let read = text.as_ref().map(|t| parse::count(flag, t)).transpose()?;
        Ok(read.map(|n| n as f64))
    };
    let model = subject.model.as_deref().unwrap_or_default();
    query.trained_steps = training_of(subject.head, model);
    query.context_tokens = tokens("--context", &args.context)?;
    query.trained_context_tokens = tokens("--trained-context", &args.trained_context)?;
    Ok(query)
}

/// The tree's estimate: at the deepest depth printed.
fn tree(
    args: &AcceptCommandArgs,
    posterior: &Posterior,
    depths: &[u32],
) -> anyhow::Result<Option<(u32, u32, TreeEstimate)>> {
    if args.topk <= 1 && args.draft_tokens.is_none() {
        return Ok(None);
    }
    if args.topk == 0 || args.topk > 64 {
        return Err(input::error(format!(
            "--topk {}: give a width from 1 to 64",
            args.topk
        )));
    }
    let steps = depths.last().copied().unwrap_or(1);
    let draft_tokens = args.draft_tokens.ok_or_else(|| {
        input::error(format!(
            "--topk {}: how many tokens are verified decides; add --draft-tokens N (the root \
             included)",
            args.topk
        ))
    })?;
    if !(2..=512).contains(&draft_tokens) {
        return Err(input::error(format!(
            "--draft-tokens {draft_tokens}: give 2 to 512, the root included"
        )));
    }
    let estimate = tree_accept_length(&posterior.chain(), steps, args.topk, draft_tokens);
    Ok(Some((steps, draft_tokens, estimate)))
}

/// Warnings on every figure, and on the tree's flags.
fn warnings(args: &AcceptCommandArgs, figures: &[figures::Figure]) -> Vec<Warning> {
    let mut found: Vec<Warning> = figures.iter().flat_map(|f| diagnose(&f.observed)).collect();
    if let Some(draft_tokens) = args.draft_tokens {
        let steps = parse::depths("--depths", &args.depths)
            .ok()
            .and_then(|d| d.last().copied())
            .unwrap_or(1);
        found.extend(diagnose(&Observed {
            tree_flags: Some((steps, args.topk, draft_tokens)),
            ..Observed::default()
        }));
    }
    found
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Broken => "broken",
    }
}

fn basis(basis: TreeBasis) -> &'static str {
    match basis {
        TreeBasis::Chain => "a chain",
        TreeBasis::UnsureDraft => "the engine's tree, ranked by a draft less sure than it is right",
        TreeBasis::RankModel => "the engine's tree under a rank model",
        TreeBasis::Between => "between a draft that doubts and one that does not",
    }
}

fn as_json(report: &Report) -> Value {
    let chain = report.posterior.chain();
    let depths: Vec<Value> = report
        .depths
        .iter()
        .map(|b| {
            json!({"depth": b.depth, "accept_length": rounded(b.mid), "low": rounded(b.low),
                   "high": rounded(b.high)})
        })
        .collect();
    let alpha: Vec<f64> = report
        .depths
        .iter()
        .map(|b| rounded(report.alpha(b.depth)))
        .collect();
    let warnings: Vec<Value> = report
        .warnings
        .iter()
        .map(|w| {
            json!({"severity": severity(w.severity), "kind": w.kind, "what": w.what,
                   "why": w.why, "do": w.mend})
        })
        .collect();
    let (slope_low, slope_high) = report.posterior.slope_interval(COVERAGE);
    let tree = report.tree.map(|(steps, draft_tokens, t)| {
        json!({"steps": steps, "draft_tokens": draft_tokens,
               "accept_length": rounded(t.accept_length),
               "low": rounded((t.accept_length - t.half_width).max(1.0)),
               "high": rounded(t.accept_length + t.half_width), "basis": basis(t.basis)})
    });
    let simulated = report.simulated.as_ref().map(Simulated::as_json);
    json!({
        "schema": 1,
        "head": report.head.name(),
        "head_by_log": report.head_by_log,
        "measured": report.measured,
        "depths": depths,
        "alpha": alpha,
        "slope": rounded(chain.slope),
        "slope_low": rounded(slope_low),
        "slope_high": rounded(slope_high),
        "level": rounded(chain.level),
        "tree": tree,
        "simulated": simulated,
        "warnings": warnings,
        "assumed": report.assumed,
        "sources": report.sources,
    })
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn as_text(report: &Report, sources: bool) -> String {
    let mut out = String::new();
    let what = if report.measured.is_empty() {
        "not measured".to_string()
    } else {
        report.measured.join(", ")
    };
    let usual = format!("{} head", report.head.name());
    let head = report.head_by_log.as_ref().unwrap_or(&usual);
    out.push_str(&format!("{head}, {what}\n\n"));
    let chain = report.posterior.chain();
    let mut rows = table::plain(
        &["depth", "accept length", "90 % band", "alpha", "reached"],
        &[],
    );
    for band in &report.depths {
        rows.add_row(vec![
            band.depth.to_string(),
            format!("{:.2}", band.mid),
            format!("{:.2} to {:.2}", band.low, band.high),
            format!("{:.3}", report.alpha(band.depth)),
            format!("{:.3}", report.reached(band.depth)),
        ]);
    }
    out.push_str(&table::text(&rows, 0));
    let (low, high) = report.posterior.slope_interval(COVERAGE);
    out.push_str(&format!(
        "\nslope  {:.3} logit to the second position ({low:.3} to {high:.3})\n",
        chain.slope
    ));
    if let Some((steps, draft_tokens, tree)) = &report.tree {
        out.push_str(&format!(
            "tree   {:.2} ± {:.2} with {steps} steps and {draft_tokens} draft tokens, from {}\n",
            tree.accept_length,
            tree.half_width,
            basis(tree.basis)
        ));
    }
    if let Some(s) = &report.simulated {
        out.push_str(&s.as_text());
    }
    for warning in &report.warnings {
        out.push_str(&format!(
            "{}  {}\n         {}\n         do: {}\n",
            severity(warning.severity),
            warning.what,
            warning.why,
            warning.mend
        ));
    }
    for line in &report.assumed {
        out.push_str(&format!("assumed  {line}\n"));
    }
    if sources {
        for line in &report.sources {
            out.push_str(&format!("source  {line}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn answer(flags: &[&str]) -> anyhow::Result<Report> {
        let cli = Cli::try_parse_from([&["xtask", "accept"], flags].concat())?;
        match &cli.command {
            Command::Accept(args) => report(args),
            other => Err(anyhow::anyhow!("{other:?}")),
        }
    }

    #[test]
    fn an_accept_length_is_one_and_what_reached_each_depth() {
        for figure in ["2.19@7", "rates:.65,.40,.24", "1.3@2"] {
            let found = answer(&["--accept", figure, "--cycles", "100000"]).expect("answers");
            let mut length = 1.0;
            let mut reached = 1.0;
            for band in &found.depths {
                reached *= found.alpha(band.depth);
                length += found.reached(band.depth);
                assert!((length - band.mid).abs() < 1e-9, "{figure} {}", band.depth);
                let same = found.reached(band.depth);
                assert!((reached - same).abs() < 1e-9, "{figure} {}", band.depth);
            }
        }
    }

    #[test]
    fn json_has_the_keys_of_the_contract() {
        let value = as_json(&answer(&["--accept", "2.3@3", "--depths", "1..8"]).unwrap());
        assert_eq!(value["depths"].as_array().map(Vec::len), Some(8));
        let third = &value["depths"][2];
        assert!((third["accept_length"].as_f64().unwrap() - 2.3).abs() < 0.02);
        assert!(third["low"].as_f64() < third["high"].as_f64());
        assert_eq!(value["alpha"].as_array().map(Vec::len), Some(8));
        assert!(value["slope"].as_f64().unwrap() < 0.0);
    }

    #[test]
    fn every_form_of_one_measurement_gives_one_accept_length() {
        let forms = [
            "2.29@3",
            "rates:.65,.40,.24",
            "counts:10000:6500,4000,2400",
            "alphas:.65,.61538,.6",
            "no-bonus:1.29@3",
            "vllm-rate:.43@3",
            "sglang-rate-new:.43@4",
            "sglang-rate-old:.5725@4",
            "llamacpp:129/100@3",
        ];
        for form in forms {
            let report = answer(&["--accept", form]).unwrap();
            let mid = report.posterior.band(3, 0.9).mid;
            assert!((mid - 2.29).abs() < 0.03, "{form}: {mid}");
        }
    }

    #[test]
    fn a_deepseek_module_saturates_and_the_answer_says_what_it_takes() {
        let flags = ["--accept", "2.61@3", "--head", "mtp"];
        let usual = answer(&flags).unwrap();
        let named = answer(&[&flags[..], &["--model", "DeepSeek-V3"]].concat()).unwrap();
        let at_8 = |r: &Report| r.posterior.band(8, 0.9).mid;
        assert!(at_8(&named) < 2.95 && at_8(&usual) > 3.1);
        assert!(usual.assumed.iter().any(|a| a.contains("--model NAME")));
        assert!(!named.assumed.iter().any(|a| a.contains("--model")));
        let other = answer(&[&flags[..], &["--model", "GLM-5.1"]].concat()).unwrap();
        assert!(other.assumed.iter().any(|a| a.contains("GLM-5.1")));
        assert_eq!(at_8(&other), at_8(&usual));
    }

    #[test]
    fn two_depths_are_taken_together() {
        let one = answer(&["--accept", "2.73@3", "--head", "mtp"]).unwrap();
        let two = answer(&["--accept", "2.73@3", "--accept", "2.825@5", "--head", "mtp"]).unwrap();
        let width = |r: &Report| r.posterior.band(8, 0.9).width();
        assert!(width(&two) < 0.6 * width(&one));
    }

    #[test]
    fn wrong_input_is_refused_in_one_line_that_names_the_flag() {
        for flags in [
            &["--accept", "9@3"][..],
            &["--accept", "2.3"],
            &["--accept", "rates:.4,.6"],
            &["--accept", "vllm-rate:43@3"],
            &["--accept", "counts:100:120"],
            &["--accept", "llamacpp:1/0@3"],
            &["--accept", "llamacpp:36/7@0"],
            &["--accept", "llamacpp:36/7@100000"],
            &["--accept", "sglang-rate-old:.1@4"],
            &["--accept", "no-bonus:-1@3"],
            &["--accept", "no-such-file"],
            &["--head", "eagel3"],
            &["--task", "cooking"],
            &["--temperature", "-1"],
            &["--depths", "0..3"],
            &["--topk", "4"],
            &["--topk", "0", "--draft-tokens", "8"],
            &["--simulate", "0"],
            &["--cycles", "-5", "--accept", "2.3@3"],
        ] {
            let error = answer(flags).err().map(|e| format!("{e:#}"));
            let error = error.unwrap_or_else(|| panic!("{flags:?} was answered"));
            assert!(
                !error.contains('\n') && error.contains("--"),
                "{flags:?}: {error}"
            );
        }
    }

    #[test]
    fn an_accept_length_of_one_is_reported_as_a_broken_load() {
        let report = answer(&["--accept", "1.0@3"]).unwrap();
        assert_eq!(report.warnings[0].kind, "nothing-accepted");
        let report =
            answer(&["--accept", "2.3@3", "--depths", "4", "--draft-tokens", "3"]).unwrap();
        assert_eq!(report.warnings[0].kind, "wasted-drafts");
    }
}
