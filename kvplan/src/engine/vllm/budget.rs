//! What the utilisation's share is spent on, and how far the pool that is left may be off.

use super::measured::{self, activation_gib, non_torch_gib};
use super::workspace::sparse_workspace_gib;
use super::{
    ACTIVATION_SPREAD, GRAPHS_SPREAD, OUTSIDE_TORCH_SPREAD, POOL_OFF_SHARE, batched_tokens,
    default_utilisation, graphs, graphs_counted, max_seqs, seen, v1,
};
use crate::GIB;
use crate::groups::Groups;
use crate::parts::{self, DraftParts};
use crate::setup::Setup;

/// The parts of the budget, GiB.
pub(super) struct Budget {
    pub(super) total: f64,
    pub(super) utilisation: f64,
    pub(super) draft: DraftParts,
    pub(super) draft_counted: bool,
    pub(super) activation: f64,
    /// What the estimates have too much beside a pool that was seen; negative.
    pub(super) over: f64,
    /// What they have too little beside it, where that is more than all of them may be off.
    pub(super) unexplained: f64,
    pub(super) workspace: f64,
    pub(super) non_torch: f64,
    pub(super) graphs: f64,
    pub(super) draft_graphs: f64,
    pub(super) graphs_counted: bool,
    pub(super) outside: f64,
    pub(super) rest: f64,
    /// How far that may be off, as a 90 % band; 0 for a pool that was seen.
    pub(super) rest_off: f64,
}

impl Budget {
    /// The pool at the low end of its band, GiB.
    pub(super) fn low_gib(&self) -> f64 {
        self.rest - self.rest_off
    }

    /// How far the estimates inside the utilisation put the pool off, each by itself; what a log prints is
    /// none.
    fn off_in_squares(&self, setup: &Setup<'_>) -> f64 {
        let graphs = match self.graphs_counted {
            true => measured::graphs_off_gib(setup),
            false => 0.0,
        };
        measured::activation_off_gib(setup, self.activation)
            .hypot(OUTSIDE_TORCH_SPREAD * self.workspace)
            .hypot(measured::non_torch_off_gib(setup, self.non_torch))
            .hypot(graphs)
    }

    /// How far the estimates inside the utilisation may be off together, GiB.
    pub(super) fn off(&self) -> f64 {
        let graphs = if self.graphs_counted {
            self.graphs + self.draft_graphs
        } else {
            0.0
        };
        ACTIVATION_SPREAD * self.activation
            + OUTSIDE_TORCH_SPREAD * (self.workspace + self.non_torch)
            + GRAPHS_SPREAD * graphs
    }
}

/// The budget of a server that is told to take requests of a length.
pub(super) fn budget(setup: &Setup<'_>, weights_gib: f64, longest: u64) -> Budget {
    let version = setup.engine.version;
    let total = parts::torch_total_gib(setup);
    let draft = setup.speculation.map_or_else(DraftParts::default, |spec| {
        parts::draft_parts(setup, &spec, false)
    });
    // V0 did not profile the draft; V1 loads it inside the model.
    let draft_counted = v1(version);
    let (graphs, draft_graphs) = graphs::gib(setup, max_seqs(setup));
    let non_torch = non_torch_gib(setup);
    let mut b = Budget {
        total,
        utilisation: setup
            .fraction
            .unwrap_or_else(|| default_utilisation(version)),
        draft,
        draft_counted,
        activation: activation_gib(setup),
        over: 0.0,
        unexplained: 0.0,
        workspace: sparse_workspace_gib(setup, longest),
        non_torch,
        graphs,
        draft_graphs,
        graphs_counted: graphs_counted(setup),
        outside: 0.0,
        rest: 0.0,
        rest_off: 0.0,
    };
    let mut used = weights_gib + b.activation + b.workspace + b.non_torch;
    let draft_weights = (draft.weight_bytes + draft.table_bytes) / GIB;
    let draft_weights = if draft_counted { draft_weights } else { 0.0 };
    used += draft_weights;
    if b.graphs_counted {
        used += graphs + draft_graphs;
    } else {
        b.outside += graphs + draft_graphs;
    }
    b.rest = b.total * b.utilisation - used;
    b.rest_off = b.off_in_squares(setup);
    let graphs_inside = b.graphs_counted.then_some(graphs + draft_graphs);
    if let Some(moved) = seen::pool(setup, b.total, draft_weights, graphs_inside) {
        let pool = moved.gib;
        b.rest_off = moved.off_gib;
        // The log's pool wins; what is unexplained goes to the activation line as far as that can be.
        if setup.fraction.is_some() && b.rest - pool > b.off().max(POOL_OFF_SHARE * b.total) {
            b.unexplained = b.rest - pool;
        } else if setup.fraction.is_some() {
            b.activation += b.rest - pool;
            b.over = b.activation.min(0.0);
            b.activation -= b.over;
        } else {
            b.utilisation += (pool - b.rest) / b.total;
        }
        b.rest = pool;
    }
    b
}

/// The budget and the blocks of its pool of a server that takes requests of the length it is told,
/// or, where its pool does not hold one, of the context alone: it must be told less then.
pub(super) fn of_length(setup: &Setup<'_>, weights_gib: f64, groups: &Groups) -> (Budget, u64) {
    let told = |longest: u64| {
        let b = budget(setup, weights_gib, longest);
        let blocks = groups.blocks((b.rest * GIB).max(0.0));
        (b, blocks)
    };
    let served = setup.served();
    let of_rank = served.div_ceil(setup.sharding.dcp.max(1));
    let needed = groups.request_blocks(of_rank, batched_tokens(setup));
    Some(told(served))
        .filter(|(_, blocks)| needed <= *blocks)
        .unwrap_or_else(|| told(setup.context()))
}
