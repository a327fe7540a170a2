//! The walls of a fraction are those that the same rules set when they are asked for.

mod common;

use common::{model, mtp};
use kvplan::{Fit, Plan, Setup, Speculation, plan};

/// Models with states, with windows, plain; versions that take the draft's pool from the reserve and
/// that price it; cards that are full and that are not.
const CASES: [(&str, &str, u64, f64, &str, bool); 10] = [
    ("qwen3-next-80b-a3b", "fp8", 2, 80.0, "sglang@0.5.18", true),
    ("qwen3-next-80b-a3b", "fp8", 2, 95.0, "sglang@2025-03", true),
    ("qwen3.5-122b-a10b", "fp8", 8, 24.0, "sglang@0.5.18", false),
    ("qwen3.5-397b-a17b", "fp8", 8, 95.0, "sglang@0.5.5", true),
    ("llama-3.1-8b", "fp8", 1, 24.0, "sglang@0.5.5", false),
    ("gemma-3-27b", "fp8", 8, 48.0, "sglang@0.5.18", false),
    ("glm-4.5-air", "awq", 4, 24.0, "sglang@0.5.18", true),
    ("qwen3-32b", "fp8", 2, 32.0, "vllm@0.11.0", false),
    ("glm-4.5-air", "awq", 4, 24.0, "vllm@0.20.0", true),
    ("gpt-oss-120b", "fp8", 2, 80.0, "vllm@0.11.0", false),
];

fn each(check: impl Fn(&Setup<'_>, &str)) {
    for (name, quant, tp, card, engine, drafts) in CASES {
        let model = model(name, Some(quant).filter(|_| !name.starts_with("gpt")));
        let mut setup = common::setup(&model, tp, engine, card);
        setup.context_tokens = Some(2048);
        setup.speculation = Some(mtp(3)).filter(|_| drafts);
        check(&setup, &format!("{name} {engine}"));
    }
}

fn at(setup: &Setup<'_>, fraction: f64) -> Plan {
    let mut setup = setup.clone();
    setup.fraction = Some(fraction);
    plan(&setup).expect("a plan")
}

/// The activation wall was that of the fraction asked about: at 0.88 it stood at 0.913, where it
/// stood at 0.910; the pool wall forgot the states of one request.
#[test]
fn between_its_walls_a_fraction_fits_and_beyond_them_it_does_not() {
    each(|setup, case| {
        let walls = at(setup, 0.7).interval;
        for fraction in [0.3, 0.88, 0.97] {
            let other = at(setup, fraction).interval;
            for (a, b) in [(walls.min, other.min), (walls.max, other.max)] {
                assert!((a - b).abs() < 1e-5, "{case}: {a} and {b}");
            }
        }
        assert!(!walls.is_empty(), "{case}: {walls:?}");
        assert_eq!(at(setup, walls.max - 1e-4).fit(64), Fit::Fits, "{case}");
        assert_eq!(at(setup, walls.max + 1e-4).fit(64), Fit::Open, "{case}");
        if walls.max_high < 0.9999 {
            let beyond = at(setup, walls.max_high + 1e-4);
            assert_eq!(beyond.fit(64), Fit::RunsOut, "{case}");
        }
        assert!(at(setup, walls.min + 1e-4).refusal.is_none(), "{case}");
        assert!(at(setup, walls.min - 1e-4).refusal.is_some(), "{case}");
    });
}

/// "Free" of the ledger is the room under the activation wall, of SGLang and vLLM: vLLM's ledger
/// once had 2 GiB free at its wall.
#[test]
fn what_is_free_on_the_card_is_what_lies_under_the_wall() {
    each(|setup, case| {
        if case.contains("sglang") || case.contains("vllm") {
            let plan = at(setup, at(setup, 0.7).interval.max);
            let free = plan.ledger.lines.last().map_or(1.0, |line| line.gib);
            // Before spring 2026 more was set aside for drafted tokens than was allocated.
            let surplus = case.contains("qwen3-next-80b-a3b sglang@2025") || case.contains("397b");
            assert!(free > -0.02 && (free < 0.02 || surplus), "{case}: {free}");
        }
    });
}

/// The band of what is free was the sum of all lines', also of those whose errors the pool makes up
/// for: 2.14 to 7.01 GiB beside a wall of 0.831 to 0.976, which leaves 2.98 to 6.18.
#[test]
fn the_band_of_what_is_free_is_that_of_the_wall() {
    each(|setup, case| {
        let plan = at(setup, at(setup, 0.7).interval.max);
        let lines = &plan.ledger.lines;
        let (Some(outside), Some(free)) = (lines.first(), lines.last()) else {
            panic!("{case}: no lines");
        };
        // What the fraction is a share of: the card less what no process sees or what is gone before.
        let base = plan.ledger.total_gib - outside.gib;
        let wall = &plan.interval;
        let low = (free.gib - free.low) / base - (wall.max - wall.max_low);
        let high = (free.high - free.gib) / base - (wall.max_high - wall.max);
        // An older version's draft pool, and states that are counted and not allocated, grow with the
        // fraction: there the wall is no straight line.
        let straight = !case.contains("sglang@0.5.5") && !case.contains("sglang@2025");
        if straight {
            // States are kept in whole slots: at another fraction there may be one more.
            let step = if case.starts_with("qwen3.5") {
                0.004
            } else {
                0.001
            };
            assert!(low.abs() < step, "{case}: {low}");
            assert!(
                high.abs() < step || wall.max_high > 0.9999,
                "{case}: {high}"
            );
        }
    });
}

/// "Short by" was what the ledger misses of the whole card, the same at any fraction, where it is
/// elsewhere what the fraction lacks.
#[test]
fn a_card_too_small_says_apart_what_its_fraction_lacks_and_what_its_ledger_misses() {
    let model = model("llama-3.3-70b", Some("bf16"));
    for engine in [
        "sglang@0.5.18",
        "sglang@0.5.5",
        "vllm@0.24.0",
        "vllm@0.11.0",
        "trtllm@1.2.0",
        "llamacpp@2026-05",
    ] {
        let mut setup = common::setup(&model, 4, engine, 24.0);
        setup.context_tokens = Some(2048);
        let plan = plan(&setup).expect("a plan");
        let free = plan.ledger.lines.last().expect("a ledger").gib;
        let (fraction, refusal) = (plan.fraction, plan.refusal.expect("too small"));
        assert!(free < -5.0, "{engine}: {free}");
        // llama.cpp counts its cache whatever the card has.
        let of_card = match engine.starts_with("llamacpp") {
            true => refusal.short_gib,
            false => refusal.card_short_gib,
        };
        assert!((of_card + free).abs() < 1e-9, "{engine}: {of_card} {free}");
        if engine.starts_with("vllm") {
            // 2 % of a card of 24 GiB.
            setup.fraction = Some(fraction + 0.02);
            let higher = kvplan::plan(&setup).expect("a plan").refusal;
            let higher = higher.expect("still too small");
            let less = refusal.short_gib - higher.short_gib;
            assert!((0.4..0.5).contains(&less), "{engine}: {less}");
            assert!((higher.card_short_gib - refusal.card_short_gib).abs() < 1e-9);
        }
    }
}

/// "Raise the fraction, or lower the requests or the drafted tokens" was said of any hybrid whose
/// states left nothing, also where that changed nothing.
#[test]
fn a_remedy_for_states_starts_when_it_is_followed() {
    let mut followed = 0;
    for (name, tp, card, slots, fraction) in [
        ("qwen3.5-27b", 1, 80.0, None, 0.70),
        ("qwen3.5-35b-a3b", 1, 48.0, None, 0.80),
        ("qwen3-next-80b-a3b", 2, 80.0, Some(900), 0.85),
        ("qwen3.5-122b-a10b", 8, 24.0, Some(400), 0.85),
        ("qwen3.5-397b-a17b", 8, 95.0, None, 0.55),
    ] {
        for engine in ["sglang@0.5.18", "sglang@0.5.12", "sglang@0.5.5"] {
            let model = model(name, Some("fp8"));
            let mut setup = common::setup(&model, tp, engine, card);
            setup.fraction = Some(fraction);
            setup.state_slots = slots;
            setup.speculation = Some(Speculation { ..mtp(3) });
            let Some(refusal) = plan(&setup).expect("a plan").refusal else {
                continue;
            };
            assert!(refusal.short_gib > 0.005, "{name} {engine}: short by 0.00");
            let Some((_, ways)) = refusal.remedy.split_once("any of these: ") else {
                continue;
            };
            for way in ways.split("; ") {
                let (flag, value) = way.split_once(' ').expect("a flag and its value");
                let value: f64 = value.trim_start_matches("at least ").parse().expect(way);
                let mut other = setup.clone();
                match flag {
                    "--mem-fraction-static" => other.fraction = Some(value),
                    "--max-mamba-cache-size" => other.state_slots = Some(value as u64),
                    "--mamba-full-memory-ratio" => other.state_ratio = Some(value),
                    "--max-running-requests" => other.max_running = Some(value as u64),
                    _ => panic!("{way}"),
                }
                let plan = plan(&other).expect("a plan");
                assert!(plan.refusal.is_none(), "{name} {engine}: {way}");
                followed += 1;
            }
        }
    }
    assert!(followed > 8, "{followed}");
}
