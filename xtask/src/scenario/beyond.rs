//! Acceptance of a head used beyond the context that its config says, or that it may have been trained on,
//! where nobody measured it.

use spec_decode::acceptance::prior::PriorQuery;
use spec_decode::{AcceptanceBand, AcceptancePrior, Chain, HeadKind, Posterior};

use super::Notes;
use crate::explain::speeds::same_context;
use crate::table::thousands;

/// The band of the accept length where nobody measured it. Its lower end holds a head that was trained on
/// short text, where this one may have been: `max_position_embeddings` is written by a template and says
/// nothing of training. The middle stays, as it does for heads that were trained long (MiniMax-M3 to 32k,
/// Kimi to 128k).
pub(crate) fn unmeasured_band(
    query: &PriorQuery,
    posterior: &Posterior,
    depth: u32,
    coverage: f64,
) -> AcceptanceBand {
    let band = posterior.band(depth, coverage);
    let short = AcceptancePrior::of_short_training(query);
    let short = short.and_then(|prior| Posterior::new(&prior, &[]).ok());
    let low = match (query.head, short) {
        // Where nothing repeats, nothing is copied.
        (HeadKind::NGram, _) => 1.0,
        (_, Some(short)) => short.band(depth, coverage).low.min(band.low),
        (_, None) => band.low,
    };
    AcceptanceBand { low, ..band }
}

/// Says that an accept length is taken for one of this context, where a head may fall with it, and what its
/// place, with the tokens that requests held there, does not show.
pub(super) fn note_context(
    unknown: &super::acceptance::Unknown,
    length: f64,
    (place, held_tokens): (&str, Option<f64>),
    notes: &mut Notes,
) {
    let context = unknown.context;
    let query = PriorQuery {
        context_tokens: Some(context as f64),
        ..unknown.query
    };
    let as_long = |held: f64| held > context as f64 || same_context(held, context as f64);
    if held_tokens.is_some_and(as_long) || !query.may_be_trained_short() {
        return;
    }
    let tokens = thousands(context as f64);
    let place = match place.rsplit_once(':') {
        Some((file, _)) => file,
        None => place,
    };
    let taken = match held_tokens {
        Some(held) => format!(
            "measured at {} tokens of context ({place}), taken at {tokens}",
            thousands(held)
        ),
        None => {
            format!("as measured at {tokens} tokens of context, which {place} does not say")
        }
    };
    notes.assume(
        format!(
            "accept length {length:.2} {taken}: at 16k one accepted 1.09 that had 2.30 at 2k (speculators#684)"
        ),
        format!("an accept length of requests of {tokens} tokens"),
    );
}

/// A prior that falls beyond the head's reach.
#[derive(Debug, Clone)]
pub(super) struct Beyond {
    /// What is known of the head, without a context.
    pub(super) query: PriorQuery,
    /// Tokens that the head's config reaches.
    pub(super) reach: u64,
}

impl Beyond {
    /// The prior of a head that was trained no longer than its config reaches.
    fn prior(&self, context: u64) -> AcceptancePrior {
        let mut query = self.query;
        query.context_tokens = Some(context as f64);
        query.trained_context_tokens = Some(self.reach as f64);
        AcceptancePrior::new(&query)
    }

    /// The chain that is expected at a context.
    pub(super) fn chain(&self, context: u64) -> Chain {
        let prior = self.prior(context);
        Chain::new(prior.level.mean, prior.slope.mean)
    }

    /// The band at a context. The middle falls, as it did in every report on heads whose config is
    /// shorter than the text (speculators#684 and sglang#6783; arXiv 2510.07535: 0.81x). The upper
    /// end is `within`'s: a config may say less than the training had, and heads trained long stay.
    pub(super) fn band(
        &self,
        depth: u32,
        context: u64,
        within: (f64, f64, f64),
    ) -> (f64, f64, f64) {
        let (low, mid, high) = within;
        let Ok(fallen) = Posterior::new(&self.prior(context), &[]) else {
            return within;
        };
        let fallen = fallen.band(depth, 0.9);
        (low.min(fallen.low), mid.min(fallen.mid), high)
    }
}

/// What the lower end holds where nothing says how long a head was trained.
pub(super) const TRAINED_SHORT: &str = ": the low end is a head trained on short text, whatever its config \
    reaches, as recipes take 2,048 to 4,096 tokens (EAGLE traineagle3, SpecForge train_eagle3.py): at 16k one \
    accepted 1.09 that had 2.30 at 2k (speculators#684)";

/// Why the accept length is low, as it stands under "assumed".
pub(super) fn told(reach: u64, context: u64) -> String {
    format!(
        ": the draft's config reaches {reach} tokens of {context}, and heads trained no longer fell \
         steeply beyond (to about 1.1); the upper end is one trained longer"
    )
}
