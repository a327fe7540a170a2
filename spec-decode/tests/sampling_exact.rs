//! Speculative sampling keeps the target's distribution: exactly, in rationals, over every draw of
//! tiny vocabularies.

use spec_decode::sampling::{Prob, Rule, accept_probability, exact_output};

/// A reduced fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ratio {
    over: i128,
    under: i128,
}

impl Ratio {
    fn new(over: i128, under: i128) -> Self {
        let (mut a, mut b) = (over.abs(), under.abs());
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let sign = if under < 0 { -1 } else { 1 };
        let divisor = a.max(1) * sign;
        Self {
            over: over / divisor,
            under: under / divisor,
        }
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (self.over * other.under).partial_cmp(&(other.over * self.under))
    }
}

impl Prob for Ratio {
    fn zero() -> Self {
        Self::new(0, 1)
    }
    fn one() -> Self {
        Self::new(1, 1)
    }
    fn add(&self, o: &Self) -> Self {
        Self::new(
            self.over * o.under + o.over * self.under,
            self.under * o.under,
        )
    }
    fn sub(&self, o: &Self) -> Self {
        Self::new(
            self.over * o.under - o.over * self.under,
            self.under * o.under,
        )
    }
    fn mul(&self, o: &Self) -> Self {
        Self::new(self.over * o.over, self.under * o.under)
    }
    fn div(&self, o: &Self) -> Self {
        Self::new(self.over * o.under, self.under * o.over)
    }
}

/// Every distribution over `tokens` tokens with probabilities in steps of `1 / under`.
fn distributions(tokens: usize, under: i128) -> Vec<Vec<Ratio>> {
    fn fill(
        tokens: usize,
        left: i128,
        under: i128,
        head: &mut Vec<Ratio>,
        all: &mut Vec<Vec<Ratio>>,
    ) {
        if tokens == 1 {
            head.push(Ratio::new(left, under));
            all.push(head.clone());
            head.pop();
            return;
        }
        for n in 0..=left {
            head.push(Ratio::new(n, under));
            fill(tokens - 1, left - n, under, head, all);
            head.pop();
        }
    }
    let mut all = Vec::new();
    fill(tokens, under, under, &mut Vec::new(), &mut all);
    all
}

#[test]
fn full_rejection_and_target_only_return_the_target_exactly() {
    let mut pairs = 0;
    for (tokens, under) in [(2, 6), (3, 4), (4, 3)] {
        let all = distributions(tokens, under);
        for target in &all {
            for draft in &all {
                for children in 0..=3 {
                    for rule in [Rule::FullRejection, Rule::TargetOnly] {
                        let output = exact_output(rule, target, draft, children);
                        assert_eq!(&output, target, "{rule:?} {draft:?} {children} children");
                        pairs += 1;
                    }
                }
            }
        }
    }
    assert!(pairs > 5000, "{pairs}");
}

#[test]
fn greedy_returns_the_most_probable_token() {
    for target in distributions(3, 4) {
        for draft in distributions(3, 4) {
            let output = exact_output(Rule::Greedy, &target, &draft, 2);
            let best = spec_decode::sampling::argmax(&target).unwrap();
            assert_eq!(output[best], Ratio::one());
        }
    }
}

#[test]
fn accepting_on_the_drafts_word_would_not_keep_the_target() {
    // The check can fail: always accepting returns the draft's distribution.
    let target = vec![Ratio::new(1, 4), Ratio::new(3, 4)];
    let draft = vec![Ratio::new(3, 4), Ratio::new(1, 4)];
    let accepted: Vec<Ratio> = (0..2)
        .map(|t| draft[t].mul(&accept_probability(Rule::FullRejection, &target, &draft, t)))
        .collect();
    assert_ne!(accepted, target, "without the refusals' part");
    assert_eq!(
        exact_output(Rule::FullRejection, &target, &draft, 1),
        target
    );
}
