//! How large payloads are.

use std::fmt;

use bytes::Bytes;

use super::prng::below;
use super::zeros;

/// A distribution of payload sizes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// All the same.
    Fixed(usize),
    /// From the first to the second, both included, each as often as the other.
    Range(usize, usize),
}

impl Sizes {
    /// Turns a random number into a size.
    pub fn pick(self, random: u64) -> usize {
        match self {
            Self::Fixed(size) => size,
            Self::Range(low, high) => {
                let sizes = (high.max(low) - low) as u64 + 1;
                low + usize::try_from(below(random, sizes)).unwrap_or(0)
            }
        }
    }

    /// Turns a random number into a payload: so many zeros, shared up to 64 KiB.
    pub fn payload(self, random: u64) -> Bytes {
        zeros(self.pick(random))
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size} bytes each"),
            Self::Range(low, high) => write!(f, "{low} to {high} bytes each"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::prng::Prng;
    use super::*;

    #[test]
    fn sizes_stay_in_their_range_and_reach_its_ends() {
        let mut prng = Prng::new(2);
        let sizes: Vec<_> = (0..1_000).map(|_| Sizes::Range(3, 6).pick(prng.next_u64())).collect();
        let ends = (sizes.iter().min(), sizes.iter().max());
        assert_eq!(ends, (Some(&3), Some(&6)));
        assert_eq!(Sizes::Range(5, 5).pick(u64::MAX), 5);
        assert_eq!(Sizes::Fixed(100_000).payload(0).len(), 100_000);
        assert_eq!(Sizes::Fixed(0).payload(0).len(), 0);
    }
}
