//! The text view of `plan`.

use kvplan::{CostBasis, EngineKind, Fit};

use super::basis::{self, rests_on};
use super::pool::{pool, without_it_at};
use super::{Report, fraction_flag, limit, loading, starts, states, wall, wanted};
use crate::predict::answer::Assumption;
use crate::scenario::log_weights::CONTRADICTED;
use crate::scenario::{Scenario, newer_than_known};
use crate::table::{at_most, plain, text, thousands};

/// The whole answer as text.
pub(super) fn render(report: &Report, scenario: &Scenario, sources: bool) -> String {
    let mut out = String::new();
    if let Some(assumed) = &report.assumed {
        out.push_str(&format!(
            "assumed  {assumed}: no --model and no --gpu given\n"
        ));
    }
    if report.foreign {
        backwards(report, &mut out);
        out.push_str(
            "\nThe figures are not of that model: pool, tokens and ledger need yours (--model, --gpu, \
             --gpus).\n",
        );
        return out;
    }
    headline(report, scenario, &mut out);
    backwards(report, &mut out);
    wanted::words(report, &mut out);
    ledger(report, sources, &mut out);
    assumed(report, scenario, &mut out);
    out
}

fn headline(report: &Report, scenario: &Scenario, out: &mut String) {
    let plan = &report.cost.without;
    let with = &report.cost.with;
    let users = asked_users(scenario);
    let load = scenario.context.saturating_mul(u64::from(users));
    let carried = with.carries(scenario.context, u64::from(users));
    let word = word(report, carried);
    let mut line = |text: String| out.push_str(&format!("{text}\n"));
    let setting = if report.engine.kind == EngineKind::LlamaCpp {
        with.context_tokens.to_string()
    } else {
        format!("{:.3}", with.fraction)
    };
    line(format!(
        "{word:<8} {} {setting} ({})",
        fraction_flag(report),
        with.fraction_source
    ));
    let contradicted = scenario
        .input(CONTRADICTED)
        .and_then(|input| input.value.as_str());
    if let Some(contradicted) = contradicted {
        line(format!("         {contradicted}"));
    }
    for why in does_not_start(report, scenario) {
        line(format!("         {why}"));
    }
    let alone = if report.speculates { plan } else { with };
    if starts(alone) {
        line(format!(
            "         {}{}",
            without_it_at(report),
            pool(alone, report.engine, scenario.context)
        ));
    }
    if report.speculates && starts(with) {
        line(format!(
            "         with the draft {}",
            pool(with, report.engine, scenario.context),
        ));
    }
    if let Some(cost) = &report.draft_cost {
        line(format!(
            "         the draft {}{}",
            cost.words(),
            rests_on(report)
        ));
    }
    for setting in settings(report, scenario) {
        line(format!("         {setting}"));
    }
    if report.engine.kind != EngineKind::LlamaCpp {
        line(format!("         {}", wall::walls(report)));
    }
    let moved = beside_the_log(report).chain(limit::kv_formats(report, scenario));
    let found = does_not_serve(report).into_iter().chain(warnings(report));
    let misfits = crate::predict::serves::misfits(scenario);
    for remark in moved.chain(found).chain(misfits) {
        line(format!("         {remark}"));
    }
    if starts(with) && !holds(report, scenario) && users > 1 {
        line(format!(
            "         the load shown needs more: {users} requests of {} tokens are {}",
            thousands(scenario.context as f64),
            thousands(load as f64)
        ));
    }
}

/// Whether pool and state slots hold the users that must fit.
fn holds(report: &Report, scenario: &Scenario) -> bool {
    let held = limit::held(&report.cost.with, scenario.context);
    held >= u64::from(asked_users(scenario))
}

/// What must be told beside the fraction, what was taken, and how many requests run at once.
fn settings(report: &Report, scenario: &Scenario) -> Vec<String> {
    let starts_with = starts(&report.cost.with);
    let alone = match report.speculates {
        true => &report.cost.without,
        false => &report.cost.with,
    };
    // Where the pool is too small, the load's own line says so.
    let capped = Some(asked_users(scenario)).filter(|_| holds(report, scenario));
    let slots = limit::one_slot(report, scenario).map(str::to_string);
    let all = [
        report.falls_short.clone().filter(|_| starts_with),
        report.length.to_start(),
        report.to_run.clone().filter(|_| starts_with),
        states::to_start(report),
        assumed_context(scenario).filter(|_| starts(alone)),
        slots.filter(|_| starts_with),
        limit::words(report, capped).filter(|_| starts_with),
    ];
    all.into_iter().flatten().collect()
}

/// How the log's start ended badly, and why this one would.
fn does_not_start(report: &Report, scenario: &Scenario) -> Vec<String> {
    let mut out: Vec<String> = scenario.ran.ended_badly().into_iter().collect();
    let uncut = report.uncut.iter();
    out.extend(uncut.map(|why| format!("{why}; below is what it would take")));
    out.extend(loading::words(report));
    if let Some(refusal) = &report.cost.with.refusal {
        out.push(format!(
            "{}; {} says: {}",
            short(refusal),
            report.engine,
            refusal.engine_says
        ));
        out.push(format!("do: {}", remedy(report, refusal)));
    }
    out
}

/// The first word: what `predict` says of the same setting, and TIGHT also where not all requests
/// asked for are held at once.
fn word(report: &Report, carried: bool) -> &'static str {
    match report.cost.with.fit(report.context) {
        Fit::Refused => "REFUSED",
        _ if report.uncut.is_some() => "REFUSED",
        Fit::TooShort | Fit::RunsOut => "DOES NOT FIT",
        Fit::Open => "TIGHT",
        Fit::Fits if !carried => "TIGHT",
        Fit::Fits => "FITS",
    }
}

/// Users that must fit: those asked for; the most that a log's server takes is a limit.
pub(super) fn asked_users(scenario: &Scenario) -> u32 {
    let asked = scenario
        .input("concurrency")
        .is_some_and(|loads| loads.source.starts_with("--"));
    let most = scenario.concurrency.iter().copied().max();
    most.filter(|_| asked).unwrap_or(1)
}

/// What a request is taken to hold, where nobody said it: the same here as in `predict`.
fn assumed_context(scenario: &Scenario) -> Option<String> {
    if scenario.asked_context().is_some() {
        return None;
    }
    let own = scenario
        .model
        .max_positions
        .map_or_else(String::new, |tokens| {
            format!("; the model takes up to {}", thousands(tokens as f64))
        });
    Some(format!(
        "a request is taken to hold {} tokens, as in predict (--context){own}",
        thousands(scenario.context as f64)
    ))
}

/// What is left of a log beside another fraction than its own.
fn at_another_fraction(report: &Report) -> Option<String> {
    let (said, pool) = report.ran_at?;
    Some(match pool {
        true => format!(
            "the pool is the log's own at {said:.3}, larger or smaller by the share of the card \
             between the two settings"
        ),
        false => format!(
            "the log's server ran at {said:.3}: what it says of free memory and graphs is kept, the \
             pool is planned"
        ),
    })
}

/// What is left of a log beside other settings than its own.
fn beside_the_log(report: &Report) -> impl Iterator<Item = String> {
    let back = "the log's server drafted: its pool, and what that draft is estimated to have taken";
    let back = report.given_back.then(|| back.to_string());
    let of_tokens = report.of_tokens.map(|(gib, tokens)| {
        format!(
            "the log prints the tokens of its KV cache and no GiB: {} take {gib:.2}",
            thousands(tokens as f64)
        )
    });
    let fraction = at_another_fraction(report).into_iter();
    let depth = basis::at_another_depth(report);
    fraction
        .chain(with_others_at_once(report))
        .chain(depth)
        .chain(back)
        .chain(of_tokens)
        .chain(report.gained_graphs.clone())
        .chain(report.beyond_flags.iter().cloned())
}

/// What is left of a log beside another number of requests at once than its own.
fn with_others_at_once(report: &Report) -> Option<String> {
    let (ran, asked, kept) = report.ran_with?;
    let pool = match kept {
        true => "its pool is kept but for what profile run and graphs take with as many",
        false => "its pool is planned",
    };
    Some(format!(
        "the log's server ran {ran} at once, this one {asked}: {pool}"
    ))
}

/// What is off without being refused.
fn warnings(report: &Report) -> Vec<String> {
    let plan = &report.cost.with;
    let mut out = Vec::new();
    if let Some(automatic) = plan.automatic_fraction
        && automatic <= plan.interval.min
        && !plan.interval.is_empty()
        && plan.loading.is_none()
        && report.engine.kind == EngineKind::Sglang
    {
        out.push(format!(
            "the automatic fraction {automatic:.3} would be refused: it must be set"
        ));
    }
    let said = plan.fit(report.context) == Fit::TooShort && plan.context_tokens == report.context;
    if starts(plan) && plan.kv_tokens < plan.context_tokens && !said {
        out.push(format!(
            "the configured context of {} tokens is not usable: {} fit",
            thousands(plan.context_tokens as f64),
            thousands(plan.kv_tokens as f64)
        ));
    }
    out.extend(wall::inside_its_band(plan, report.context));
    out
}

/// What is missing at the fraction and, where that is more than the whole card has, of the card.
fn short(refusal: &kvplan::Refusal) -> String {
    let card = refusal.card_short_gib;
    // Where the fraction leaves nothing out both are one figure.
    let of_card = match card > 0.0 && (card - refusal.short_gib).abs() >= 0.005 {
        true => {
            format!("; the whole card has {card:.2} GiB less than is needed before any KV token")
        }
        false => String::new(),
    };
    format!("short by {:.2} GiB{of_card}", refusal.short_gib)
}

/// What to do about a refusal; the least fraction that starts may hold nothing yet.
fn remedy(report: &Report, refusal: &kvplan::Refusal) -> String {
    format!(
        "{}{}",
        refusal.remedy,
        and_holds_one(report, &refusal.remedy)
    )
}

/// The least fraction that holds one request, as the end of a sentence.
fn and_holds_one(report: &Report, remedy: &str) -> String {
    wanted::holds_one(report, remedy).map_or_else(String::new, |words| format!("; {words}"))
}

/// Why it starts and serves nothing, or not for long.
fn does_not_serve(report: &Report) -> Option<String> {
    let plan = &report.cost.with;
    match plan.fit(report.context) {
        Fit::TooShort => Some(format!(
            "the pool of {} tokens holds no request of {}{}",
            thousands(plan.kv_tokens as f64),
            thousands(report.context as f64),
            and_holds_one(report, "")
        )),
        Fit::RunsOut => Some(wall::beyond(plan, report.context)),
        _ => None,
    }
}

/// What the pool lacks for the draft and no line has.
fn let_go(report: &Report) -> Option<String> {
    let ledger = &report.cost.with.ledger;
    let gib = ledger.freed_gib;
    let before = |line: &kvplan::Line| {
        line.item == "draft: weights" && line.source.starts_with("loaded before")
    };
    (gib >= 0.005 && ledger.lines.iter().any(before)).then(|| {
        format!("the pool lacks {gib:.2} GiB more for the draft: its own vocabulary table, let go once the pool is sized, and free then")
    })
}

/// Notes for `predict`.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let plan = &report.cost.with;
    let mut out = Vec::new();
    if let Some(refusal) = &plan.refusal {
        let why = loading::words(report).map_or_else(
            || format!("refused at {:.3}", plan.fraction),
            |why| format!("out of memory while it loads, at any fraction ({why})"),
        );
        out.push(format!(
            "{why}, {}: {}",
            short(refusal),
            remedy(report, refusal)
        ));
    }
    out.extend(does_not_serve(report));
    out.extend(report.beyond_flags.iter().cloned());
    out.extend(
        report
            .belief
            .as_ref()
            .filter(|b| !b.agrees)
            .map(|b| b.sentence.clone()),
    );
    if weights_differ(report) {
        out.push(format!(
            "weights computed from the architecture {:.2} GiB, observed {:.2}",
            plan.computed_weights_gib, plan.weights_gib
        ));
    }
    out.extend(states::unsure(report));
    out.extend(let_go(report));
    out.extend(warnings(report));
    let plain = report.cost.basis == CostBasis::SeenWithout;
    let same = report.other_depth.is_none() && report.gained_graphs.is_none();
    let own = report.ran.filter(|_| same);
    if report.ran.is_some() && plain {
        let all = report.cost.with.kv_tokens == report.cost.without.kv_tokens;
        let with = match all {
            true => "the draft is loaded beside it",
            false => "with it, that pool less what the draft is estimated to take",
        };
        out.push(format!(
            "the pool without the draft is the log's own: that server had none; {with}"
        ));
    } else if let Some(stayed_up) = own {
        out.push(
            match stayed_up {
                true => "the pool and the graphs are the log's own: that server ran",
                false => {
                    "the pool is the log's own; it ends before that server took requests, so its fraction is \
                     not known to hold"
                }
            }
            .to_string(),
        );
    }
    out.extend(beside_the_log(report));
    out.push(format!("memory rules of {}", report.engine));
    out
}

fn backwards(report: &Report, out: &mut String) {
    let known = report.inferred.known;
    if let (Some(before), Some(after)) = (known.free_before_gib, known.free_after_gib) {
        let (before, after) = match report.fourth {
            Some("before") => (format!("{before:.2}"), format!("{after}")),
            Some(_) => (format!("{before}"), format!("{after:.2}")),
            None => (before.to_string(), after.to_string()),
        };
        let by = report.fourth.map_or_else(String::new, |which| {
            format!(" ({which}: from the other three figures)")
        });
        out.push_str(&format!(
            "\nbackwards  free before {before} GiB, after {after} GiB{by}: fractions up to {} are \
             refused, {:.3} is the first that starts\n",
            at_most(report.inferred.fraction_min.unwrap_or(0.0), 4),
            report.inferred.first_legal_fraction.unwrap_or(1.0)
        ));
        if let (Some(fraction), Some(pool)) = (known.fraction, known.pool_gib) {
            let states = known
                .state_gib
                .map_or_else(String::new, |gib| format!(" and {gib:.2} of states"));
            out.push_str(&format!(
                "           a pool of {pool:.2} GiB{states} means {fraction:.4} was in use\n"
            ));
        } else if let Some((said, pool)) = report.said.and_then(|f| Some((f, known.pool_at(f)?))) {
            let states = if report.foreign {
                " (a hybrid's states in)"
            } else {
                ""
            };
            out.push_str(&match pool > 0.0 {
                true => format!("           {said} gives a pool of {pool:.2} GiB{states}\n"),
                false => format!("           {said} is refused, short by {:.2} GiB\n", -pool),
            });
        }
    }
    if let Some(belief) = &report.belief {
        out.push_str(&format!("believed   {}\n", belief.sentence));
    } else if let (Some(said), Some(pool), None) = (report.said, known.pool_gib, known.fraction) {
        // The pool was taken for what was seen; what allocated it rests on estimates.
        let used = report.cost.with.fraction;
        if (said - used).abs() > 0.001 {
            out.push_str(&format!(
                "\nbelieved   a pool of {pool:.2} GiB means about {used:.3} by the estimates above, not the \
                 {said} given; --free-before-gib and --free-after-gib would settle it\n"
            ));
        }
    }
}

fn ledger(report: &Report, sources: bool, out: &mut String) {
    let plan = &report.cost.with;
    let mut header = vec!["one card, GiB", "", "(band)"];
    if sources {
        header.push("source");
    }
    let mut table = plain(&header, if sources { &[0, 3] } else { &[0] });
    for line in &plan.ledger.lines {
        let band = if line.estimated && line.high > line.low {
            format!("({:.2} to {:.2})", line.low, line.high)
        } else {
            String::new()
        };
        let mut cells = vec![line.item.clone(), format!("{:.3}", line.gib), band];
        if sources {
            cells.push(line.source.clone());
        }
        table.add_row(cells);
    }
    let mut total = vec![
        "the card".to_string(),
        format!("{:.3}", plan.ledger.sum()),
        String::new(),
    ];
    if sources {
        total.push("memory.total of nvidia-smi (processes see less)".to_string());
    }
    table.add_row(total);
    out.push('\n');
    out.push_str(&text(&table, 0));
}

/// Whether weights were observed that are not those computed; of a vLLM log's `beyond_flags` says so.
fn weights_differ(report: &Report) -> bool {
    let plan = &report.cost.with;
    let apart = (plan.weights_gib - plan.computed_weights_gib).abs() > 0.005;
    apart && report.engine.kind != EngineKind::Vllm
}

fn assumed(report: &Report, scenario: &Scenario, out: &mut String) {
    let plan = &report.cost.with;
    out.push('\n');
    if weights_differ(report) {
        out.push_str(&format!(
            "weights    computed from the architecture {:.2} GiB, observed {:.2} GiB\n",
            plan.computed_weights_gib, plan.weights_gib
        ));
    }
    if !report.ignored.is_empty() {
        out.push_str(&format!(
            "ignored    {}: the ledger is the same without it\n",
            report.ignored.join(", ")
        ));
    }
    let engine = &scenario.engine;
    let newer = engine.version.as_deref();
    let newer = newer.and_then(|version| newer_than_known(engine.kind, version));
    let aside = scenario.left_aside.iter();
    let taken: Vec<String> = report.taken.iter().map(Assumption::words).collect();
    // The scenario's own words of the weights are the model's.
    let own = plan.assumptions.iter();
    let own = own.filter(|line| !taken.iter().any(|taken| taken.contains(line.as_str())));
    for line in aside.chain(&newer).chain(&taken).chain(own) {
        out.push_str(&format!("assumed    {line}\n"));
    }
    out.push_str(&format!(
        "assumed    {} on {}, tp {}\n",
        scenario.model.name, scenario.gpu.name, scenario.tp
    ));
}
