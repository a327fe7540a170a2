//! Accept lengths drawn from a chain of chances.

/// Mean tokens of a cycle.
pub(super) fn expected_tokens(alphas: &[f64], steps: usize) -> f64 {
    let mut reached = 1.0;
    let mut sum = 1.0;
    for alpha in alphas.iter().take(steps) {
        reached *= alpha;
        sum += reached;
    }
    sum
}

/// Accept lengths drawn from the chain; equal seeds draw equally on every rank.
pub(super) struct Draws(u64);

impl Draws {
    pub(super) fn new(seed: u64, concurrency: usize, steps: usize) -> Self {
        Self(seed ^ (concurrency as u64) << 32 ^ (steps as u64) << 24)
    }

    /// A number in [0, 1) (splitmix64).
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Tokens of one cycle, the bonus token included.
    pub(super) fn tokens(&mut self, alphas: &[f64], steps: usize) -> u32 {
        let mut tokens = 1;
        for alpha in alphas.iter().take(steps) {
            if self.unit() >= *alpha {
                break;
            }
            tokens += 1;
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_chain_and_the_seed() {
        let alphas = [0.75, 0.7, 0.65];
        let mut draws = Draws::new(1, 8, 3);
        let mean = (0..200_000)
            .map(|_| f64::from(draws.tokens(&alphas, 3)))
            .sum::<f64>()
            / 200_000.0;
        assert!((mean - expected_tokens(&alphas, 3)).abs() < 0.01, "{mean}");
        let again = |seed| Draws::new(seed, 8, 3).unit();
        assert_eq!(again(1), again(1));
        assert_ne!(again(1), again(2));
    }
}
