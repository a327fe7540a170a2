//! What was seen of another server than the one that is asked about is left aside: how steps would come
//! out at another cut or on another card nobody measured, and memory is of one card and its weights.

use super::hardware::Hardware;
use super::merge::{Given, Merged};
use super::{EngineKind, Notes};
use crate::bench_input::{RanOn, Sweep};
use crate::plan::Otherwise;

/// Leaves aside what a log shows of a server that had another card (all but the model, its flags that
/// no card decides, and how much its draft was accepted) or other weights. Says so.
pub(super) fn of_a_log(merged: &mut Merged, engine: EngineKind, otherwise: &Otherwise) -> String {
    let file = merged.ran.file.clone();
    let ran = std::mem::take(&mut merged.ran);
    let why = match otherwise {
        Otherwise::Weights(why) => {
            merged.ran = ran.of_other_weights(engine == EngineKind::Vllm);
            return format!(
                "{file} is of other weights: {why}; its pool, graphs and speeds are left aside"
            );
        }
        Otherwise::Card(why) => why,
    };
    // Why it left its own all-reduce off is of that box too.
    let told = merged.told_all_reduce.as_mut();
    told.and_then(|told| told.off.take());
    // SGLang's log prints the fraction that it chose for that card as if it had been set.
    let by_log = |given: &mut Given<f64>| given.source.starts_with(&file);
    let fraction = engine == EngineKind::Sglang && merged.mem_fraction.take_if(by_log).is_some();
    let what = if fraction {
        "its fraction, memory, speeds and further flags are"
    } else {
        "its memory, speeds and further flags are"
    };
    format!("{file} is of another card: {why}; {what} left aside")
}

/// Says what the plain sweep is taken to be where its file does not tell.
fn unsaid(sweep: &Sweep, merged: &Merged, (tp, hardware): (u32, &Hardware), notes: &mut Notes) {
    let cut = sweep.ran_on.tp.is_some() || merged.log_tp.is_some();
    let at_tp = (!cut && hardware.wiring.gpu_count() > 1).then(|| {
        let asked = merged.tp.as_ref().map_or("", |_| ", as asked");
        format!("at TP {tp}{asked}")
    });
    let plain = sweep.may_draft.then(|| "without speculation".to_string());
    let taken: Vec<String> = at_tp.into_iter().chain(plain).collect();
    if !taken.is_empty() {
        let taken = taken.join(" and ");
        notes.assume(
            format!("the plain sweep ran {taken} (it does not say)"),
            format!("a plain sweep that ran {taken}"),
        );
    }
}

/// What is said of a server that spreads its requests over ranks.
pub(crate) const ONE_GROUP: &str = "not modelled, this answer is of one group of all TP ranks";

/// Says where a log is of a server that spreads its requests over ranks: steps are computed for one group of
/// ranks that all hold every request.
fn data_parallel_log(merged: &Merged, notes: &mut Notes) {
    if let Some((what, at)) = &merged.ran.data_parallel {
        let said = format!("{at}: {what} of the log's server: {ONE_GROUP}");
        notes.assume(said, "");
    }
}

/// The same of the plain sweep that is taken.
fn data_parallel_sweep(sweep: &Sweep, notes: &mut Notes) {
    let Some((what, line)) = &sweep.ran_on.data_parallel else {
        return;
    };
    let file = notes.given("baseline");
    let said = format!(
        "{file}:{line}: the plain sweep is of a server with {what}, which is not modelled: its steps are of \
         another layout than this answer's, one group of all TP ranks"
    );
    notes.assume(said, "a plain sweep without data parallelism");
}

/// What was given, with its plain sweep where nothing says that it is of another cut or card, else
/// without it.
pub(super) fn of_this_server(
    merged: &Merged,
    (tp, hardware, model): (u32, &Hardware, &kvplan::Model),
    notes: &mut Notes,
) -> anyhow::Result<(Merged, Option<Sweep>)> {
    let sweep = super::sweep::baseline(merged, notes)?;
    data_parallel_log(merged, notes);
    let without = of_another_server(
        sweep.as_ref(),
        merged,
        (tp, &hardware.gpu.name, &model.architecture),
        notes,
    );
    Ok(match without {
        Some(without) => (without, None),
        None => {
            let mut own = merged.clone();
            own.ran.plain_pool = super::sweep::plain_pool(sweep.as_ref(), &own.ran);
            let silent = sweep.as_ref().is_some_and(|sweep| sweep.points.is_empty());
            if silent {
                return Ok((pool_alone(own, notes)?, None));
            }
            if let Some(sweep) = &sweep {
                own.ran.swept_on = sweep.ran_on.clone();
                unsaid(sweep, merged, (tp, hardware), notes);
                data_parallel_sweep(sweep, notes);
            }
            (own, sweep)
        }
    })
}

/// What was given, with the pool of a plain server whose log has no speed to go by.
///
/// # Errors
/// Nobody asks for that pool: no log of the same model that drafts stands beside it.
fn pool_alone(mut own: Merged, notes: &mut Notes) -> anyhow::Result<Merged> {
    let file = notes.given("baseline");
    let (Some(pool), true) = (&own.ran.plain_pool, own.ran.speculates) else {
        return Err(crate::bench_input::no_speed(&file));
    };
    let tokens = crate::table::thousands(pool.tokens as f64);
    let said = format!(
        "--baseline {file} shows no speed at a load that held for two lines: its pool of {tokens} tokens alone \
         is taken, all speeds are computed"
    );
    notes
        .inputs
        .retain(|input| !input.name.starts_with("baseline"));
    notes.input(
        "baseline_pool",
        pool.tokens,
        format!("{file}, as its server printed it"),
    );
    notes.assume(said, "a plain sweep");
    own.baseline = None;
    own.baseline_context = None;
    Ok(own)
}

/// What was given without its sweep, where that is of another cut or card.
fn of_another_server(
    sweep: Option<&Sweep>,
    merged: &Merged,
    (tp, card, class): (u32, &str, &str),
    notes: &mut Notes,
) -> Option<Merged> {
    let sweep = sweep?;
    let file = notes.given("baseline");
    let told = by_itself(&sweep.ran_on, (tp, card), &file)
        .map(|why| (why, format!("a plain sweep at TP {tp} on {card}")));
    let told = of_another_model(&sweep.ran_on, class, &file)
        .map(|why| (why, "a plain sweep of this model".to_string()))
        .or(told);
    // A file that does not say is taken to be of the log's server.
    let silent = sweep.ran_on.tp.is_none();
    let by_log = merged
        .log_tp
        .as_ref()
        .filter(|(ran, _)| silent && *ran != tp);
    let (why, settled_by) = match (told, by_log) {
        (Some(told), _) => told,
        (None, Some((ran, at))) => (
            format!("the log beside it is of TP {ran} ({at}), this answer of TP {tp}"),
            format!("a plain sweep at TP {tp}, given without --from-log,"),
        ),
        (None, None) => return None,
    };
    let said = format!("--baseline {file} is left aside, all speeds are computed: {why}");
    notes
        .inputs
        .retain(|input| !input.name.starts_with("baseline"));
    notes.input(LEFT_ASIDE, said.clone(), why);
    notes.assume(said, settled_by);
    let held = sweep.held_tokens.map(|tokens| {
        Given::new(
            format!("{tokens:.0}"),
            "as the requests of the plain sweep held it",
        )
    });
    Some(Merged {
        baseline: None,
        baseline_context: None,
        context: merged.context.clone().or(held),
        ..merged.clone()
    })
}

/// Name of the input that says so.
pub(crate) const LEFT_ASIDE: &str = "baseline_left_aside";

/// What the sweep's own file says of another model than the one of this class.
fn of_another_model(ran: &RanOn, class: &str, file: &str) -> Option<String> {
    let (said, line) = ran.class.as_ref()?;
    super::other_model::of_other_layers(said, class)
        .then(|| format!("it is of another model, {said} ({file}:{line}), this answer of {class}"))
}

/// What the sweep's own file says of another server.
fn by_itself(ran: &RanOn, (tp, card): (u32, &str), file: &str) -> Option<String> {
    if let Some((own, line)) = ran.tp.filter(|(own, _)| *own != tp) {
        return Some(format!(
            "it is of TP {own} ({file}:{line}), this answer of TP {tp}"
        ));
    }
    if let Some((hosts, line)) = &ran.hosts {
        return Some(format!(
            "it ran over {hosts} hosts ({file}:{line}), this answer is of one box"
        ));
    }
    if let Some(line) = ran.eager {
        return Some(format!(
            "its server captured no CUDA graphs ({file}:{line}), this answer is of one that does"
        ));
    }
    let (own, line) = ran.gpu.as_ref()?;
    let known = crate::gpus::find(own).ok()?;
    (known.name != card)
        .then(|| format!("it ran on {own} ({file}:{line}), this answer is of {card}"))
}
