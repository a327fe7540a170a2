//! Acceptance of n-gram look-up in vLLM: it counts a draft only where something to copy was found
//! (`make_spec_decoding_stats`), so that the length it prints is not of all passes.

use super::accept::{AcceptReading, LogAcceptance, VllmAcceptance};
use super::facts::Facts;
use super::text::{Doc, leading_number, number_after};

/// What every pass gave, those without a draft in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AllPasses {
    /// Tokens a pass.
    pub(crate) accept_length: f64,
    /// Passes, summed over sequences.
    pub(crate) passes: f64,
}

/// What is said where totals are not told.
pub(crate) const UPPER_BOUND: &str = "is of passes that found something to copy (vLLM counts no others): an upper bound of all passes'";

/// How the note of a length made from totals begins.
pub(crate) const OVER_ALL: &str = "over all passes";

/// Whether the log says that its drafts are copied.
pub(super) fn told(facts: &Facts) -> bool {
    let algorithm = facts.text("spec_algorithm");
    algorithm.is_some_and(crate::scenario::merge::is_look_up)
}

/// A pass gives one token beside those accepted.
fn of_totals(generated: f64, accepted: f64) -> Option<AllPasses> {
    let passes = generated - accepted;
    let sound = passes.is_finite() && passes >= 1.0 && accepted >= 0.0;
    sound.then(|| AllPasses {
        accept_length: generated / passes,
        passes,
    })
}

/// Of the counters on a page of `/metrics`.
pub(super) fn of_page(text: &str) -> Option<AllPasses> {
    let page = crate::verify_hw::metrics::parse(text);
    let page = Some(page).filter(|page| page.engine == Some("vllm"))?;
    of_totals(page.generated?, page.accepted?)
}

/// Of a server's lines from one on: generation throughput by the time between lines, which tokens
/// drafted over their throughput tell.
pub(super) fn of_lines(doc: &Doc, from: usize) -> Option<AllPasses> {
    let own = |phrase| {
        doc.after_all(phrase)
            .filter(move |at| doc.line_at(*at) >= from)
    };
    let (mut accepted, mut times_s) = (0.0, Vec::new());
    for at in own("SpecDecoding metrics:") {
        let window = doc.window(at, 4000);
        let window = window.split("SpecDecoding metrics:").next().unwrap_or("");
        accepted += number_after(window, "Accepted:")?;
        let drafted =
            number_after(window, "Drafted:").zip(number_after(window, "Drafted throughput:"));
        times_s.extend(
            drafted
                .filter(|(_, a_s)| *a_s > 0.0)
                .map(|(n, a_s)| n / a_s),
        );
    }
    // A line is left out where nothing was found: the usual time is the shortest.
    let time_s = crate::score::quantile(&times_s, 0.25)?;
    let speeds = own("Avg generation throughput:");
    let speeds = speeds.filter_map(|at| Some(leading_number(doc.window(at, 40))?.0));
    of_totals(speeds.sum::<f64>() * time_s, accepted)
}

/// The facts of a server that copies its drafts.
pub(super) fn put(doc: &Doc, found: &VllmAcceptance, facts: &mut Facts) {
    let hits = found.accept_length;
    let all = of_lines(doc, facts.run_line).filter(|all| all.accept_length <= hits * 1.02);
    let Some(all) = all else {
        facts.set("accept_length_of_hits", hits, found.line);
        return;
    };
    let how = format!(
        "tokens generated over those less the accepted: of all passes; {hits:.2} where something to copy was found"
    );
    facts.derive(
        "accept_length",
        all.accept_length.min(hits),
        found.line,
        how,
    );
    facts.set(
        "accept_length_source",
        "vllm generated over passes",
        found.line,
    );
    if found.by_position {
        facts.set("accept_rates", "by position", found.line);
    }
}

impl LogAcceptance {
    /// As of look-up: over all passes where the totals are told; else it still counts drafts alone.
    pub(crate) fn of_look_up(mut self) -> Self {
        if !self.counts_drafts {
            return self;
        }
        let hits = self.accept_length;
        let Some(all) = self
            .all_passes
            .filter(|all| hits > 1.0 && all.accept_length <= hits * 1.02)
        else {
            self.notes
                .push(format!("accept length {hits:.2} {UPPER_BOUND}"));
            return self;
        };
        let share = ((all.accept_length - 1.0) / (hits - 1.0)).clamp(0.0, 1.0);
        self.accept_length = 1.0 + share * (hits - 1.0);
        self.reading = match self.reading {
            AcceptReading::Rates(rates) => {
                AcceptReading::Rates(rates.iter().map(|rate| rate * share).collect())
            }
            AcceptReading::Length { depth, .. } | AcceptReading::Counts { depth, .. } => {
                AcceptReading::Length {
                    accept_length: self.accept_length,
                    depth,
                }
            }
        };
        self.passes = Some(all.passes);
        self.counts_drafts = false;
        let how = "tokens generated over those less the accepted";
        self.notes.push(format!(
            "{OVER_ALL}: {how} ({hits:.2} where something to copy was found)"
        ));
        self
    }
}
