//! Draft trees: their expected accept length under a rank model, the trees that engines build
//! (EAGLE-2 and 3: expand the best of each layer, then keep the best of all), the best tree under
//! a node budget, and what was measured of small ones.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::acceptance::chain::Chain;

/// Largest node budget that is computed; engines stop at a few hundred.
pub const MAX_NODES: u32 = 512;

/// Share that rank j takes of the probability that the ranks before it leave, fitted on two
/// measured trees of 63 nodes (Llama-3.1-8B, MT-bench: 5.39 and 4.68 against a chain of 3.9).
pub const RUNNER_UP_SHARE: f64 = 0.3;

/// P(the target's token is the rank-j child | the path to the parent is accepted).
///
/// Rank 1 is the chain's acceptance of that position; every further rank takes a share of what is
/// left, and never more than the rank before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankModel {
    /// Acceptance of the best child by position.
    pub chain: Chain,
    /// Share of the remainder that each further rank takes, 0 to 1.
    pub runner_up_share: f64,
}

impl RankModel {
    /// The chain with the default share.
    pub fn new(chain: Chain) -> Self {
        Self {
            chain,
            runner_up_share: RUNNER_UP_SHARE,
        }
    }

    /// Probabilities of ranks `1 ..= ranks` at a depth (from 1); they fall and sum to at most 1.
    pub fn ranks(&self, depth: u32, ranks: u32) -> Vec<f64> {
        let share = self.runner_up_share.clamp(0.0, 1.0);
        let mut last = self.chain.alpha(depth);
        let mut left = 1.0 - last;
        let mut result = Vec::with_capacity(ranks.min(MAX_NODES) as usize);
        for rank in 1..=ranks.min(MAX_NODES) {
            if rank > 1 {
                last = (share * left).min(last);
                left -= last;
            }
            result.push(last);
        }
        result
    }
}

/// A drafted token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Node {
    /// Index of the parent in the tree; `None` under the root.
    pub parent: Option<usize>,
    /// Rank among its siblings by the draft's probability, from 1.
    pub rank: u32,
    /// Position, from 1.
    pub depth: u32,
    /// P(the whole path to it is accepted) under the model it was built with.
    pub path_probability: f64,
}

/// Drafted tokens, parents before children; the root (the token just sampled) is not among them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tree {
    /// The nodes.
    pub nodes: Vec<Node>,
}

impl Tree {
    /// A chain as a tree.
    pub fn chain(model: &RankModel, depth: u32) -> Self {
        let mut path_probability = 1.0;
        let nodes = (1..=depth.min(MAX_NODES))
            .map(|position| {
                path_probability *= model.chain.alpha(position);
                Node {
                    parent: (position as usize).checked_sub(2),
                    rank: 1,
                    depth: position,
                    path_probability,
                }
            })
            .collect();
        Self { nodes }
    }

    /// Tokens per verify, bonus included: 1 + Σ P(path), exact for any tree. The paths are
    /// multiplied up under the given model, which need not be the one that built the tree.
    pub fn accept_length(&self, model: &RankModel) -> f64 {
        let mut path = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let above = node
                .parent
                .and_then(|p| path.get(p).copied())
                .unwrap_or(1.0);
            let own = model.ranks(node.depth, node.rank);
            path.push(above * own.last().copied().unwrap_or(0.0));
        }
        1.0 + path.iter().sum::<f64>()
    }

    /// Deepest position, 0 for no nodes.
    pub fn depth(&self) -> u32 {
        self.nodes.iter().map(|n| n.depth).max().unwrap_or(0)
    }
}

/// The tree that EAGLE-2/3 engines verify: each layer expands its `topk` best nodes into `topk`
/// children, and of all `topk + (steps - 1) topk²` candidates the best `draft_tokens - 1` stay.
/// The draft is taken to be calibrated: it ranks by the model's own path probability.
pub fn dynamic_tree(model: &RankModel, steps: u32, topk: u32, draft_tokens: u32) -> Tree {
    let topk = topk.clamp(1, 64);
    let mut candidates: Vec<Node> = Vec::new();
    let mut frontier: Vec<(Option<usize>, f64)> = vec![(None, 1.0)];
    for depth in 1..=steps.min(64) {
        let ranks = model.ranks(depth, topk);
        let first = candidates.len();
        for &(parent, above) in &frontier {
            for (rank, p) in (1u32..).zip(&ranks) {
                candidates.push(Node {
                    parent,
                    rank,
                    depth,
                    path_probability: above * p,
                });
            }
        }
        let mut layer: Vec<usize> = (first..candidates.len()).collect();
        layer.sort_by(|&a, &b| by_probability(&candidates[a], &candidates[b]));
        frontier = layer
            .into_iter()
            .take(topk as usize)
            .map(|i| (Some(i), candidates[i].path_probability))
            .collect();
    }
    keep_best(
        candidates,
        draft_tokens.saturating_sub(1).min(MAX_NODES) as usize,
    )
}

/// Higher probability first, shallower first among equals (so that a parent precedes its child).
fn by_probability(a: &Node, b: &Node) -> Ordering {
    b.path_probability
        .total_cmp(&a.path_probability)
        .then(a.depth.cmp(&b.depth))
}

/// Keeps the best nodes and rewires parents. A child is never likelier than its parent, so the
/// parents of kept nodes are kept.
fn keep_best(candidates: Vec<Node>, keep: usize) -> Tree {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by(|&a, &b| by_probability(&candidates[a], &candidates[b]).then(a.cmp(&b)));
    order.truncate(keep);
    order.sort_unstable();
    let mut place = vec![None; candidates.len()];
    let mut nodes = Vec::with_capacity(order.len());
    for &old in &order {
        place[old] = Some(nodes.len());
        let node = candidates[old];
        nodes.push(Node {
            parent: node.parent.and_then(|p| place[p]),
            ..node
        });
    }
    Tree { nodes }
}

/// A node that could be added next; ordered by path probability.
struct Next {
    node: Node,
    above: f64,
}

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Next {}
impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Next {
    fn cmp(&self, other: &Self) -> Ordering {
        by_probability(&other.node, &self.node)
    }
}

/// The tree of at most `nodes` nodes and depth with the highest expected accept length. Ranks
/// fall, and a child is never likelier than its parent, so adding the likeliest next node is
/// optimal (the dynamic programme [`best_accept_lengths`] agrees; a test says so).
pub fn optimal_tree(model: &RankModel, nodes: u32, max_depth: u32) -> Tree {
    let budget = nodes.min(MAX_NODES) as usize;
    let mut tree = Tree::default();
    let mut heap = BinaryHeap::new();
    let candidate = |parent: Option<usize>, above: f64, depth: u32, rank: u32| Next {
        node: Node {
            parent,
            rank,
            depth,
            path_probability: above * model.ranks(depth, rank).last().copied().unwrap_or(0.0),
        },
        above,
    };
    if max_depth > 0 {
        heap.push(candidate(None, 1.0, 1, 1));
    }
    while tree.nodes.len() < budget {
        let Some(Next { node, above }) = heap.pop() else {
            break;
        };
        let index = tree.nodes.len();
        tree.nodes.push(node);
        heap.push(candidate(node.parent, above, node.depth, node.rank + 1));
        if node.depth < max_depth {
            heap.push(candidate(
                Some(index),
                node.path_probability,
                node.depth + 1,
                1,
            ));
        }
    }
    tree
}

/// Largest budget of [`best_accept_lengths`], whose cost grows with its cube.
pub const MAX_PROGRAMME_NODES: u32 = 96;

/// Best expected accept length for every budget `0 ..= nodes` (at most [`MAX_PROGRAMME_NODES`])
/// within a depth, by the dynamic programme of Sequoia (arXiv 2402.12374), exact: subtrees by
/// depth, then nodes shared out among the ranks of a node's children. [`optimal_tree`] gives the
/// same lengths faster; this is its check.
pub fn best_accept_lengths(model: &RankModel, nodes: u32, max_depth: u32) -> Vec<f64> {
    let budget = nodes.min(MAX_PROGRAMME_NODES) as usize;
    // below[n]: best expected accepted nodes among n placed under an accepted node at this depth.
    let mut below = vec![0.0; budget + 1];
    for depth in (1..=max_depth.min(MAX_PROGRAMME_NODES)).rev() {
        let ranks = model.ranks(depth, budget as u32);
        let mut best = vec![0.0; budget + 1];
        for p in ranks {
            // Give this rank m nodes (one is the child itself) on top of what earlier ranks got.
            // Later ranks are worth less, so the order of sharing does not matter.
            for n in (1..=budget).rev() {
                let with = (1..=n).map(|m| best[n - m] + p * (1.0 + below[m - 1]));
                best[n] = with.fold(best[n], f64::max);
            }
        }
        below = best;
    }
    below.iter().map(|b| 1.0 + b).collect()
}

/// A setting that drafts tokens which are never verified, or asks for more than are drafted.
#[derive(Debug, Clone, PartialEq)]
pub struct WastedDrafts {
    /// Drafted tokens that no verify can hold (a chain), or draft steps whose layer cannot be
    /// reached (a tree); 0 where the verify asks for more than is drafted.
    pub wasted: u32,
    /// What is wrong, with figures.
    pub what: String,
    /// What to set.
    pub mend: &'static str,
}

/// Checks SGLang's `steps`, `topk`, `draft tokens`: draft tokens count the root.
pub fn wasted_drafts(steps: u32, topk: u32, draft_tokens: u32) -> Option<WastedDrafts> {
    let verified = draft_tokens.saturating_sub(1);
    let topk = u64::from(topk.max(1));
    let candidates = match steps {
        0 => 0,
        _ => topk.saturating_add(u64::from(steps - 1).saturating_mul(topk.saturating_mul(topk))),
    };
    if u64::from(verified) > candidates {
        return Some(WastedDrafts {
            wasted: 0,
            what: format!("verifies {verified} drafted tokens, but only {candidates} are drafted"),
            mend: "lower the draft tokens, or raise the steps or top-k",
        });
    }
    let wasted = steps.saturating_sub(verified);
    if wasted == 0 {
        return None;
    }
    let what = if topk == 1 {
        format!("{wasted} of {steps} drafted tokens are thrown away")
    } else {
        format!("a path of {steps} cannot be verified with {verified} nodes")
    };
    Some(WastedDrafts {
        wasted,
        what,
        mend: "set the draft tokens to at least steps + 1, or lower the steps",
    })
}

/// What an estimate of a tree's accept length rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeBasis {
    /// The chain itself.
    Chain,
    /// The engine's tree, ranked by a draft that is less sure than it is right.
    UnsureDraft,
    /// The engine's tree under the rank model.
    RankModel,
    /// Between the two.
    Between,
}

/// A tree's accept length with its basis and a 90 % half-width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TreeEstimate {
    /// Tokens per verify.
    pub accept_length: f64,
    /// Half-width of the 90 % band around it, tokens.
    pub half_width: f64,
    /// What it rests on.
    pub basis: TreeBasis,
}

/// Drafted nodes up to which the draft's doubt decides, and from which it does not matter.
const SMALL_NODES: f64 = 7.0;
const LARGE_NODES: f64 = 16.0;

/// How much less sure of its best token a draft is than it is right, in logits. Ranked by such
/// probabilities a small tree spends its few nodes on breadth, which is why it loses to the chain
/// that verifies as many tokens. Fitted on 122 runs of 11 models (top-k 3 with 6 and top-k 4 with
/// 8 draft tokens).
pub const UNDER_CONFIDENCE: f64 = 1.95;
/// 90 % of those runs lie within this, leave-one-model-out, and the three larger trees that were measured
/// beside a chain too; tokens.
pub const TREE_HALF_WIDTH: f64 = 0.5;

/// Accept length of the engine's tree where the draft ranks by probabilities that are this many
/// logits too low. The engine builds its tree anew in every context, so each is taken on its own.
pub fn unsure_tree_accept_length(
    chain: &Chain,
    (steps, topk, draft_tokens): (u32, u32, u32),
    under_confidence: f64,
) -> f64 {
    let lengths = chain.contexts().map(|(share, right)| {
        let sure = Chain {
            level: right.level - under_confidence,
            ..right
        };
        let tree = dynamic_tree(&RankModel::new(sure), steps, topk, draft_tokens);
        share * tree.accept_length(&RankModel::new(right))
    });
    lengths.iter().sum()
}

/// Accept length of the engine's tree from the pair's chain. Small trees lose to chains of the
/// same verify size ([`UNDER_CONFIDENCE`]); with nodes enough for breadth and depth the draft's
/// doubt no longer shows.
pub fn tree_accept_length(chain: &Chain, steps: u32, topk: u32, draft_tokens: u32) -> TreeEstimate {
    let nodes = draft_tokens.saturating_sub(1);
    if topk <= 1 {
        return TreeEstimate {
            accept_length: chain.accept_length(steps.min(nodes)),
            half_width: 0.0,
            basis: TreeBasis::Chain,
        };
    }
    let flags = (steps, topk, draft_tokens);
    let ideal = unsure_tree_accept_length(chain, flags, 0.0);
    let small = unsure_tree_accept_length(chain, flags, UNDER_CONFIDENCE);
    let share = ((f64::from(nodes).ln() - SMALL_NODES.ln())
        / (LARGE_NODES.ln() - SMALL_NODES.ln()))
    .clamp(0.0, 1.0);
    let basis = match share {
        s if s <= 0.0 => TreeBasis::UnsureDraft,
        s if s >= 1.0 => TreeBasis::RankModel,
        _ => TreeBasis::Between,
    };
    TreeEstimate {
        accept_length: small + share * (ideal - small),
        half_width: TREE_HALF_WIDTH,
        basis,
    }
}
