//! How often which key occurs.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::prng::{below, chance, mix};

/// A distribution of keys; a key is a number below their count, and [`name`](Self::name) is what
/// stands in the message.
#[derive(Clone)]
pub struct Keys {
    count: u64,
    skew: Skew,
}

#[derive(Clone)]
enum Skew {
    Uniform,
    /// The probability, times 2^64, of this key or one before it.
    Zipf {
        exponent: f64,
        up_to: Arc<[u64]>,
    },
    Hot {
        share: f64,
    },
}

impl Keys {
    /// `count` keys, at least 1, each as often as the other.
    pub fn uniform(count: u64) -> Self {
        Self { count: count.max(1), skew: Skew::Uniform }
    }

    /// `count` keys, at least 1; the one of rank r is drawn in proportion to 1 / r^`exponent`. Key
    /// 0 is the most frequent. An exponent of 0 is uniform. Takes 8 bytes of memory a key.
    pub fn zipf(count: u64, exponent: f64) -> Self {
        let count = count.max(1);
        let weight = |rank: u64| (rank as f64).powf(-exponent);
        let total: f64 = (1..=count).map(weight).sum();
        let mut sum = 0.0;
        let up_to = (1..=count).map(|rank| {
            sum += weight(rank);
            threshold(sum / total)
        });
        let skew = Skew::Zipf { exponent, up_to: up_to.collect() };
        Self { count, skew }
    }

    /// `count` keys, at least 1; key 0 has this share of the messages (0 to 1), the others are
    /// uniform among themselves.
    pub fn hot(count: u64, share: f64) -> Self {
        Self { count: count.max(1), skew: Skew::Hot { share } }
    }

    /// How many keys there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Turns a random number into a key.
    ///
    /// ```
    /// use keylane_testkit::workload::{Keys, Prng};
    ///
    /// let mut prng = Prng::new(1);
    /// let keys = Keys::hot(100, 0.5);
    /// let hot = (0..1_000).filter(|_| keys.pick(prng.next_u64()) == 0).count();
    /// assert!((450..550).contains(&hot));
    /// ```
    pub fn pick(&self, random: u64) -> u64 {
        match &self.skew {
            Skew::Uniform => below(random, self.count),
            Skew::Zipf { up_to, .. } => {
                let index = up_to.partition_point(|up_to| *up_to < random) as u64;
                index.min(self.count - 1)
            }
            Skew::Hot { share } if self.count == 1 || chance(random, *share) => 0,
            // A second number: what is left of the first one is not uniform.
            Skew::Hot { .. } => 1 + below(mix(&[random]), self.count - 1),
        }
    }

    /// The bytes of a key: `key-` and its number.
    pub fn name(key: u64) -> Bytes {
        Bytes::from(format!("key-{key}"))
    }
}

/// A probability, times 2^64.
#[expect(clippy::cast_possible_truncation, reason = "a float too large becomes the largest number")]
fn threshold(probability: f64) -> u64 {
    (probability * u64::MAX as f64) as u64
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count;
        match &self.skew {
            Skew::Uniform => write!(f, "{count} uniform keys"),
            Skew::Zipf { exponent, .. } => write!(f, "{count} keys, zipf {exponent}"),
            Skew::Hot { share } => {
                let percent = share * 100.0;
                write!(f, "{count} keys, the first one with {percent} % of the messages")
            }
        }
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::super::prng::Prng;
    use super::*;

    fn shares<const KEYS: usize>(keys: &Keys) -> [u64; KEYS] {
        let mut prng = Prng::new(9);
        let mut counts = [0; KEYS];
        for _ in 0..100_000 {
            counts[usize::try_from(keys.pick(prng.next_u64())).unwrap()] += 1;
        }
        counts
    }

    #[track_caller]
    fn assert_near(counts: &[u64], expected: &[u64]) {
        let near = |(count, expected): (&u64, &u64)| count.abs_diff(*expected) < 600;
        assert!(counts.iter().zip(expected).all(near), "{counts:?} is not near {expected:?}");
    }

    #[test]
    fn shares_are_as_they_should_be() {
        assert_near(&shares::<4>(&Keys::uniform(4)), &[25_000; 4]);
        // 1, 1/2, 1/3, 1/4 of 25/12.
        assert_near(&shares::<4>(&Keys::zipf(4, 1.0)), &[48_000, 24_000, 16_000, 12_000]);
        assert_near(&shares::<4>(&Keys::zipf(4, 0.0)), &[25_000; 4]);
        assert_near(&shares::<4>(&Keys::hot(4, 0.7)), &[70_000, 10_000, 10_000, 10_000]);
    }

    #[test]
    fn the_ends_of_the_random_numbers_are_keys_too() {
        for keys in [Keys::uniform(3), Keys::zipf(3, 1.2), Keys::hot(3, 0.1), Keys::hot(1, 0.0)] {
            assert!(keys.pick(0) < 3);
            assert!(keys.pick(u64::MAX) < 3, "{keys}");
        }
        assert_eq!(Keys::uniform(0).count(), 1);
    }
}
