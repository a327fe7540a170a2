//! The slot protocols with three and four ranks: every reachable state, without a bound.
//!
//! Each rank is a list of steps built from the functions that the kernels' constants come from;
//! the search runs the steps in every order. A rank that reads another call's data, or a state
//! from which nobody can go on, fails. Steps take effect at once: `tests/protocol.rs` looks at
//! reordering, with two ranks.

use std::collections::HashSet;

use allreduce::protocol::{self, MARK};

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Store call `.1`'s data of this rank at address `.0`.
    Store(usize, u32),
    /// Wait until address `.0` holds data; it must be call `.1`'s.
    Wait(usize, u32),
    /// Put the mark back.
    Clear(usize),
}

/// Runs every order of the ranks' steps; gives the number of states, or what went wrong.
fn search(programs: &[Vec<Step>], words: usize) -> Result<usize, String> {
    let start = (vec![0usize; programs.len()], vec![MARK; words]);
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    while let Some((at, memory)) = open.pop() {
        let mut moved = false;
        for rank in 0..programs.len() {
            let Some(step) = programs[rank].get(at[rank]) else {
                continue;
            };
            let (mut next, mut after) = (at.clone(), memory.clone());
            match *step {
                Step::Store(word, call) => after[word] = protocol::without_mark(call),
                Step::Clear(word) => after[word] = MARK,
                Step::Wait(word, _) if memory[word] == MARK => continue,
                Step::Wait(word, call) if memory[word] != call => {
                    return Err(format!("rank {rank} took call {} for {call}", memory[word]));
                }
                Step::Wait(..) => {}
            }
            moved = true;
            next[rank] += 1;
            let state = (next, after);
            if seen.insert(state.clone()) {
                open.push(state);
            }
        }
        if !moved && at.iter().zip(programs).any(|(at, steps)| *at < steps.len()) {
            return Err(format!("nobody can go on at {at:?}"));
        }
    }
    Ok(seen.len())
}

fn calls(first: u32, count: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(first), |c| Some(protocol::next_call(*c))).take(count as usize)
}

/// Every rank stores into every inbox, then reads and clears its own.
fn one_shot(ranks: usize, slots: u32, first: u32, count: u32) -> (Vec<Vec<Step>>, usize) {
    let at = move |owner: usize, call: u32, source: usize| {
        let slot = if slots == protocol::PEER_SLOTS {
            protocol::peer_slot(call)
        } else {
            call % slots
        };
        (owner * slots as usize + slot as usize) * ranks + source
    };
    let program = |rank: usize| {
        let mut steps = Vec::new();
        for call in calls(first, count) {
            let peers = || (0..ranks).filter(|p| *p != rank);
            steps.extend(peers().map(|p| Step::Store(at(p, call, rank), call)));
            for p in peers() {
                steps.extend([
                    Step::Wait(at(rank, call, p), call),
                    Step::Clear(at(rank, call, p)),
                ]);
            }
        }
        steps
    };
    (
        (0..ranks).map(program).collect(),
        ranks * slots as usize * ranks,
    )
}

/// One word owned by rank 0: scatter, sum, gather.
fn two_shot(ranks: usize, first: u32, count: u32) -> (Vec<Vec<Step>>, usize) {
    let at = move |call: u32, phase: usize, rank: usize| {
        (protocol::peer_slot(call) as usize * 2 + phase) * ranks + rank
    };
    let program = |rank: usize| {
        let mut steps = Vec::new();
        for call in calls(first, count) {
            if rank == 0 {
                for p in 1..ranks {
                    steps.extend([
                        Step::Wait(at(call, 0, p), call),
                        Step::Clear(at(call, 0, p)),
                    ]);
                }
                steps.extend((1..ranks).map(|p| Step::Store(at(call, 1, p), call)));
            } else {
                steps.push(Step::Store(at(call, 0, rank), call));
                steps.extend([
                    Step::Wait(at(call, 1, rank), call),
                    Step::Clear(at(call, 1, rank)),
                ]);
            }
        }
        steps
    };
    (
        (0..ranks).map(program).collect(),
        protocol::PEER_SLOTS as usize * 2 * ranks,
    )
}

/// Every rank writes its own region and reads the others'; `slots` slots, cleared `age` later,
/// before the reading (`early`) or after it.
fn host_staged(
    ranks: usize,
    slots: u32,
    age: u32,
    early: bool,
    first: u32,
    count: u32,
) -> (Vec<Vec<Step>>, usize) {
    let real = slots == protocol::HOST_SLOTS && age == protocol::HOST_CLEAR_AGE;
    let at = move |owner: usize, call: u32| {
        let slot = if real {
            protocol::host_slot(call)
        } else {
            call % slots
        };
        owner * slots as usize + slot as usize
    };
    let old = move |owner: usize, call: u32| {
        let slot = if real {
            protocol::host_slot_to_clear(call)
        } else {
            call.wrapping_sub(age) % slots
        };
        owner * slots as usize + slot as usize
    };
    let program = |rank: usize| {
        let mut steps = Vec::new();
        for (done, call) in calls(first, count).enumerate() {
            steps.push(Step::Store(at(rank, call), call));
            let reads = (0..ranks).filter(|p| *p != rank);
            let reads = reads.map(|p| Step::Wait(at(p, call), call));
            let clear = (done >= age as usize).then(|| Step::Clear(old(rank, call)));
            if early {
                steps.extend(clear.into_iter().chain(reads));
            } else {
                steps.extend(reads.chain(clear));
            }
        }
        steps
    };
    ((0..ranks).map(program).collect(), ranks * slots as usize)
}

fn right((programs, words): (Vec<Vec<Step>>, usize)) {
    let states = search(&programs, words).unwrap();
    assert!(states > 20, "only {states} states: the model does nothing");
}

const NEAR_WRAP: u32 = protocol::CALL_MODULUS - 3;

#[test]
fn every_state_of_three_and_four_ranks_is_right() {
    right(one_shot(3, protocol::PEER_SLOTS, NEAR_WRAP, 6));
    right(two_shot(3, NEAR_WRAP, 8));
    right(two_shot(4, NEAR_WRAP, 6));
    for ranks in [3, 4] {
        let age = protocol::HOST_CLEAR_AGE;
        for early in [false, true] {
            let slots = protocol::HOST_SLOTS;
            right(host_staged(ranks, slots, age, early, NEAR_WRAP, 9));
        }
    }
}

#[test]
fn fewer_slots_or_earlier_clearing_are_found_wrong() {
    let wrong = |(programs, words): (Vec<Vec<Step>>, usize)| search(&programs, words).unwrap_err();
    wrong(one_shot(3, 1, 0, 3));
    for early in [false, true] {
        assert!(wrong(host_staged(3, 3, 2, early, 0, 6)).contains("took call"));
    }
    assert!(wrong(host_staged(3, 4, 1, true, 0, 6)).contains("nobody can go on"));
}

#[test]
fn a_rank_that_skips_a_call_stops_all_rather_than_giving_wrong_sums() {
    let (mut programs, words) = one_shot(3, protocol::PEER_SLOTS, 0, 3);
    programs[1].truncate(6);
    assert!(
        search(&programs, words)
            .unwrap_err()
            .contains("nobody can go on")
    );
}
