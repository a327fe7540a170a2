//! The slot protocols under loom: every interleaving (up to a bound on preemptions) of two
//! ranks, with relaxed memory, on messages of one word.
//!
//! Two ranks, because three spinning threads are beyond loom; `tests/states.rs` takes three and
//! four ranks, without reordering but without a bound.
//!
//! A kernel is a run of relaxed accesses between two fences: stream order makes what one kernel
//! wrote visible before the next one starts. Slots, clearing and marks are the functions that the
//! kernels' constants come from.

use std::sync::Arc;

use allreduce::protocol::{self, MARK};
use loom::sync::atomic::{AtomicU32, Ordering, fence};

/// The value rank `rank` sends in `call`: never the mark, different in each call.
fn value(rank: usize, call: u32) -> u32 {
    (call % 97 + 1) * 10 + rank as u32
}

fn expected(ranks: usize, call: u32) -> u32 {
    (0..ranks).map(|rank| value(rank, call)).sum()
}

fn wait(word: &AtomicU32) -> u32 {
    loop {
        let seen = word.load(Ordering::Relaxed);
        if seen != MARK {
            return seen;
        }
        loom::thread::yield_now();
    }
}

fn marks(count: usize) -> Vec<AtomicU32> {
    (0..count).map(|_| AtomicU32::new(MARK)).collect()
}

/// Explores `body` on one thread a rank.
fn explore(
    ranks: usize,
    preemptions: usize,
    words: usize,
    body: impl Fn(usize, &[AtomicU32]) + Send + Sync + 'static,
) {
    let body = Arc::new(body);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let memory = Arc::new(marks(words));
        let threads: Vec<_> = (1..ranks)
            .map(|rank| {
                let (memory, body) = (memory.clone(), body.clone());
                loom::thread::spawn(move || body(rank, &memory))
            })
            .collect();
        body(0, &memory);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// One-shot with `slots` slots: every rank stores into every inbox, reads and clears its own.
fn one_shot(ranks: usize, slots: u32, first: u32, calls: u32) -> impl Fn(usize, &[AtomicU32]) {
    move |rank, memory| {
        let at = |owner: usize, slot: u32, source: usize| {
            &memory[(owner * slots as usize + slot as usize) * ranks + source]
        };
        let mut call = first;
        for _ in 0..calls {
            let slot = if slots == protocol::PEER_SLOTS {
                protocol::peer_slot(call)
            } else {
                0
            };
            for peer in (0..ranks).filter(|p| *p != rank) {
                let word = protocol::without_mark(value(rank, call));
                at(peer, slot, rank).store(word, Ordering::Relaxed);
            }
            let mut sum = value(rank, call);
            for peer in (0..ranks).filter(|p| *p != rank) {
                let word = at(rank, slot, peer);
                sum += wait(word);
                word.store(MARK, Ordering::Relaxed);
            }
            assert_eq!(sum, expected(ranks, call), "rank {rank}, call {call}");
            fence(Ordering::SeqCst);
            call = protocol::next_call(call);
        }
    }
}

/// Host-staged: every rank writes its own region, all read it, and its writer clears the slot of
/// the call `age` calls back: before it reads (`early`: tiles, and threads without data), or after.
/// `slots` is the number of slots.
fn host_staged(
    ranks: usize,
    slots: u32,
    age: u32,
    early: bool,
    first: u32,
    calls: u32,
) -> impl Fn(usize, &[AtomicU32]) {
    move |rank, memory| {
        let at = |owner: usize, slot: u32| &memory[owner * slots as usize + slot as usize];
        let real = slots == protocol::HOST_SLOTS && age == protocol::HOST_CLEAR_AGE;
        let slot = |call: u32| {
            if real {
                protocol::host_slot(call)
            } else {
                call % slots
            }
        };
        let old = |call: u32| {
            if real {
                protocol::host_slot_to_clear(call)
            } else {
                call.wrapping_sub(age) % slots
            }
        };
        let mut call = first;
        for done in 0..calls {
            let clear = || {
                if done >= age {
                    at(rank, old(call)).store(MARK, Ordering::Relaxed);
                }
            };
            at(rank, slot(call)).store(value(rank, call), Ordering::Relaxed);
            if early {
                clear();
            }
            let mut sum = value(rank, call);
            for peer in (0..ranks).filter(|p| *p != rank) {
                sum += wait(at(peer, slot(call)));
            }
            if !early {
                clear();
            }
            assert_eq!(sum, expected(ranks, call), "rank {rank}, call {call}");
            fence(Ordering::SeqCst);
            call = protocol::next_call(call);
        }
    }
}

/// Two-shot on a message of one word: rank 0 owns it, sums and gives the result to all.
fn two_shot(ranks: usize, first: u32, calls: u32) -> impl Fn(usize, &[AtomicU32]) {
    move |rank, memory| {
        let slots = protocol::PEER_SLOTS;
        let scatter = |slot: u32, source: usize| &memory[slot as usize * ranks + source];
        let gather = |slot: u32, to: usize| &memory[(slots + slot) as usize * ranks + to];
        let mut call = first;
        for _ in 0..calls {
            let slot = protocol::peer_slot(call);
            let result = if rank == 0 {
                let mut sum = value(0, call);
                for peer in 1..ranks {
                    sum += wait(scatter(slot, peer));
                    scatter(slot, peer).store(MARK, Ordering::Relaxed);
                }
                for peer in 1..ranks {
                    gather(slot, peer).store(protocol::without_mark(sum), Ordering::Relaxed);
                }
                sum
            } else {
                scatter(slot, rank).store(value(rank, call), Ordering::Relaxed);
                let sum = wait(gather(slot, rank));
                gather(slot, rank).store(MARK, Ordering::Relaxed);
                sum
            };
            assert_eq!(result, expected(ranks, call), "rank {rank}, call {call}");
            fence(Ordering::SeqCst);
            call = protocol::next_call(call);
        }
    }
}

const PEER: usize = protocol::PEER_SLOTS as usize;
const HOST: usize = protocol::HOST_SLOTS as usize;
/// Calls that pass the end of the call numbers.
const NEAR_WRAP: u32 = protocol::CALL_MODULUS - 2;

#[test]
fn one_shot_is_right_for_two_ranks_back_to_back_and_across_the_wrap() {
    explore(
        2,
        3,
        2 * PEER * 2,
        one_shot(2, protocol::PEER_SLOTS, NEAR_WRAP, 5),
    );
}

#[test]
#[should_panic]
fn one_shot_with_one_slot_is_wrong() {
    explore(2, 3, 4, one_shot(2, 1, 0, 4));
}

#[test]
fn two_shot_is_right_for_two_ranks() {
    explore(2, 3, 2 * PEER * 2, two_shot(2, NEAR_WRAP, 5));
}

#[test]
fn host_staged_is_right_for_two_ranks_across_the_wrap() {
    let age = protocol::HOST_CLEAR_AGE;
    for early in [false, true] {
        explore(
            2,
            3,
            2 * HOST,
            host_staged(2, protocol::HOST_SLOTS, age, early, NEAR_WRAP, 6),
        );
    }
}

/// With three slots a fast reader finds the data of three calls ago before its writer clears it.
#[test]
#[should_panic]
fn host_staged_with_three_slots_is_wrong() {
    explore(2, 3, 2 * 3, host_staged(2, 3, 2, false, 0, 6));
}

/// A writer that clears the last call's slot takes data away from a slow reader, who then waits
/// for ever; loom reports that as too many branches.
#[test]
#[should_panic]
fn host_staged_that_clears_the_last_call_is_wrong() {
    explore(
        2,
        3,
        2 * HOST,
        host_staged(2, protocol::HOST_SLOTS, 1, true, 0, 4),
    );
}

/// Calls of another algorithm between host calls must not count: this is the mistake that mixed
/// calls on two GPUs showed, a slot that was never cleared because the call two later was no
/// host call.
#[test]
#[should_panic]
fn host_slots_by_the_number_of_all_calls_are_wrong() {
    explore(2, 2, 2 * (HOST + PEER * 2), |rank, memory| {
        let (host, inboxes) = memory.split_at(2 * HOST);
        let peer = 1 - rank;
        for call in 0..6u32 {
            // Host calls are 0 and 4: the same slot.
            let sum = if call == 0 || call == 4 {
                let slot = protocol::host_slot(call) as usize;
                host[rank * HOST + slot].store(value(rank, call), Ordering::Relaxed);
                value(rank, call) + wait(&host[peer * HOST + slot])
            } else {
                let slot = protocol::peer_slot(call) as usize;
                inboxes[peer * PEER + slot].store(value(rank, call), Ordering::Relaxed);
                let word = &inboxes[rank * PEER + slot];
                let sum = value(rank, call) + wait(word);
                word.store(MARK, Ordering::Relaxed);
                sum
            };
            assert_eq!(sum, expected(2, call), "rank {rank}, call {call}");
            fence(Ordering::SeqCst);
        }
    });
}
