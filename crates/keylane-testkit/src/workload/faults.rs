//! Which calls fail and which panic.

use std::fmt;

use keylane_source::{Offset, QueueId};

use super::prng::{chance, mix};

/// Decides for each attempt of each message, by a hash of (seed, queue, offset, attempt): the same
/// whatever the threads do. Rates are from 0 to 1.
///
/// ```
/// use keylane_source::{Offset, QueueId};
/// use keylane_testkit::workload::{Fault, Faults};
///
/// let faults = Faults { seed: 7, fail_rate: 0.1, panic_rate: 0.01 };
/// match faults.decide(QueueId::new("orders", 0), Offset::ZERO, 1) {
///     Fault::None => { /* do the work */ }
///     Fault::Fail => { /* return an error */ }
///     Fault::Panic => { /* panic!() */ }
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Faults {
    /// Another seed, other faults.
    pub seed: u64,
    /// The share of calls that return an error.
    pub fail_rate: f64,
    /// The share of calls that panic.
    pub panic_rate: f64,
}

/// What a call is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Its work.
    None,
    /// Return an error.
    Fail,
    /// Panic.
    Panic,
}

impl Faults {
    /// Nothing ever fails.
    pub const NONE: Self = Self { seed: 0, fail_rate: 0.0, panic_rate: 0.0 };

    /// What this attempt is to do.
    pub fn decide(&self, queue: QueueId, offset: Offset, attempt: u32) -> Fault {
        let call = [self.seed, u64::from(queue.index()), offset.get(), u64::from(attempt)];
        let draw = |what: u64| mix(&[call[0], call[1], call[2], call[3], what]);
        if chance(draw(1), self.panic_rate) {
            Fault::Panic
        } else if chance(draw(2), self.fail_rate) {
            Fault::Fail
        } else {
            Fault::None
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, fail_rate, panic_rate } = self;
        write!(f, "{} % fail, {} % panic, seed {seed}", fail_rate * 100.0, panic_rate * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(faults: Faults, attempt: u32) -> (usize, usize) {
        let decide = |n| faults.decide(QueueId::new("f", 0), Offset::new(n).unwrap(), attempt);
        let decided: Vec<_> = (0..10_000).map(decide).collect();
        let count = |fault| decided.iter().filter(|decided| **decided == fault).count();
        (count(Fault::Fail), count(Fault::Panic))
    }

    #[test]
    fn rates_are_kept_and_attempts_are_decided_each_for_itself() {
        let faults = Faults { seed: 1, fail_rate: 0.2, panic_rate: 0.1 };
        let (fail, panic) = counts(faults, 1);
        // A panic comes first: the rest of 90 % fails with 20 %.
        assert!((1_700..1_900).contains(&fail), "{fail}");
        assert!((930..1_070).contains(&panic), "{panic}");
        assert_ne!(counts(faults, 2), (fail, panic));
        assert_eq!(counts(faults, 1), (fail, panic));
        assert_eq!(counts(Faults::NONE, 1), (0, 0));
        assert_eq!(counts(Faults { fail_rate: 1.0, ..Faults::NONE }, 1), (10_000, 0));
    }
}
