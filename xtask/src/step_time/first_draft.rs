//! The first draft step of a cycle does more than the others: it runs over every token that was
//! just verified, whose hidden states it also projects (EAGLE-3). Draft steps of engines were
//! fitted as a whole, with this in them; a draft in one graph pays it as it is.

use super::layer::Batch;
use super::{Draft, LayerKind, Rank, Server, context_bounded, gemm, op};
use kvplan::{Ffn, Layer, Sharding};

impl Server<'_> {
    /// Whether the draft's feed-forward weights have as many bytes as the target's.
    pub(crate) fn widths_alike(&self, draft: Draft<'_>) -> bool {
        let Draft::Head(head) = draft else {
            return true;
        };
        let width = |layers: &[Layer]| {
            let layer = layers.last()?;
            let format = match layer.ffn {
                Ffn::Moe(_) => layer.formats.experts,
                _ => layer.formats.dense,
            };
            Some(format.bytes_per_param())
        };
        width(&head.layers) == width(&self.model.layers)
    }

    /// What the first draft step costs beyond [`Server::draft`], where `tokens` tokens a sequence
    /// were verified, ms. The output head runs for one token a sequence in both.
    pub(crate) fn first_draft_more_ms(
        &self,
        draft: Draft<'_>,
        draft_tp: u64,
        sequences: f64,
        tokens: f64,
        context: f64,
    ) -> f64 {
        let over = |tokens: f64| Batch {
            sequences,
            tokens,
            rows: sequences * tokens,
            context: context_bounded(context),
            passes: 1.0,
            shared_prefix: 0.0,
        };
        let Draft::Head(head) = draft else {
            let layers = |tokens: f64| self.layers(&self.rank, &self.mtp_kinds, &over(tokens));
            let modules = self.model.mtp_modules.max(1) as f64;
            return (layers(tokens).total() - layers(1.0).total()).max(0.0) / modules;
        };
        let rank = Rank {
            sharding: Sharding::tp(draft_tp),
            hidden: head.hidden as f64,
            ..self.rank
        };
        let kinds = LayerKind::of(&head.layers);
        let layers = |tokens: f64| self.layers(&rank, &kinds, &over(tokens)).total();
        let width = head
            .draft
            .map_or(0.0, |d| d.target_hiddens as f64 * d.target_hidden as f64);
        let numbers = op::Numbers::of(head.base_format, rank.gpu);
        let project = gemm::gemm(rank.gpu, &numbers, sequences * tokens, rank.hidden, width);
        let more = layers(tokens) - layers(1.0) + self.dense_parts(project).total();
        if more.is_finite() { more.max(0.0) } else { 0.0 }
    }
}
