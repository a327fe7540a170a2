//! Several files of one plain sweep as one.

use std::collections::BTreeMap;

use super::{RanOn, Sweep};
use crate::explain::speeds::LoadSpeed;

/// Lengths of requests that count as one, as a ratio.
const SAME_LENGTH: f64 = 1.1;

/// Sweeps of one server, each with the name of its file, as one: of a load in several files the last
/// is taken.
pub(crate) fn joined(parts: Vec<(String, Sweep)>) -> Sweep {
    if parts.len() < 2 {
        return parts
            .into_iter()
            .next()
            .map_or_else(Sweep::default, |p| p.1);
    }
    let held = lengths(&parts);
    let mut notes = Vec::new();
    let mut rows: BTreeMap<u64, Sweep> = BTreeMap::new();
    let contexts = || parts.iter().filter_map(|(_, part)| part.context);
    let shortest = contexts().min_by(f64::total_cmp);
    for (name, part) in &parts {
        notes.extend(part.notes.iter().map(|note| format!("{name}: {note}")));
        let others = crate::score::quantile(&held, 0.5).or(shortest);
        if let Some(others) = others.filter(|_| part.held_tokens.or(part.context).is_none()) {
            notes.push(format!(
                "{name} does not say what its requests held: taken for the {others:.0} tokens of the others \
                 (--baseline-context tells)"
            ));
        }
        for row in std::iter::once(part).chain(&part.longer) {
            // What does not say its context is of the shortest.
            let context = row.context.or(shortest);
            let into = rows.entry(context.unwrap_or(0.0).to_bits()).or_default();
            into.context = context;
            let again = |known: &LoadSpeed| row.points.iter().any(|p| p.0 == known.running);
            into.seen.retain(|known| !again(known));
            into.seen.extend(&row.seen);
            for (users, tok_s) in &row.points {
                if let Some(known) = into.points.iter_mut().find(|p| p.0 == *users) {
                    let (load, before) = *known;
                    notes.push(format!(
                        "{} in several files: {tok_s:.0} tok/s of {name} are taken, not {before:.0}",
                        are(load)
                    ));
                    known.1 = *tok_s;
                } else {
                    into.points.push((*users, *tok_s));
                }
            }
        }
    }
    for row in rows.values_mut() {
        row.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        row.seen.sort_by(|a, b| a.running.total_cmp(&b.running));
    }
    notes.extend(several_lengths(&held));
    // One server: what any of its files says of it holds for all.
    let told = |ran: &&RanOn| ran.tp.is_some() || ran.gpu.is_some() || ran.data_parallel.is_some();
    let ran_on = parts.iter().map(|(_, part)| &part.ran_on).find(told);
    let mut rows = rows.into_values();
    let first = rows.next().unwrap_or_default();
    Sweep {
        held_tokens: crate::score::quantile(&held, 0.5),
        notes,
        longer: rows.collect(),
        ran_on: ran_on.cloned().unwrap_or_default(),
        may_draft: parts.iter().any(|(_, part)| part.may_draft),
        ..first
    }
}

/// Tokens that requests held, of the files that say. A file whose every load another replaces says nothing
/// of what is taken.
fn lengths(parts: &[(String, Sweep)]) -> Vec<f64> {
    let taken = |at: usize, part: &Sweep| {
        let later = || parts.iter().skip(at + 1).flat_map(|(_, p)| &p.points);
        let replaced = |load: f64| later().any(|point| point.0 == load);
        !part.longer.is_empty() || part.points.iter().any(|point| !replaced(point.0))
    };
    let all = parts.iter().enumerate();
    let counting = all.filter(|(at, (_, part))| taken(*at, part));
    counting.filter_map(|(_, (_, p))| p.held_tokens).collect()
}

/// How files of several lengths are taken.
fn several_lengths(held: &[f64]) -> Option<String> {
    let least = held.iter().copied().min_by(f64::total_cmp)?;
    let most = held.iter().copied().max_by(f64::total_cmp)?;
    let median = crate::score::quantile(held, 0.5)?;
    (most > least * SAME_LENGTH).then(|| {
        format!(
            "the files ran with requests of {least:.0} to {most:.0} tokens; they are taken for one sweep of \
             {median:.0}, the median"
        )
    })
}

/// `1 user is`, `4 users are`.
fn are(load: f64) -> String {
    match load {
        1.0 => "1 user is".to_string(),
        _ => format!("{load} users are"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(held: f64, points: &[(f64, f64)]) -> Sweep {
        Sweep {
            points: points.to_vec(),
            held_tokens: Some(held),
            ..Sweep::default()
        }
    }

    #[test]
    fn files_of_one_sweep_are_one_sweep_whatever_their_order() {
        let (low, high) = (at(4096.0, &[(16.0, 650.0)]), at(4096.0, &[(64.0, 1500.0)]));
        let whole = at(4096.0, &[(16.0, 650.0), (64.0, 1500.0)]);
        let named = |name: &str, part: &Sweep| (name.to_string(), part.clone());
        assert_eq!(joined(vec![named("a", &low), named("b", &high)]), whole);
        assert_eq!(joined(vec![named("b", &high), named("a", &low)]), whole);
        assert_eq!(joined(vec![named("a", &whole)]), whole);
    }

    #[test]
    fn what_one_file_says_of_its_server_is_kept_where_files_are_joined() {
        let (silent, mut told) = (at(4096.0, &[(1.0, 50.0)]), at(4096.0, &[(8.0, 300.0)]));
        told.ran_on.tp = Some((4, 1));
        let both = joined(vec![("a".to_string(), silent), ("b".to_string(), told)]);
        assert_eq!(both.ran_on.tp, Some((4, 1)));
    }

    #[test]
    fn files_that_differ_in_a_load_or_in_length_say_so() {
        let one = at(1000.0, &[(1.0, 50.0), (8.0, 300.0)]);
        let two = at(4000.0, &[(8.0, 200.0)]);
        let both = joined(vec![("a".to_string(), one), ("b".to_string(), two)]);
        assert_eq!(both.points, [(1.0, 50.0), (8.0, 200.0)]);
        assert!(both.notes[0].contains("200 tok/s of b") && both.notes[1].contains("1000 to 4000"));
    }

    #[test]
    fn one_user_is_in_several_files_and_more_are() {
        let of = |load: f64| {
            let (one, two) = (at(1000.0, &[(load, 50.0)]), at(1000.0, &[(load, 40.0)]));
            let both = joined(vec![("a".to_string(), one), ("b".to_string(), two)]);
            both.notes.concat()
        };
        assert!(of(1.0).starts_with("1 user is in several files"));
        assert!(of(4.0).starts_with("4 users are in several files"));
    }
}
