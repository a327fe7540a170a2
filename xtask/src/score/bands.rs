//! Area `bands`: every predicted speedup with its 90 % band, the bands learned from the other
//! groups. Coverage by situation, and width beside a constant band of the same coverage.

use std::collections::BTreeSet;
use std::path::Path;

use spec_decode::bands::{Residual, ResidualModel, Situation};

use super::speedup::law::Accept;
use super::speedup::{Runs, Scored};
use super::{Area, mean};

/// Complement of the coverage that the bands promise.
const ALPHA: f64 = 0.1;

/// One prediction with its band, in ln(speedup) around the prediction.
struct Judged {
    group: String,
    situation: Situation,
    outside: bool,
    /// ln(measured / predicted).
    error: f64,
    low: f64,
    high: f64,
}

impl Judged {
    fn covered(&self) -> bool {
        (self.low..=self.high).contains(&self.error)
    }

    /// Winkler's interval score: width, and 2 / alpha times what lies outside.
    fn score(&self) -> f64 {
        interval_score(self.low, self.high, self.error)
    }
}

fn interval_score(low: f64, high: f64, error: f64) -> f64 {
    high - low + 2.0 / ALPHA * ((low - error).max(0.0) + (error - high).max(0.0))
}

/// Every scored prediction of every situation.
pub(crate) fn collect(data: &Path) -> anyhow::Result<Vec<Scored>> {
    let runs = Runs::load(data)?;
    let mut all = runs.scored(Accept::Pooled)?;
    all.extend(runs.scored(Accept::Prior)?);
    all.extend(super::engine::scored(data)?.0);
    all.extend(super::scratch::scored(data, Accept::Pooled)?.0);
    all.extend(super::scratch::scored(data, Accept::Prior)?.0);
    all.extend(super::scratch::engine_scored(data)?.0);
    Ok(all)
}

/// Bands for `all`, those of a group learned from the other groups.
fn judge(all: &[Scored]) -> Vec<Judged> {
    let groups: BTreeSet<&str> = all.iter().map(|s| s.residual.group.as_str()).collect();
    let mut judged = Vec::with_capacity(all.len());
    for group in groups {
        let others: Vec<Residual> = all
            .iter()
            .filter(|s| s.residual.group != group)
            .map(|s| s.residual.clone())
            .collect();
        let model = ResidualModel::fit(&others);
        for row in all.iter().filter(|s| s.residual.group == group) {
            let band = row.band(&model);
            judged.push(Judged {
                group: group.to_string(),
                situation: row.residual.conditions.situation,
                outside: row.predicted.outside,
                error: -row.predicted.log_error(),
                low: (band.low / band.speedup).ln(),
                high: (band.high / band.speedup).ln(),
            });
        }
    }
    judged
}

/// Area `bands`.
pub(crate) fn score(data: &Path) -> anyhow::Result<Vec<Area>> {
    let judged = judge(&collect(data)?);
    let all: Vec<&Judged> = judged.iter().collect();
    let mut area = Area::new("bands");
    area.n = all.len();
    area.right = coverage(&all);
    area.width = relative_score(&all);
    area.notes.push(beside_constant(&all));
    area.notes.push(beside_learned_constant(&all));
    for situation in Situation::ALL {
        for outside in [false, true] {
            let part: Vec<&Judged> = judged
                .iter()
                .filter(|j| j.situation == situation && j.outside == outside)
                .collect();
            if part.is_empty() {
                continue;
            }
            let side = if outside {
                "beyond the sweep"
            } else {
                "inside or none"
            };
            area.notes.push(format!(
                "{situation}, {side}: n {}, coverage {:.3}, mean width {:.3}, width figure {:.2}",
                part.len(),
                coverage(&part).unwrap_or(f64::NAN),
                mean(&part.iter().map(|j| j.high - j.low).collect::<Vec<_>>()).unwrap_or(f64::NAN),
                relative_score(&part).unwrap_or(f64::NAN),
            ));
        }
    }
    Ok(vec![area])
}

fn coverage(judged: &[&Judged]) -> Option<f64> {
    let covered = judged.iter().filter(|j| j.covered()).count();
    (!judged.is_empty()).then(|| covered as f64 / judged.len() as f64)
}

/// Mean interval score over mean absolute error.
fn relative_score(judged: &[&Judged]) -> Option<f64> {
    let scores: Vec<f64> = judged.iter().map(|j| j.score()).collect();
    let errors: Vec<f64> = judged.iter().map(|j| j.error.abs()).collect();
    Some(mean(&scores)? / mean(&errors)?)
}

/// Our bands beside a constant band of the same coverage on the same rows.
fn beside_constant(judged: &[&Judged]) -> String {
    let errors: Vec<f64> = judged.iter().map(|j| j.error.abs()).collect();
    let covered = coverage(judged).unwrap_or(0.0);
    let half = super::quantile(&errors, covered).unwrap_or(f64::NAN);
    let constant: Vec<f64> = judged
        .iter()
        .map(|j| interval_score(-half, half, j.error))
        .collect();
    let width: Vec<f64> = judged.iter().map(|j| j.high - j.low).collect();
    format!(
        "mean width {:.3} beside {:.3} of a constant band of the same coverage {covered:.3}; \
         interval score {:.3} beside {:.3}",
        mean(&width).unwrap_or(f64::NAN),
        2.0 * half,
        mean(&judged.iter().map(|j| j.score()).collect::<Vec<_>>()).unwrap_or(f64::NAN),
        mean(&constant).unwrap_or(f64::NAN),
    )
}

/// The same beside a constant band learned as ours are: a group's from the others' errors, all at
/// the quantile that gives our coverage. The one above is read off the errors it is judged on.
fn beside_learned_constant(judged: &[&Judged]) -> String {
    let groups: BTreeSet<&str> = judged.iter().map(|j| j.group.as_str()).collect();
    let at = |level: f64| -> Vec<(f64, &Judged)> {
        let mut of_rows = Vec::with_capacity(judged.len());
        for group in &groups {
            let others: Vec<f64> = judged
                .iter()
                .filter(|j| j.group != *group)
                .map(|j| j.error.abs())
                .collect();
            let half = super::quantile(&others, level).unwrap_or(f64::NAN);
            let own = judged.iter().filter(|j| j.group == *group);
            of_rows.extend(own.map(|j| (half, *j)));
        }
        of_rows
    };
    let holds = |rows: &[(f64, &Judged)]| {
        let held = rows.iter().filter(|(half, j)| j.error.abs() <= *half);
        held.count() as f64 / rows.len().max(1) as f64
    };
    let wanted = coverage(judged).unwrap_or(0.0);
    let levels = (500..=1000).map(|l| f64::from(l) / 1000.0);
    let Some(rows) = levels.map(at).find(|rows| holds(rows) >= wanted) else {
        return "no constant band learned from other groups has that coverage".to_string();
    };
    let least = Situation::ALL.map(|s| {
        let of: Vec<(f64, &Judged)> = rows
            .iter()
            .filter(|r| r.1.situation == s)
            .copied()
            .collect();
        holds(&of)
    });
    let width: Vec<f64> = rows.iter().map(|(half, _)| 2.0 * half).collect();
    let scores = rows
        .iter()
        .map(|(half, j)| interval_score(-half, *half, j.error));
    format!(
        "a constant band learned from the other groups, as ours are: coverage {:.3} (situations \
         {:.3} to {:.3}), mean width {:.3}, interval score {:.3}",
        holds(&rows),
        least.iter().copied().fold(f64::INFINITY, f64::min),
        least.iter().copied().fold(0.0, f64::max),
        mean(&width).unwrap_or(f64::NAN),
        mean(&scores.collect::<Vec<_>>()).unwrap_or(f64::NAN),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::through::Told;
    use spec_decode::bands::{Scale, StepSource};

    #[test]
    fn the_interval_score_rewards_narrow_bands_that_hold() {
        assert!((interval_score(-0.1, 0.1, 0.0) - 0.2).abs() < 1e-12);
        assert!((interval_score(-0.1, 0.1, 0.2) - 2.2).abs() < 1e-12);
    }

    #[test]
    fn bands_learned_elsewhere_cover_what_they_promise() {
        let Some(data) = crate::step_time::tests_data() else {
            return;
        };
        let judged = judge(&collect(&data).unwrap_or_else(|e| panic!("{e:#}")));
        let all: Vec<&Judged> = judged.iter().collect();
        let overall = coverage(&all).unwrap_or(0.0);
        assert!((0.87..=0.94).contains(&overall), "{overall}");
        for situation in Situation::ALL {
            let part: Vec<&Judged> = judged.iter().filter(|j| j.situation == situation).collect();
            let covered = coverage(&part).unwrap_or(0.0);
            assert!((0.87..=0.94).contains(&covered), "{situation}: {covered}");
        }
    }

    #[test]
    fn shipped_bands_are_what_the_predictions_missed_by() {
        let Some(data) = crate::step_time::tests_data() else {
            return;
        };
        let (told, _) = super::super::through::all(&data).unwrap_or_else(|e| panic!("{e:#}"));
        let residuals: Vec<Residual> = told.iter().map(Told::residual).collect();
        let (learned, shipped) = (ResidualModel::fit(&residuals), ResidualModel::shipped());
        for step in [StepSource::Sweep, StepSource::Scratch] {
            let (new, old) = (learned.scale(step), shipped.scale(step));
            let parts = |s: &Scale| [s.reach, s.beyond, s.slower, s.up_share / 5.0];
            for (new, old) in parts(new).into_iter().zip(parts(old)) {
                assert!((new - old).abs() <= 0.01, "{step:?}: learned {learned:?}");
            }
        }
    }
}
