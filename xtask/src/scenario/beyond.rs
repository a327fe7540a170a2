//! Acceptance of a head used beyond the context that its config says, where nobody measured it.

use spec_decode::acceptance::prior::PriorQuery;
use spec_decode::{AcceptancePrior, Chain, Posterior};

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

/// Context above which a fall was seen in a head measured by context, tokens: a choice between its 2.30 at 2k
/// and its 1.40 at 10k (speculators#684).
pub(super) const FALL_SEEN: u64 = 4096;

/// What a reach that is long enough leaves open.
pub(super) const LONGER_THAN_TRAINED: &str = "; a config may reach further than the head was trained: at \
    16k one accepted 1.09 tokens a pass that had 2.30 at 2k (speculators#684), which this band does not hold";

/// Why the accept length is low, as it stands under "assumed".
pub(super) fn told(reach: u64, context: u64) -> String {
    format!(
        ": the draft's config reaches {reach} tokens of {context}, and heads trained no longer fell \
         steeply beyond (to about 1.1); the upper end is one trained longer"
    )
}
