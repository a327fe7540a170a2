//! A head whose own config reaches fewer tokens than the server takes: what the engines make of it.

use kvplan::{Model, SecondRunner};
use spec_decode::HeadKind;

use super::answer::Verdict;
use super::flags::{Setting, head};
use super::stopped::Stopped;
use super::{launch, vllm_context};
use crate::explain::speeds::same_context;
use crate::scenario::{Draft, EngineChoice, EngineKind, Scenario};
use crate::table::thousands;

/// What SGLang refuses such a head without: model_config.py of every release read, 0.5.1 to 0.5.23
/// (pull request 9388; its own tests of a DFlash head set it too). From 0.5.3 on it also lengthens
/// the head's rotary table (10787).
pub(super) const SGLANG: &str = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1";

/// What vLLM makes of a request longer than its head reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beyond {
    /// The drafter indexes past the end of its rotary table.
    Stops,
    /// The whole batch is decoded without drafts while the request is in it.
    DraftsNothing,
    /// One of the two, by the runner.
    Either,
}

/// gpu_model_runner.py of 0.10.2 looks at no length (issues 21986, 23072); from 0.11.0 on (24662; read:
/// 0.11.0, 0.11.1, 0.25.1, 0.26.0) it drafts nothing for a batch whose longest request and steps are
/// more than the head's own length.
const GATE: Release = ((0, 11, 0), (2025, 10));
/// config/speculative.py lengthens the table of EAGLE heads (49343): not in 0.26.0, in 0.27.0. The
/// first runner's gate goes by the head's own length all the same.
const LENGTHENS: Release = ((0, 27, 0), (2026, 8));

type Release = ((u32, u32, u32), (u32, u32));

fn beyond(engine: &EngineChoice, target: &Model, draft: &Draft) -> Option<Beyond> {
    let version = engine.version.as_deref();
    let version = version.and_then(kvplan::Version::find)?;
    let since = |(number, date): Release| version.since(number, date);
    if engine.kind != EngineKind::Vllm {
        return None;
    }
    if !since(GATE) {
        return Some(Beyond::Stops);
    }
    // The second runner has no such gate (48894, 57964), and takes no whole draft model to 0.26.
    let second = kvplan::vllm_second_runner(version);
    let is_dense = is_dense(target);
    let whole_model = draft.head == HeadKind::DraftModel;
    let eagle = matches!(draft.head, HeadKind::Eagle | HeadKind::Eagle3);
    if second == SecondRunner::All || (is_dense && !whole_model && second == SecondRunner::Dense) {
        return match whole_model {
            true => Some(Beyond::Either),
            false => (!(eagle && since(LENGTHENS))).then_some(Beyond::Stops),
        };
    }
    let maybe = is_dense && !whole_model && second == SecondRunner::SomeDense;
    Some(match maybe {
        true => Beyond::Either,
        false => Beyond::DraftsNothing,
    })
}

fn is_dense(target: &Model) -> bool {
    let experts = |layer: &kvplan::Layer| matches!(layer.ffn, kvplan::Ffn::Moe(_));
    !target.layers.iter().any(experts)
}

/// Whether a head drafts at contexts beyond its reach too, so that less is accepted there.
pub(crate) fn drafts_beyond(engine: &EngineChoice, target: &Model, draft: &Draft) -> bool {
    beyond(engine, target, draft).is_none()
}

/// The reach of a head, and whether it is that head's own, where vLLM does not draft beyond it.
fn walled(scenario: &Scenario) -> Option<(u64, bool, Beyond)> {
    let draft = scenario.draft.as_ref()?;
    let beyond = beyond(&scenario.engine, &scenario.model, draft)?;
    Some((draft.reach()?, draft.reach_known, beyond))
}

/// Whether drafts are made at a context, as far as the head's reach decides it: the last tokens of a
/// request as long as the reach go without (a verify's length with its steps must be within it), which
/// decides nothing. A head that nobody named is one that reaches the context asked for ([`needs`]), and
/// no further than the one taken.
pub(super) fn drafts_at(scenario: &Scenario, context: u64) -> bool {
    walled(scenario).is_none_or(|(reach, known, _)| {
        let asked = context <= scenario.context && !known;
        asked || context <= reach
    })
}

/// The longest request that a server with the draft lets in and stays up, where its head reaches the
/// context asked for: a longer one is refused rather than the end of it.
pub(crate) fn longest_let_in(scenario: &Scenario) -> Option<u64> {
    let (reach, _, beyond) = walled(scenario)?;
    let stops = matches!(beyond, Beyond::Stops | Beyond::Either);
    (stops && scenario.context <= reach).then_some(reach)
}

/// The longest request that its head drafts for, where it reaches the context asked for.
pub(crate) fn longest_drafted(scenario: &Scenario) -> Option<u64> {
    let (reach, ..) = walled(scenario)?;
    (scenario.context <= reach).then_some(reach)
}

/// Whether vLLM drafts nothing beyond a reach that is known.
pub(super) fn is_walled(scenario: &Scenario) -> bool {
    walled(scenario).is_some_and(|(_, known, _)| known)
}

/// Why nothing is drafted at the context asked for, and what mends it.
pub(super) fn undrafted(scenario: &Scenario) -> Option<Stopped> {
    let (reach, _, beyond) = walled(scenario).filter(|(_, known, _)| *known)?;
    if drafts_at(scenario, scenario.context) {
        return None;
    }
    let shown = |tokens: u64| thousands(tokens as f64);
    Some(Stopped {
        word: match beyond {
            Beyond::Stops => "stops",
            Beyond::DraftsNothing | Beyond::Either => "drafts nothing",
        },
        why: format!(
            "the head reaches {} tokens, not {}, and {}; {}",
            shown(reach),
            shown(scenario.context),
            made_of(scenario, "a longer request", beyond),
            mends(scenario, reach)
        ),
    })
}

/// How far the head must reach for the answer, where that is not known of it and the one whose shapes
/// are taken reaches less.
pub(super) fn needs(scenario: &Scenario, verdict: Verdict) -> Option<String> {
    match verdict {
        Verdict::DoesNotPay | Verdict::NoDraft => None,
        Verdict::Pays | Verdict::MeasureFirst => needs_reach(scenario),
    }
}

/// What a server with the draft lacks at the context asked for: a head that is known to reach too little,
/// or may.
pub(crate) fn falls_short(scenario: &Scenario) -> Option<String> {
    let undrafted = undrafted(scenario).map(|stopped| stopped.why);
    undrafted.or_else(|| needs_reach(scenario))
}

fn needs_reach(scenario: &Scenario) -> Option<String> {
    let (reach, _, beyond) = walled(scenario).filter(|(_, known, _)| !known)?;
    let draft = scenario.draft.as_ref()?;
    (scenario.context > reach && !drafted_there(scenario)).then(|| {
        let of_log = scenario.ran.draft_reach == Some(reach);
        let taken = match draft.stands_in {
            _ if of_log => "the log's, which may be cut to what its server took,",
            true => "how far the one named does is not known here, the one whose shapes are taken",
            false => "the catalogue's, whose shapes are taken,",
        };
        format!(
            "needs a head that reaches {} tokens: {taken} reaches {}, and {}",
            thousands(scenario.context as f64),
            thousands(reach as f64),
            made_of(scenario, "a longer request", beyond)
        )
    })
}

/// Whether drafts were accepted at that context where it was measured: the head reaches it then.
fn drafted_there(scenario: &Scenario) -> bool {
    let context = scenario.context as f64;
    let there = |held: f64| held >= context || same_context(held, context);
    let windows = scenario.ran.windows.filter(|w| !w.mostly_plain());
    let by_log = windows.and_then(|windows| windows.drafted_held);
    scenario.drafted().iter().any(|run| {
        let accepted = run
            .speeds
            .iter()
            .filter(|speed| speed.accept_length > Some(1.0));
        let held = accepted.filter_map(|speed| speed.held_tokens);
        let by_log = by_log.filter(|_| run.in_log).map(|held| held as f64);
        held.chain(by_log).any(there)
    })
}

/// What the engine makes of a request beyond the reach.
fn made_of(scenario: &Scenario, request: &str, beyond: Beyond) -> String {
    let version = scenario.engine.version.as_deref().unwrap_or_default();
    match beyond {
        Beyond::Stops => format!("vLLM {version} stops with an assert at {request} (vllm#48894)"),
        Beyond::DraftsNothing => format!(
            "vLLM {version} drafts nothing for the whole batch while {request} is in it (vllm#24662)"
        ),
        Beyond::Either => format!(
            "vLLM {version} stops with an assert at {request}, or drafts nothing for the whole batch \
             (vllm#48894, 24662)"
        ),
    }
}

fn mends(scenario: &Scenario, reach: u64) -> String {
    let head = scenario.draft.as_ref().map(|draft| draft.head);
    let eagle = matches!(head, Some(HeadKind::Eagle | HeadKind::Eagle3));
    let lengthens = match (eagle, is_dense(&scenario.model)) {
        (true, true) => " vLLM from 0.27, which lengthens it,",
        (true, false) => " vLLM from 0.29, which lengthens it,",
        (false, _) => "",
    };
    format!(
        "what mends it: a head that reaches further,{lengthens} SGLang with {SGLANG}, or requests \
         within {}",
        thousands(reach as f64)
    )
}

/// How far the head of a setting reaches, where its server takes longer requests or may.
struct Short {
    /// Tokens; `None` where the head's own config is not known to fall short.
    reach: Option<u64>,
    served: u64,
}

fn short(setting: &Setting<'_>, served: Option<u64>) -> Option<Short> {
    head(setting)?;
    let draft = setting.scenario.draft.as_ref()?;
    draft.model.as_ref()?;
    let served = served.or(setting.scenario.model.max_positions)?;
    let reach = draft.reach().filter(|reach| *reach < served);
    (reach.is_some() || draft.stands_in).then_some(Short { reach, served })
}

/// Whether SGLang's line needs its variable.
pub(super) fn in_sglang(setting: &Setting<'_>, told: Option<u64>) -> bool {
    short(setting, told).is_some()
}

/// What is said of it for the engine that was asked for.
pub(super) fn told(setting: &Setting<'_>) -> Option<String> {
    let scenario = setting.scenario;
    let memory = Some(setting.memory);
    match scenario.engine.kind {
        EngineKind::Sglang if setting.runs => {
            let limit = launch::told_limit(scenario, memory);
            let found = short(setting, scenario.max_model_len.or(limit))?;
            let served = thousands(found.served as f64);
            Some(match found.reach {
                Some(reach) => format!(
                    "{SGLANG} in the paste: SGLang refuses a head that reaches {} of the {served} tokens \
                     served without it; beyond its reach less is accepted",
                    thousands(reach as f64)
                ),
                None => format!(
                    "{SGLANG} in the paste, in case the head's own config, which is not known here, reaches \
                     less than the {served} tokens served: without it SGLang refuses such a head"
                ),
            })
        }
        EngineKind::Vllm if setting.runs => {
            let told = vllm_context(scenario, memory);
            let length = &setting.memory.length;
            // A length of the user's own needs no word.
            let own = length.drafted.filter(|_| scenario.max_model_len.is_none());
            let let_in = length.let_in.or(own);
            let let_in = let_in.filter(|reach| told == Some(*reach));
            let reach = match let_in {
                Some(reach) => reach,
                None => short(setting, told)?.reach?,
            };
            if scenario.context > reach {
                // Told under the verdict.
                return None;
            }
            let tokens = thousands(reach as f64);
            let request = format!("a request longer than the head's {tokens} tokens");
            let made = made_of(scenario, &request, walled(scenario)?.2);
            let limit = match let_in {
                Some(_) => {
                    format!("; --max-model-len {reach} in the paste keeps such requests out")
                }
                None => format!("; with --max-model-len {reach} added it lets no such requests in"),
            };
            let windows = scenario.ran.windows.filter(|w| w.mostly_plain());
            let seen = windows.map_or_else(String::new, |windows| {
                let plain = windows.all - windows.drafted;
                format!(", as in {plain} of the log's {} windows", windows.all)
            });
            Some(format!("{made}{seen}{limit}"))
        }
        _ => None,
    }
}
