//! `acceptance.prior`: nothing measured. Share of accept lengths inside the 90 % band, the band's
//! width, and what one constant interval of the same coverage would need.

use std::collections::BTreeMap;

use serde_json::Value;
use spec_decode::acceptance::fit::{LevelFit, LevelRow};
use spec_decode::acceptance::prior::slope_of;
use spec_decode::{AcceptanceBand, AcceptancePrior, Chain, Posterior, PriorQuery};

use super::{head_of, query_of};
use crate::score::{Area, mean, quantile};

/// Left out of the fit (but scored): the report does not say which model it is of.
const NOT_FITTED: [&str; 1] = ["sglang#21599"];

struct Row {
    source: String,
    pair: String,
    curve: String,
    query: PriorQuery,
    depth: u32,
    accept_length: f64,
}

/// Chains with an accept length; trees and impossible figures are counted as skipped.
fn read(measurements: &[Value]) -> (Vec<Row>, usize) {
    let mut rows = Vec::new();
    let mut skipped = 0;
    for row in measurements {
        let Some(accept_length) = row["tau"].as_f64() else {
            continue;
        };
        let text = |key: &str| row[key].as_str().unwrap_or_default();
        let depth = row["steps"].as_u64().and_then(|d| u32::try_from(d).ok());
        let (Some(head), Some(depth), Some(1)) = (head_of(row), depth, row["topk"].as_u64()) else {
            skipped += 1;
            continue;
        };
        if !(1.0..=f64::from(depth) + 1.0).contains(&accept_length) {
            skipped += 1;
            continue;
        }
        let pair = format!("{}|{}|{}", text("source"), text("model"), text("draft"));
        let query = query_of(row, head);
        let temperature = query.temperature;
        rows.push(Row {
            source: text("source").to_string(),
            curve: format!("{pair}|{}|{}|{temperature:?}", head.name(), text("dataset")),
            pair,
            query,
            depth,
            accept_length,
        });
    }
    (rows, skipped)
}

/// One level per curve: the mean over its depths.
fn levels(rows: &[&Row]) -> Vec<LevelRow> {
    let mut curves: BTreeMap<&str, (Vec<f64>, &Row)> = BTreeMap::new();
    for row in rows {
        let slope = slope_of(&row.query).mean;
        let Ok(chain) = Chain::with_slope(row.accept_length, row.depth, slope) else {
            continue;
        };
        let entry = curves.entry(&row.curve).or_insert((Vec::new(), row));
        // A saturated or dead curve says "high" or "low", not how far.
        entry.0.push(chain.level.clamp(-2.0, 4.0));
    }
    curves
        .into_values()
        .filter_map(|(levels, row)| {
            Some(LevelRow {
                head: row.query.head,
                task: row.query.task,
                temperature: row.query.temperature.unwrap_or(0.0),
                level: mean(&levels)?,
                pair: row.pair.clone(),
            })
        })
        .collect()
}

/// What the single rows say.
#[derive(Default)]
struct Tally {
    inside: Vec<f64>,
    shipped_inside: Vec<f64>,
    widths: Vec<f64>,
    errors: Vec<f64>,
    by_pair: BTreeMap<String, Vec<f64>>,
}

/// The 90 % bands of priors, each posterior made once.
#[derive(Default)]
struct Bands(BTreeMap<String, Posterior>);

impl Bands {
    fn of(&mut self, prior: &AcceptancePrior, depth: u32) -> Option<AcceptanceBand> {
        let key = format!("{:?} {:?}", prior.level, prior.slope);
        if !self.0.contains_key(&key) {
            self.0.insert(key.clone(), Posterior::new(prior, &[]).ok()?);
        }
        Some(self.0.get(&key)?.band(depth, 0.9))
    }
}

fn fittable(row: &&Row) -> bool {
    !NOT_FITTED.contains(&row.source.as_str())
}

fn tally(rows: &[Row]) -> Tally {
    let mut fits: BTreeMap<&str, LevelFit> = BTreeMap::new();
    let mut bands = Bands::default();
    let mut tally = Tally::default();
    for row in rows {
        let fit = fits.entry(&row.source).or_insert_with(|| {
            let rest: Vec<&Row> = rows
                .iter()
                .filter(|r| r.source != row.source)
                .filter(fittable)
                .collect();
            LevelFit::new(&levels(&rest))
        });
        let query = &row.query;
        let shipped = AcceptancePrior::new(query);
        let mut refitted = shipped.clone();
        refitted.level.mean = fit.level(query.head, query.task, query.temperature.unwrap_or(0.0));
        let ours = bands.of(&refitted, row.depth);
        let (Some(ours), Some(as_shipped)) = (ours, bands.of(&shipped, row.depth)) else {
            continue;
        };
        let hit = |band: &AcceptanceBand| {
            f64::from(u8::from(
                (band.low..=band.high).contains(&row.accept_length),
            ))
        };
        tally.inside.push(hit(&ours));
        tally.shipped_inside.push(hit(&as_shipped));
        tally.widths.push(ours.width());
        tally.errors.push((ours.mid / row.accept_length).ln().abs());
        let pair = tally.by_pair.entry(row.pair.clone()).or_default();
        pair.push(hit(&ours));
    }
    tally
}

pub(super) fn area(measurements: &[Value]) -> Area {
    let (rows, skipped) = read(measurements);
    let tally = tally(&rows);
    let mut area = Area::new("acceptance.prior").with_errors(&tally.errors);
    area.skipped = skipped;
    area.right = mean(&tally.inside);
    area.width = mean(&tally.widths);
    let coverage = area.right.unwrap_or(0.9);
    let pairs: Vec<f64> = tally.by_pair.values().filter_map(|h| mean(h)).collect();
    let all: Vec<&Row> = rows.iter().filter(fittable).collect();
    let named: Vec<String> = LevelFit::new(&levels(&all))
        .named()
        .iter()
        .map(|(name, value)| format!("{name} {value:+.2}"))
        .collect();
    area.notes = vec![
        "chains with an accept length; level fitted without the row's source; trees skipped".into(),
        format!(
            "coverage, each target-draft pair counted once: {}",
            shown(mean(&pairs))
        ),
        format!(
            "coverage of the shipped figures, in sample: {}",
            shown(mean(&tally.shipped_inside))
        ),
        format!(
            "one constant interval of the same coverage is {} wide",
            shown(constant_width(&rows, coverage, false))
        ),
        format!(
            "one constant interval for each depth, of the same coverage: {}",
            shown(constant_width(&rows, coverage, true))
        ),
        format!("levels fitted on all rows: {}", named.join(", ")),
    ];
    area
}

/// Mean width of the central interval with this coverage, over all rows or by depth.
fn constant_width(rows: &[Row], coverage: f64, by_depth: bool) -> Option<f64> {
    let tail = 0.5 * (1.0 - coverage);
    let width = |depth: Option<u32>| {
        let lengths: Vec<f64> = rows
            .iter()
            .filter(|r| depth.is_none_or(|d| r.depth == d))
            .map(|r| r.accept_length)
            .collect();
        Some(quantile(&lengths, 1.0 - tail)? - quantile(&lengths, tail)?)
    };
    let widths: Vec<f64> = rows
        .iter()
        .filter_map(|r| width(by_depth.then_some(r.depth)))
        .collect();
    mean(&widths)
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_string(), |v| format!("{v:.3}"))
}
