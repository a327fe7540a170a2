//! What would hold weights that fill the card: formats, cards and counts that fit, each planned.

use kvplan::MORE_ROOM;

use super::wanted::one_request;
use super::{setup, text, wall};
use crate::cli::PlanArgs;
use crate::gpus::{self, Family, Gpu};
use crate::scenario::file::ObservedFile;
use crate::scenario::{EngineKind, Ran, Scenario, checkpoint};
use crate::table::thousands;

/// Weight formats tried, the largest first.
const FORMATS: [&str; 2] = ["fp8", "int4"];
/// A card offered instead is not much slower than the one asked for.
const ABOUT_AS_FAST: f64 = 0.9;

/// Puts what would hold the weights into a refusal that asks for more room in general, and fewer requests
/// at once before what else is said where no fraction works.
pub(super) fn name(scenario: &Scenario, args: Option<&PlanArgs>, plan: &mut kvplan::Plan) {
    let (running, no_fraction) = (plan.running_setting, plan.interval.is_empty());
    let Some(refusal) = &mut plan.refusal else {
        return;
    };
    let asks_for_room = refusal.remedy.contains(MORE_ROOM);
    if !asks_for_room && !no_fraction {
        return;
    }
    // The settings asked for stay; figures of another run do not.
    let knobs = args.cloned().map(|mut args| {
        args.free_before_gib = None;
        args.free_after_gib = None;
        args.kv_gib = None;
        args.state_gib = None;
        args
    });
    let mut plain = scenario.clone();
    // Figures and settings of a server that ran are not those of another card or format.
    plain.observed = ObservedFile::default();
    plain.ran = Ran::default();
    let fewer = fewer_at_once(&plain, knobs.as_ref(), running);
    if asks_for_room {
        refusal.remedy = named(&plain, knobs.as_ref(), fewer, &refusal.remedy);
    } else if let Some(fewer) = fewer {
        refusal.remedy = format!("{fewer} would fit; as it is: {}", refusal.remedy);
    }
}

/// A remedy with what fits in the place of its general words, what costs least first.
fn named(plain: &Scenario, args: Option<&PlanArgs>, fewer: Option<String>, remedy: &str) -> String {
    let mut found: Vec<String> = fewer.into_iter().collect();
    found.extend(formats(plain, args));
    found.extend(count(plain, args));
    found.extend(card(plain, args));
    let words = match found.as_slice() {
        [] => format!(
            "none of {}, more of these cards or a larger card known here alone holds it with one request \
             of {} tokens",
            FORMATS.join(", "),
            thousands(plain.context as f64)
        ),
        [only] => format!("{only} would fit"),
        [most @ .., last] => format!("{} or {last} would fit", most.join(", ")),
    };
    remedy.replace(MORE_ROOM, &words)
}

/// A change with the fraction that it needs; `None` where it does not fit.
fn fits(scenario: &Scenario, args: Option<&PlanArgs>, change: &str) -> Option<String> {
    way(scenario, args).map(|way| way.words(change))
}

/// How a scenario fits.
struct Way {
    /// The fraction to set, where that is another than it has.
    fraction: Option<f64>,
}

impl Way {
    fn words(&self, change: &str) -> String {
        match self.fraction {
            Some(fraction) => format!("{change} --mem-fraction {fraction:.3}"),
            None => change.to_string(),
        }
    }
}

/// How a scenario fits; `None` where it does not start and hold one request at any fraction. That stays
/// where the loads asked for fit at it.
fn way(scenario: &Scenario, args: Option<&PlanArgs>) -> Option<Way> {
    let stays = Way { fraction: None };
    let setup = setup(scenario, args).ok()?;
    if setup
        .sharding
        .uncut(setup.model, setup.engine.kind)
        .is_some()
    {
        return None;
    }
    let users = u64::from(text::asked_users(scenario));
    let setup = kvplan::told_to_run(&setup, users).ok()?;
    let own = kvplan::plan(&setup).ok()?;
    let context = scenario.context;
    let starts = own.fit(context) == kvplan::Fit::Fits;
    if starts && own.carries(context, users) {
        return Some(stays);
    }
    let reached = |requests: u64| {
        let tokens = one_request(&setup, context);
        let answer = kvplan::for_target(&setup, tokens, requests).ok()?;
        answer.reached.then_some(answer.fraction)
    };
    let Some(least) = reached(users).or_else(|| reached(1).filter(|_| !starts)) else {
        return starts.then_some(stays);
    };
    // No lower than what is clear of the wall: room given up for nothing. Inside its band as far from the
    // wall as from the pool's.
    let inside = || wall::typed(f64::midpoint(least, own.interval.max));
    let clear = wall::clear_fraction(&own, context).unwrap_or_else(inside);
    Some(Way {
        fraction: Some(clear.max(least)),
    })
}

/// No more requests at once than the heaviest load shown, where the engine takes more: graphs, sampler rows
/// and tables of the others give way to the pool. Where nobody asked for that load, no more than then fit.
fn fewer_at_once(scenario: &Scenario, args: Option<&PlanArgs>, running: u64) -> Option<String> {
    let most = u64::from(scenario.concurrency.iter().copied().max()?);
    if running <= most || scenario.engine.kind == EngineKind::LlamaCpp {
        return None;
    }
    let (words, held) = limited_to(scenario, args, most)?;
    if held >= most {
        return Some(words);
    }
    let asked = most == u64::from(text::asked_users(scenario));
    let as_held = limited_to(scenario, args, held.max(1)).filter(|_| !asked);
    if let Some((words, _)) = as_held.filter(|(_, as_many)| *as_many >= held.max(1)) {
        return Some(words);
    }
    Some(format!(
        "{words} ({held} of {} tokens at once)",
        thousands(scenario.context as f64)
    ))
}

/// How it fits where it is told to run no more requests at once, and how many it then holds.
fn limited_to(scenario: &Scenario, args: Option<&PlanArgs>, most: u64) -> Option<(String, u64)> {
    let mut other = scenario.clone();
    other.max_running = Some(most);
    let told = args.cloned().map(|mut args| {
        args.knobs.max_running = Some(most);
        args
    });
    let way = way(&other, told.as_ref())?;
    let mut setup = setup(&other, told.as_ref()).ok()?;
    setup.fraction = way.fraction.or(setup.fraction);
    let held = kvplan::plan(&setup)
        .ok()?
        .at_once(scenario.context)
        .requests;
    Some((way.words(&format!("--max-running {most}")), held))
}

/// Weight formats in which it fits as it stands.
fn formats(scenario: &Scenario, args: Option<&PlanArgs>) -> Vec<String> {
    let fits_in = |name: &&str| {
        let mut other = scenario.clone();
        other.checkpoint = checkpoint::loaded_from(&scenario.model_given, Some(name));
        other.model = match (
            checkpoint::in_format(&scenario.model_given, name),
            kvplan::Quant::parse(name),
        ) {
            (Some(model), _) => model,
            (None, Some(quant)) => scenario.model.clone().requantised(&quant),
            (None, None) => return None,
        };
        fits(&other, args, &format!("--quant {name}")).or_else(|| stored(&other, args))
    };
    FORMATS.iter().filter_map(fits_in).collect()
}

/// The checkpoint that its maker stores in the format which the engine would have to make while loading.
fn stored(scenario: &Scenario, args: Option<&PlanArgs>) -> Option<String> {
    scenario.checkpoint.as_ref()?;
    let name = kvplan::catalog::stored_fp8(&scenario.model_given)?;
    let mut other = scenario.clone();
    other.checkpoint = None;
    other.model = kvplan::catalog::find(&name).ok()?.model;
    fits(&other, args, &format!("--model {name}"))
}

/// The least count of these cards that holds it, of those the box or a board of them has.
fn count(scenario: &Scenario, args: Option<&PlanArgs>) -> Option<String> {
    let have = u32::try_from(scenario.wiring.gpu_count()).unwrap_or(u32::MAX);
    let shown = scenario.input("box").map(|input| input.source.as_str());
    // Only a box that is nothing but cards and their number can have more.
    let free = shown.is_some_and(|source| source.starts_with("--gpu "));
    let most = if free {
        have.max(scenario.gpu.most_gpus)
    } else {
        have
    };
    let doubled = |tp: &u32| tp.checked_mul(2);
    std::iter::successors(doubled(&scenario.tp), doubled)
        .take_while(|tp| *tp <= most)
        .find_map(|tp| {
            let mut other = scenario.clone();
            other.tp = tp;
            let cut = kvplan::Sharding::tp(u64::from(tp)).check(&scenario.model);
            let change = match tp <= have {
                true => format!("--tp {tp}"),
                // More cards alone may be taken as copies of the group, or with the ranks given.
                false => format!("--gpus {tp} --tp {tp}"),
            };
            cut.ok().and_then(|_| fits(&other, args, &change))
        })
}

/// The smallest larger card of the same kind of box that holds it.
fn card(scenario: &Scenario, args: Option<&PlanArgs>) -> Option<String> {
    let own = scenario.gpu;
    let kind = |gpu: &Gpu| (gpu.family == Family::Cdna3, gpu.most_gpus >= scenario.tp);
    let boards = |gpu: &Gpu| matches!(gpu.nvlink, gpus::Nvlink::Switch | gpus::Nvlink::Mesh);
    let as_fast = |theirs: f64, ours: f64| theirs >= ABOUT_AS_FAST * ours;
    let mut cards: Vec<&'static Gpu> = gpus::all()
        .iter()
        .filter(|gpu| gpu.memory_gib > own.memory_gib)
        .filter(|gpu| kind(gpu) == kind(own) && boards(gpu) == boards(own))
        .filter(|gpu| gpu.most_gpus == own.most_gpus || own.most_gpus > 16)
        .filter(|gpu| as_fast(gpu.bandwidth_gb_s, own.bandwidth_gb_s))
        .filter(|gpu| as_fast(gpu.tflops_bf16, own.tflops_bf16))
        .filter(|_| scenario.engine.kind != EngineKind::LlamaCpp)
        .collect();
    cards.sort_by(|a, b| a.memory_gib.total_cmp(&b.memory_gib));
    cards.into_iter().find_map(|gpu| {
        let mut other = scenario.clone();
        other.gpu = gpu;
        fits(&other, args, &format!("--gpu {}", gpu.name))
    })
}
