//! Speculative sampling itself, as a reference over whole distributions: a chain, and a tree with
//! several rounds; greedy, target-only and full rejection.
//!
//! The arithmetic of one round is generic over [`Prob`], so that tests can run it in exact
//! rationals and compare the output distribution with the target's without any sampling.

use rand::{Rng, RngExt};

/// A number that probabilities are computed in.
pub trait Prob: Clone + PartialOrd {
    /// 0.
    fn zero() -> Self;
    /// 1.
    fn one() -> Self;
    /// Sum.
    fn add(&self, other: &Self) -> Self;
    /// Difference.
    fn sub(&self, other: &Self) -> Self;
    /// Product.
    fn mul(&self, other: &Self) -> Self;
    /// Quotient; the divisor is never zero.
    fn div(&self, other: &Self) -> Self;
}

impl Prob for f64 {
    fn zero() -> Self {
        0.0
    }
    fn one() -> Self {
        1.0
    }
    fn add(&self, other: &Self) -> Self {
        self + other
    }
    fn sub(&self, other: &Self) -> Self {
        self - other
    }
    fn mul(&self, other: &Self) -> Self {
        self * other
    }
    fn div(&self, other: &Self) -> Self {
        self / other
    }
}

/// How drafted tokens are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Accept what equals the target's most probable token (temperature 0).
    Greedy,
    /// Accept with the target's probability of the token; the draft's probabilities are not used
    /// (SGLang's default above temperature 0).
    TargetOnly,
    /// Accept with min(1, p / q), resample from the rest of p (arXiv 2211.17192, 2302.01318; with
    /// several children arXiv 2305.09781).
    FullRejection,
}

/// Scales to sum 1; a vector of zeros stays one.
pub fn normalised<P: Prob>(weights: &[P]) -> Vec<P> {
    let total = sum(weights);
    if total <= P::zero() {
        return weights.to_vec();
    }
    weights.iter().map(|w| w.div(&total)).collect()
}

fn sum<P: Prob>(values: &[P]) -> P {
    values.iter().fold(P::zero(), |total, v| total.add(v))
}

/// The most probable token, the first among equals; `None` of an empty distribution.
pub fn argmax<P: Prob>(distribution: &[P]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (token, p) in distribution.iter().enumerate() {
        if best.is_none_or(|b| *p > distribution[b]) {
            best = Some(token);
        }
    }
    best
}

/// P(a drafted token is accepted) in one round, for the target and draft distributions in force.
pub fn accept_probability<P: Prob>(rule: Rule, target: &[P], draft: &[P], token: usize) -> P {
    let zero = P::zero();
    let p = target.get(token).unwrap_or(&zero);
    match rule {
        Rule::Greedy if argmax(target) == Some(token) => P::one(),
        Rule::Greedy => zero,
        Rule::TargetOnly => p.clone(),
        Rule::FullRejection => {
            let q = draft.get(token).unwrap_or(&zero);
            if p >= q {
                // Also q = 0: such a token is never drafted; accepting it is harmless.
                P::one()
            } else {
                p.div(q)
            }
        }
    }
}

/// What the target's distribution becomes after a token was refused.
pub fn after_refusal<P: Prob>(rule: Rule, target: &[P], draft: &[P], token: usize) -> Vec<P> {
    match rule {
        Rule::Greedy => target.to_vec(),
        Rule::TargetOnly => without(target, token),
        Rule::FullRejection => {
            let zero = P::zero();
            let rest: Vec<P> = target
                .iter()
                .enumerate()
                .map(|(t, p)| {
                    let q = draft.get(t).unwrap_or(&zero);
                    if p > q { p.sub(q) } else { P::zero() }
                })
                .collect();
            if sum(&rest) > P::zero() {
                normalised(&rest)
            } else {
                // p = q: a refusal has probability 0 and only rounding can lead here.
                target.to_vec()
            }
        }
    }
}

/// What the draft's distribution becomes after a token was drawn without replacement.
pub fn without<P: Prob>(distribution: &[P], token: usize) -> Vec<P> {
    let mut rest = distribution.to_vec();
    if let Some(p) = rest.get_mut(token) {
        *p = P::zero();
    }
    normalised(&rest)
}

/// P(accepted) of one token drafted from q and verified by full rejection: Σ min(p, q), which is
/// 1 - total variation.
pub fn expected_acceptance(target: &[f64], draft: &[f64]) -> f64 {
    target.iter().zip(draft).map(|(p, q)| p.min(*q)).sum()
}

/// Draws a token.
pub fn sample(distribution: &[f64], rng: &mut impl Rng) -> usize {
    let mut left = rng.random::<f64>() * distribution.iter().sum::<f64>();
    let mut last = 0;
    for (token, &p) in distribution.iter().enumerate() {
        if p > 0.0 {
            last = token;
            if left < p {
                return token;
            }
            left -= p;
        }
    }
    last
}

/// The final token of a cycle, drawn from what is left of the target.
fn closing_token(rule: Rule, rest: &[f64], rng: &mut impl Rng) -> usize {
    match rule {
        Rule::Greedy => argmax(rest).unwrap_or(0),
        _ => sample(rest, rng),
    }
}

/// The tokens of one cycle: the accepted drafts and the closing token of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Accepted drafted tokens, then one from the target; its length is the cycle's accept length.
    pub tokens: Vec<usize>,
}

/// Verifies a chain. `target[i]` and `draft[i]` are the distributions after the first `i` drafted
/// tokens; `target` has one more entry than `drafted` (the bonus token's). Entries that are
/// missing end the cycle there.
pub fn verify_chain(
    rule: Rule,
    target: &[Vec<f64>],
    draft: &[Vec<f64>],
    drafted: &[usize],
    rng: &mut impl Rng,
) -> Verified {
    let mut tokens = Vec::with_capacity(drafted.len() + 1);
    for (position, &token) in drafted.iter().enumerate() {
        let (Some(p), Some(q)) = (target.get(position), draft.get(position)) else {
            return Verified { tokens };
        };
        if rng.random::<f64>() < accept_probability(rule, p, q, token) {
            tokens.push(token);
        } else {
            let rest = after_refusal(rule, p, q, token);
            tokens.push(closing_token(rule, &rest, rng));
            return Verified { tokens };
        }
    }
    if let Some(bonus) = target.get(drafted.len()) {
        tokens.push(closing_token(rule, bonus, rng));
    }
    Verified { tokens }
}

/// A node of a drafted tree with the distributions that follow it.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledNode {
    /// The target's distribution of the next token here.
    pub target: Vec<f64>,
    /// The draft's distribution of the next token here.
    pub draft: Vec<f64>,
    /// Drafted children in the order they were drawn (without replacement), with their nodes.
    pub children: Vec<(usize, SampledNode)>,
}

/// Verifies a tree, several rounds at every node: the children are tried in order, each against
/// what the refusals before it left of target and draft.
pub fn verify_tree(rule: Rule, root: &SampledNode, rng: &mut impl Rng) -> Verified {
    let mut tokens = Vec::new();
    let mut node = root;
    loop {
        let mut target = node.target.clone();
        let mut draft = node.draft.clone();
        let mut accepted = None;
        for (token, child) in &node.children {
            if rng.random::<f64>() < accept_probability(rule, &target, &draft, *token) {
                accepted = Some((*token, child));
                break;
            }
            target = after_refusal(rule, &target, &draft, *token);
            draft = without(&draft, *token);
        }
        match accepted {
            Some((token, child)) => {
                tokens.push(token);
                node = child;
            }
            None => {
                tokens.push(closing_token(rule, &target, rng));
                return Verified { tokens };
            }
        }
    }
}

/// Output distribution of one node whose children are drawn one after the other from the draft
/// without replacement and verified in that order: exact, by enumerating every draw. Exponential
/// in `children`; for tests and for tiny vocabularies.
pub fn exact_output<P: Prob>(rule: Rule, target: &[P], draft: &[P], children: u32) -> Vec<P> {
    let mut output = vec![P::zero(); target.len()];
    enumerate(rule, target, draft, children, &P::one(), &mut output);
    output
}

fn enumerate<P: Prob>(
    rule: Rule,
    target: &[P],
    draft: &[P],
    children: u32,
    weight: &P,
    output: &mut [P],
) {
    let drawable = sum(draft) > P::zero();
    if children == 0 || !drawable {
        match rule {
            Rule::Greedy => {
                if let Some(token) = argmax(target) {
                    output[token] = output[token].add(weight);
                }
            }
            _ => {
                for (cell, p) in output.iter_mut().zip(target) {
                    *cell = cell.add(&weight.mul(p));
                }
            }
        }
        return;
    }
    for token in 0..draft.len() {
        let drawn = weight.mul(&draft[token]);
        if drawn <= P::zero() {
            continue;
        }
        let accept = accept_probability(rule, target, draft, token);
        let yes = drawn.mul(&accept);
        output[token] = output[token].add(&yes);
        let no = drawn.sub(&yes);
        if no > P::zero() {
            let rest = after_refusal(rule, target, draft, token);
            enumerate(
                rule,
                &rest,
                &without(draft, token),
                children - 1,
                &no,
                output,
            );
        }
    }
}
