//! Random numbers that are the same on every machine and in every version.
//!
//! Twenty lines of our own and not a crate: crates reserve the right to change the numbers that a
//! seed gives, and a seed in a bug report must mean the same for ever. The function is SplitMix64
//! (Steele, Lea, Flood, 2014): a counter with a good mixing step, 64 bits of state. Not for
//! secrets.

/// The counter's step: an odd number near 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of random numbers.
///
/// ```
/// use keylane_testkit::workload::Prng;
///
/// let mut prng = Prng::new(7);
/// let die = 1 + prng.below(6);
/// assert!((1..=6).contains(&die));
/// assert_eq!(Prng::new(7).next_u64(), Prng::new(7).next_u64());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prng(u64);

impl Prng {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        scramble(self.0)
    }

    /// A number below `end`; 0 where that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        below(self.next_u64(), end)
    }

    /// `true` with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        chance(self.next_u64(), probability)
    }
}

/// One random number out of several, the same for the same: a draw without a sequence.
pub fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |mixed, part| scramble((mixed ^ part).wrapping_add(STEP)))
}

fn scramble(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A random number turned into one below `end`. Its bias is `end` / 2^64.
pub(super) fn below(random: u64, end: u64) -> u64 {
    let wide = u128::from(random) * u128::from(end);
    (wide >> 64) as u64
}

/// A random number turned into a decision.
pub(super) fn chance(random: u64, probability: f64) -> bool {
    // 53 bits: as many as a float of this size has.
    ((random >> 11) as f64) < probability * (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_published_function() {
        // The reference implementation's first values for the seed 1234567.
        let mut prng = Prng::new(1_234_567);
        let numbers: Vec<_> = (0..3).map(|_| prng.next_u64()).collect();
        let published =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(numbers, published);
    }

    #[test]
    fn draws_are_even_and_chances_are_as_likely_as_they_say() {
        let mut prng = Prng::new(1);
        let mut counts = [0_u32; 10];
        (0..100_000).for_each(|_| counts[usize::try_from(prng.below(10)).unwrap()] += 1);
        assert!(counts.iter().all(|count| (9_700..=10_300).contains(count)), "{counts:?}");
        let yes = (0..100_000).filter(|_| prng.chance(0.2)).count();
        assert!((19_600..=20_400).contains(&yes), "{yes}");
        assert!((0..1_000).all(|_| !prng.chance(0.0) && prng.chance(1.0)));
        assert_eq!(prng.below(0), 0);
    }

    #[test]
    fn mixing_tells_the_order_of_its_parts_apart() {
        let mixed = [mix(&[1, 2]), mix(&[2, 1]), mix(&[1, 2, 0]), mix(&[3]), mix(&[])];
        for (index, one) in mixed.iter().enumerate() {
            assert!(!mixed[index + 1..].contains(one), "{mixed:?}");
        }
    }
}
