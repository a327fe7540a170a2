//! Laws of the event-driven simulation.

use pcie_sim::maxmin::Flow;
use pcie_sim::sim::{Task, simulate};
use proptest::prelude::*;

fn tasks() -> impl Strategy<Value = (Vec<f64>, Vec<Task>)> {
    (1usize..6).prop_flat_map(|links| {
        let capacities = prop::collection::vec(1.0f64..100.0, links);
        let one = (
            prop::collection::btree_map(0..links, 1.0f64..1.4, 1..=links),
            0u64..2_000_000,
            prop_oneof![1 => Just(0.0), 5 => 1.0f64..1e6],
            prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        );
        (capacities, prop::collection::vec(one, 1..14)).prop_map(|(capacities, specs)| {
            let tasks = specs
                .into_iter()
                .enumerate()
                .map(|(i, (uses, delay_ps, bytes, after))| Task {
                    after: if i == 0 {
                        Vec::new()
                    } else {
                        after.iter().map(|x| x.index(i)).collect()
                    },
                    delay_ps,
                    bytes,
                    flow: Flow {
                        uses: uses.into_iter().collect(),
                        cap: f64::INFINITY,
                    },
                })
                .collect();
            (capacities, tasks)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn bytes_are_conserved((caps, tasks) in tasks()) {
        let run = simulate(&caps, &tasks);
        for (l, cap) in caps.iter().enumerate() {
            let wanted: f64 = tasks.iter().flat_map(|t| t.flow.uses.iter().filter(|u| u.0 == l).map(|u| u.1 * t.bytes)).sum();
            prop_assert!((run.resource_bytes[l] - wanted).abs() <= 1e-9 * wanted.max(1.0));
            // No link carries more than its capacity allows in the time taken; 1 ps a task for
            // rounding up.
            let room = cap * (run.end_ps + tasks.len() as u64) as f64 / 1e3;
            prop_assert!(wanted <= room * (1.0 + 1e-9), "{wanted} in {room}");
        }
    }

    #[test]
    fn nothing_starts_before_what_it_waits_for((caps, tasks) in tasks()) {
        let run = simulate(&caps, &tasks);
        for (task, span) in tasks.iter().zip(&run.spans) {
            for before in &task.after {
                prop_assert!(run.spans[*before].end_ps <= span.ready_ps);
            }
            prop_assert_eq!(span.ready_ps + task.delay_ps, span.start_ps);
            prop_assert!(span.end_ps >= span.start_ps);
            prop_assert!(span.end_ps <= run.end_ps);
        }
    }

    #[test]
    fn the_same_input_gives_the_same_trace_bit_for_bit((caps, tasks) in tasks()) {
        prop_assert_eq!(simulate(&caps, &tasks), simulate(&caps, &tasks));
    }

    #[test]
    fn doubling_capacities_halves_transfers((caps, mut tasks) in tasks()) {
        for t in &mut tasks {
            t.delay_ps = 0;
        }
        let double: Vec<f64> = caps.iter().map(|c| c * 2.0).collect();
        let (a, b) = (simulate(&caps, &tasks).end_ps, simulate(&double, &tasks).end_ps);
        // One picosecond of rounding an event.
        prop_assert!((a as f64 - 2.0 * b as f64).abs() <= 4.0 * tasks.len() as f64, "{a} {b}");
    }
}

#[test]
fn two_transfers_share_then_the_longer_goes_on_alone() {
    // 10 GB/s: both at 5 until the first (10 kB) is done at 2 us, the rest of 10 kB at 10.
    let task = |bytes| Task {
        after: vec![],
        delay_ps: 0,
        bytes,
        flow: Flow {
            uses: vec![(0, 1.0)],
            cap: f64::INFINITY,
        },
    };
    let run = simulate(&[10.0], &[task(10_000.0), task(20_000.0)]);
    assert_eq!(run.spans[0].end_ps, 2_000_000);
    assert_eq!(run.end_ps, 3_000_000);
}

#[test]
fn a_transfer_without_capacity_never_ends() {
    let run = simulate(
        &[0.0],
        &[Task {
            after: vec![],
            delay_ps: 5,
            bytes: 1.0,
            flow: Flow {
                uses: vec![(0, 1.0)],
                cap: f64::INFINITY,
            },
        }],
    );
    assert_eq!(run.end_ps, pcie_sim::sim::TIME_MAX_PS);
}
