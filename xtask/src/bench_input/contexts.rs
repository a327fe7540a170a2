//! A plain sweep over contexts, read at the context asked for.

use super::Sweep;
use crate::table::thousands;

/// (users, tokens a second over all users).
type Points = Vec<(f64, f64)>;

impl Sweep {
    /// The sweep at `tokens` of context: step times between the rows on both sides, beyond them the
    /// nearest row. `context` of the answer is what its points are of; `None` where the file does
    /// not say.
    pub(crate) fn at(self, tokens: f64) -> Self {
        let held = self.held_tokens.or(self.context);
        if self.longer.is_empty() {
            let context = held.map(f64::round);
            return Self { context, ..self };
        }
        let mut rows = vec![&self];
        rows.extend(&self.longer);
        // Each says what its requests held.
        let seen: Vec<_> = rows.iter().flat_map(|row| row.seen.clone()).collect();
        let below = rows.iter().rev().find(|row| row.tokens() <= tokens);
        let above = rows.iter().find(|row| row.tokens() >= tokens);
        let (Some(low), Some(high)) = (below.or(above), above.or(below)) else {
            return self;
        };
        let apart = high.tokens() - low.tokens();
        let share = if apart > 0.0 {
            (tokens - low.tokens()) / apart
        } else {
            0.0
        };
        let (near, far) = (low.with_all_loads(&rows), high.with_all_loads(&rows));
        let points: Points = near
            .iter()
            .filter_map(|(users, slow)| {
                let (_, fast) = far.iter().find(|point| point.0 == *users)?;
                // Times are in the order of 1 / speed.
                Some((*users, 1.0 / ((1.0 - share) / slow + share / fast)))
            })
            .collect();
        if points.is_empty() {
            // No load is in both rows and none can be scaled: the nearer row alone.
            let near = if share < 0.5 { low } else { high };
            let mut notes = near.notes.clone();
            notes.push(said(near, near, &near.points));
            return Self {
                points: near.points.clone(),
                held_tokens: near.context,
                notes,
                context: near.context,
                seen,
                ..Self::default()
            };
        }
        let mut notes = if share < 0.5 { &low.notes } else { &high.notes }.clone();
        notes.push(said(low, high, &points));
        let context = match below.is_some() && above.is_some() {
            true => tokens,
            false => low.tokens(),
        };
        Self {
            points,
            held_tokens: Some(context),
            notes,
            context: Some(context),
            seen,
            ..Self::default()
        }
    }

    fn tokens(&self) -> f64 {
        self.context.unwrap_or(0.0)
    }

    fn speed(&self, users: f64) -> Option<f64> {
        let found = self.points.iter().find(|point| point.0 == users);
        found.map(|point| point.1)
    }

    /// The row's points, and at loads that it lacks those of the nearest row that has them, slower by
    /// as much as the largest load of both is: a longer context does not make a step faster, and a
    /// cliff seen at a short one is there at a long one.
    fn with_all_loads(&self, rows: &[&Self]) -> Points {
        let mut points = self.points.clone();
        let mut others = rows.to_vec();
        let off = |row: &Self| (row.tokens() - self.tokens()).abs();
        others.sort_by(|a, b| off(a).total_cmp(&off(b)));
        for row in others {
            let shared = self.points.iter().rev();
            let mut shared = shared.filter_map(|(users, own)| Some(own / row.speed(*users)?));
            let Some(times) = shared.next() else { continue };
            for (users, tok_s) in &row.points {
                if points.iter().all(|point| point.0 != *users) {
                    points.push((*users, tok_s * times));
                }
            }
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    }
}

/// Which rows were read, and which loads they lack.
fn said(low: &Sweep, high: &Sweep, points: &Points) -> String {
    let of = |row: &Sweep| thousands(row.tokens());
    let mut said = if low.tokens() < high.tokens() {
        format!(
            "step times between its rows of {} and {} tokens of context",
            of(low),
            of(high)
        )
    } else {
        format!("its row of {} tokens of context is read", of(low))
    };
    let lacks = |row: &Sweep| -> Vec<String> {
        let lacked = points.iter().filter(|point| row.speed(point.0).is_none());
        lacked.map(|point| point.0.to_string()).collect()
    };
    let rows = if low.tokens() < high.tokens() {
        &[low, high][..]
    } else {
        &[high][..]
    };
    for row in rows {
        let users = lacks(row);
        if !users.is_empty() {
            said += &format!(
                "; at {} users, not measured at {}, the nearest row that has them counts, scaled as the \
                 largest load of both rows is",
                users.join(", "),
                of(row)
            );
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::super::sweep_with_notes;

    const BY_CONTEXT: &str = r#"{"results": [
        {"concurrency": 1, "context_tokens": 0, "aggregate_tps": 59.0},
        {"concurrency": 8, "context_tokens": 0, "aggregate_tps": 251.5},
        {"concurrency": 1, "context_tokens": 16384, "aggregate_tps": 57.0},
        {"concurrency": 1, "context_tokens": 65536, "aggregate_tps": 55.0}]}"#;

    #[test]
    fn rows_without_a_load_in_common_are_read_alone_and_each_says_what_it_lacks() {
        let text = r#"{"results": [
            {"concurrency": 1, "context_tokens": 0, "aggregate_tps": 59.0},
            {"concurrency": 8, "context_tokens": 65536, "aggregate_tps": 200.0}]}"#;
        let sweep = sweep_with_notes(text, "f", None)
            .expect("a sweep")
            .at(20_000.0);
        assert_eq!(sweep.points, [(1.0, 59.0)]);
        let both = r#"{"results": [
            {"concurrency": 1, "context_tokens": 0, "aggregate_tps": 59.0},
            {"concurrency": 1, "context_tokens": 65536, "aggregate_tps": 50.0},
            {"concurrency": 8, "context_tokens": 65536, "aggregate_tps": 200.0}]}"#;
        let sweep = sweep_with_notes(both, "f", None)
            .expect("a sweep")
            .at(20_000.0);
        let notes = sweep.notes.join(" ");
        assert!(notes.contains("at 8 users, not measured at 0,"), "{notes}");
    }

    #[test]
    fn a_bench_over_contexts_is_read_at_the_one_asked_for() {
        let at = |tokens: f64| {
            let sweep = sweep_with_notes(BY_CONTEXT, "f", None).expect("a sweep");
            sweep.at(tokens)
        };
        let row = at(16384.0);
        assert!((row.points[0].1 - 57.0).abs() < 1e-9);
        assert_eq!(row.context, Some(16384.0));
        // Not measured there: slower than at an empty context by as much as one user is.
        assert!((row.points[1].1 - 251.5 * 57.0 / 59.0).abs() < 1e-9);
        let said = row.notes.concat();
        assert!(said.contains("row of 16,384 tokens"), "{said}");
        assert!(
            said.contains("at 8 users, not measured at 16,384"),
            "{said}"
        );
        let between = at(40960.0);
        let ms = (1000.0 / 57.0 + 1000.0 / 55.0) / 2.0;
        assert!((1000.0 / between.points[0].1 - ms).abs() < 1e-9);
        assert_eq!(between.context, Some(40960.0));
        let far = at(131_072.0);
        assert!((far.points[0].1 - 55.0).abs() < 1e-9);
        assert_eq!(far.context, Some(65536.0));
        assert!(far.points[1].1 < row.points[1].1);
    }
}
