//! Which releases of SGLang have the server arguments that a log prints: read from the releases
//! themselves (`xtask/catalog/sglang_arguments.toml`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

use serde::Deserialize;

/// A release.
pub(crate) type Version = (u32, u32, u32);

/// The first release that may have printed something, and the first that no longer does.
pub(crate) type Bounds = (Option<Version>, Option<Version>);

/// The table as text, compiled in.
const CATALOG: &str = include_str!("../../catalog/sglang_arguments.toml");

#[derive(Debug, Default, Deserialize)]
struct Catalog {
    /// Releases and the months in which they were built, oldest first.
    read: Vec<(String, String)>,
    /// Spans of releases, fields that these have.
    fields: BTreeMap<String, String>,
}

/// The table by field: the releases that have it, by their place among those read.
#[derive(Debug, Default)]
struct Table {
    read: Vec<(Version, (u32, u32))>,
    fields: BTreeMap<String, Vec<Range<usize>>>,
}

fn table() -> &'static Table {
    static ALL: OnceLock<Table> = OnceLock::new();
    ALL.get_or_init(|| Table::of(&toml::from_str(CATALOG).unwrap_or_default()))
}

impl Table {
    fn of(catalog: &Catalog) -> Self {
        let month = |text: &str| {
            let (year, month) = text.split_once('-')?;
            Some((year.parse().ok()?, month.parse().ok()?))
        };
        let release = |(name, built): &(String, String)| {
            Some((crate::scenario::releases::number(name)?, month(built)?))
        };
        let place = |name: &str| catalog.read.iter().position(|(read, _)| read == name);
        let span = |span: &str| {
            let (from, until) = span.split_once("..").unwrap_or((span, ""));
            Some(place(from)?..place(until).unwrap_or(catalog.read.len()))
        };
        let mut fields = BTreeMap::new();
        for (spans, names) in &catalog.fields {
            let spans: Vec<Range<usize>> = spans.split_whitespace().filter_map(span).collect();
            for name in names.split_whitespace() {
                fields.insert(name.to_string(), spans.clone());
            }
        }
        let read = catalog.read.iter().filter_map(release).collect();
        Self { read, fields }
    }

    fn version(&self, place: usize) -> Option<Version> {
        self.read.get(place).map(|(version, _)| *version)
    }

    /// The release behind the one at a place, and behind what was mended in it.
    fn next(&self, place: usize) -> Option<Version> {
        let own = self.version(place)?;
        let mut later = self.read.iter().map(|(version, _)| *version);
        later.find(|version| *version > own)
    }

    /// The newest release up to `last` all of whose fields are among these: a whole print of one has
    /// them all.
    fn whole(&self, names: &[&str]) -> Option<usize> {
        let has = |place: usize| {
            let mut own = self.fields.iter().filter(|(_, spans)| within(spans, place));
            own.all(|(name, _)| names.contains(&name.as_str()))
        };
        (0..self.read.len()).rev().find(|place| has(*place))
    }
}

fn within(spans: &[Range<usize>], place: usize) -> bool {
    spans.iter().any(|span| span.contains(&place))
}

/// Which releases may have printed these fields. A build of between two releases has fields of the later
/// one beside some that it lost.
pub(super) fn bounds(names: &[&str]) -> Bounds {
    let table = table();
    let spans = || names.iter().filter_map(|name| table.fields.get(*name));
    let first = spans().filter_map(|spans| spans.first().map(|span| span.start));
    let first = first.max().unwrap_or(0);
    let last = spans().filter_map(|spans| spans.last().map(|span| span.end));
    let mut end = last.min().unwrap_or(table.read.len());
    if let Some(whole) = table.whole(names).filter(|whole| *whole >= first) {
        end = end.min(whole + 1);
    }
    let (first, behind) = match first < end {
        true => (first, end.checked_sub(1)),
        false => (end.saturating_sub(1), Some(first)),
    };
    let from = table.version(first).filter(|_| first > 0);
    (from, behind.and_then(|place| table.next(place)))
}

/// The last release before a version, of those that were read.
pub(super) fn last_before(version: Version) -> Option<Version> {
    let known = table().read.iter().map(|(read, _)| *read);
    known.filter(|read| *read < version).max()
}

/// The newest release that was built by a year and month, of those that were read.
pub(crate) fn newest_sglang_by(month: (u32, u32)) -> Option<Version> {
    let known = table().read.iter();
    let out = known.filter(|(_, built)| *built <= month);
    out.map(|(version, _)| *version).max()
}

/// The year and month in which a release was built.
pub(super) fn built(version: Version) -> Option<(u32, u32)> {
    let mut known = table().read.iter();
    known
        .find(|(read, _)| *read == version)
        .map(|(_, month)| *month)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that a release prints, as far as it dates.
    fn print_of(name: &str) -> Vec<&'static str> {
        let catalog: Catalog = toml::from_str(CATALOG).expect("reads");
        let place = catalog.read.iter().position(|(read, _)| read == name);
        let place = place.expect("read");
        let own = table()
            .fields
            .iter()
            .filter(|(_, spans)| within(spans, place));
        own.map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn a_whole_print_is_of_one_release_and_a_part_of_it_of_no_other() {
        let catalog: Catalog = toml::from_str(CATALOG).expect("reads");
        assert_eq!(table().read.len(), catalog.read.len());
        for (name, _) in &catalog.read {
            let own = crate::scenario::releases::number(name).expect("a release");
            let all = print_of(name);
            let inside = |names: &[&str]| {
                let (from, before) = bounds(names);
                from.is_none_or(|from| from <= own) && before.is_none_or(|before| own < before)
            };
            assert!(inside(&all), "{name}: {:?}", bounds(&all));
            for step in [2, 7, 40] {
                let part: Vec<&str> = all.iter().copied().step_by(step).collect();
                assert!(inside(&part), "{name}: {:?}", bounds(&part));
            }
        }
        for name in ["0.5.2", "0.5.6.post2", "0.5.9", "0.5.13", "0.5.16"] {
            let own = crate::scenario::releases::number(name);
            let (from, before) = bounds(&print_of(name));
            assert_eq!((from, before.and_then(last_before)), (own, own), "{name}");
        }
    }

    #[test]
    fn a_build_between_two_releases_is_taken_for_the_later_one() {
        let mut names = print_of("0.5.6.post2");
        names.push("disaggregation_decode_enable_fake_auto");
        let (from, before) = bounds(&names);
        assert_eq!(
            (from, before.and_then(last_before)),
            (Some((0, 5, 6)), Some((0, 5, 7)))
        );
        assert_eq!(bounds(&["cuda_graph_max_bs"]), (None, Some((0, 5, 14))));
        assert_eq!(bounds(&["model_path"]), (None, None));
    }
}
