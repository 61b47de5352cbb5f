//! What follows a failed attempt: a pure function of the policy, the attempts and a random number.

use std::time::Duration;

use crate::config::FailurePolicy;
use crate::time::LONGEST;

/// See the module's description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Again after this delay.
    Again(Duration),
    /// It has been tried often enough.
    Exhausted,
}

impl FailurePolicy {
    /// `attempts` have been made, the last one failed; the listener may have asked for a delay.
    pub(crate) fn next(&self, attempts: u32, asked: Option<Duration>, random: &mut Random) -> Next {
        if self.limit().is_some_and(|limit| attempts >= limit.get()) {
            return Next::Exhausted;
        }
        Next::Again(asked.unwrap_or_else(|| self.delay(attempts, random)).min(LONGEST))
    }

    /// The back-off after the `failures`th failure in a row, counted from one.
    pub(crate) fn delay(&self, failures: u32, random: &mut Random) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let delay = self.backoff_first.saturating_mul(1 << doublings).min(self.backoff_max);
        delay.mul_f64(1.0 + self.jitter * (2.0 * random.fraction() - 1.0))
    }
}

/// A small generator of numbers that only have to be different (SplitMix64, Steele et al. 2014).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// At least 0, less than 1.
    fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn policy() -> FailurePolicy {
        FailurePolicy::default().backoff(100 * MS, 30_000 * MS).jitter(0.0)
    }

    #[test]
    fn delays_double_up_to_the_cap() {
        let delays = [1, 2, 3, 9, 10, u32::MAX].map(|n| policy().delay(n, &mut Random::new(1)));
        assert_eq!(delays, [100 * MS, 200 * MS, 400 * MS, 25_600 * MS, 30_000 * MS, 30_000 * MS]);
    }

    #[test]
    fn jitter_stays_inside_its_share_and_varies() {
        let policy = policy().jitter(0.2);
        let mut random = Random::new(7);
        let delays: Vec<_> = (0..100).map(|_| policy.delay(1, &mut random)).collect();
        assert!(delays.iter().all(|delay| (80 * MS..=120 * MS).contains(delay)), "{delays:?}");
        assert!(delays.iter().any(|&delay| delay < 90 * MS));
        assert!(delays.iter().any(|&delay| delay > 110 * MS));
    }

    #[test]
    fn the_limit_counts_all_attempts() {
        let policy = policy().attempts_max(3);
        let mut random = Random::new(1);
        assert_eq!(policy.next(2, None, &mut random), Next::Again(200 * MS));
        assert_eq!(policy.next(3, None, &mut random), Next::Exhausted);
        assert_eq!(policy.next(2, Some(5 * MS), &mut random), Next::Again(5 * MS));
    }
}
