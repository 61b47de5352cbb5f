//! A value that only comes out right when every aircraft's flights were handled in order: for every
//! airport and aircraft `balance = max(0, balance + delay)`, flight by flight.
//!
//! Each shard has its part of the balances to itself, since an aircraft belongs to one shard: no
//! lock, no sharing. They are put together at the end.

use std::collections::HashMap;

/// Where a row of the flights has `dep_delay`.
pub(super) const DELAY_COLUMN: usize = 6;

/// What the whole file gives. In reverse order the sum would be 4,257,725.
pub(super) const WHOLE_FILE: Totals = Totals {
    messages: 336_776,
    keys: 4_043,
    keyless: 2_512,
    delays: 4_152_200,
    balances: 4_262_753,
    largest: 7_711,
};
/// Whose balance is the largest.
pub(super) const LARGEST: (&str, &str) = ("EWR", "N15910");

/// Balances of some of the aircraft: all of them, or those of one shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Balances {
    /// By queue, then by tail number; the empty one stands for flights without one.
    queues: Vec<HashMap<Box<[u8]>, i64>>,
    messages: u64,
    keyless: u64,
    delays: i64,
}

/// What all balances come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) messages: u64,
    pub(super) keys: u64,
    pub(super) keyless: u64,
    pub(super) delays: i64,
    pub(super) balances: i64,
    pub(super) largest: i64,
}

impl Balances {
    pub(super) fn new(queues: usize) -> Self {
        Self { queues: vec![HashMap::new(); queues], ..Self::default() }
    }

    /// None yet, for the same queues.
    pub(super) fn empty_like(other: &Self) -> Self {
        Self::new(other.queues.len())
    }

    /// Handles one flight.
    pub(super) fn apply(&mut self, queue: u32, key: &[u8], row: &[u8]) -> Result<(), String> {
        self.apply_on(&Self::default(), queue, key, row)
    }

    /// Handles one flight; an aircraft that is new here goes on with what it has in `base`.
    pub(super) fn apply_on(
        &mut self,
        base: &Self,
        queue: u32,
        key: &[u8],
        row: &[u8],
    ) -> Result<(), String> {
        let delay = delay(row)?;
        let queues = self.queues.len();
        let balances = self
            .queues
            .get_mut(queue as usize)
            .ok_or_else(|| format!("queue {queue} is none of the {queues} that there are"))?;
        // A row is somebody else's: its number may be any.
        let after = |balance: i64| balance.saturating_add(delay).max(0);
        match balances.get_mut(key) {
            Some(balance) => *balance = after(*balance),
            None => {
                let before = base.of(queue, key).unwrap_or(0);
                balances.insert(key.into(), after(before));
            }
        }
        self.messages += 1;
        self.keyless += u64::from(key.is_empty());
        self.delays = self.delays.saturating_add(delay);
        Ok(())
    }

    /// Takes in another shard's, whose keys are others, or what these balances have become since.
    pub(super) fn merge(&mut self, other: Self) {
        let Self { queues, messages, keyless, delays } = other;
        self.queues.resize(self.queues.len().max(queues.len()), HashMap::new());
        for (mine, theirs) in self.queues.iter_mut().zip(queues) {
            mine.extend(theirs);
        }
        self.messages += messages;
        self.keyless += keyless;
        self.delays += delays;
    }

    /// One aircraft's.
    pub(super) fn of(&self, queue: u32, key: &[u8]) -> Option<i64> {
        self.queues.get(queue as usize)?.get(key).copied()
    }

    /// What they come to.
    pub(super) fn totals(&self) -> Totals {
        let mut keys: Vec<&[u8]> =
            self.queues.iter().flat_map(|queue| queue.keys().map(|key| &key[..])).collect();
        keys.sort_unstable();
        keys.dedup();
        let all = || self.queues.iter().flat_map(HashMap::values).copied();
        Totals {
            messages: self.messages,
            keys: keys.iter().filter(|key| !key.is_empty()).count() as u64,
            keyless: self.keyless,
            delays: self.delays,
            balances: all().sum(),
            largest: all().max().unwrap_or(0),
        }
    }
}

/// The departure's delay in minutes; a flight that did not depart has none, which counts as 0.
fn delay(row: &[u8]) -> Result<i64, String> {
    let field = row.split(|byte| *byte == b',').nth(DELAY_COLUMN);
    let text = field.and_then(|field| std::str::from_utf8(field).ok());
    match text {
        Some("") => Ok(0),
        Some(text) => text.parse().map_err(|_| format!("a delay of {text:?} minutes")),
        None => Err(format!("a row without a delay: \"{}\"", row.escape_ascii())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(delay: &str) -> Vec<u8> {
        format!("t,EWR,N1,UA,1,IAH,{delay},11,1400").into_bytes()
    }

    #[test]
    fn balances_depend_on_the_order() {
        let run = |delays: &[&str]| {
            let mut balances = Balances::new(1);
            delays.iter().for_each(|delay| balances.apply(0, b"N1", &row(delay)).unwrap());
            balances.totals().balances
        };
        assert_eq!(run(&["5", "-9", "4"]), 4);
        assert_eq!(run(&["4", "-9", "5"]), 5);
        assert_eq!(run(&["3", "", "2"]), 5);
    }

    #[test]
    fn shards_add_up() {
        let mut all = Balances::new(2);
        for (queue, key, delay) in [(0, "N1", "7"), (1, "N1", "2"), (1, "", "1")] {
            let mut shard = Balances::new(2);
            shard.apply(queue, key.as_bytes(), &row(delay)).unwrap();
            all.merge(shard);
        }
        let totals =
            Totals { messages: 3, keys: 1, keyless: 1, delays: 10, balances: 10, largest: 7 };
        assert_eq!(all.totals(), totals);
        assert_eq!((all.of(1, b"N1"), all.of(0, b"")), (Some(2), None));
    }

    #[test]
    fn foreign_rows_are_errors() {
        let mut balances = Balances::new(1);
        assert!(balances.apply(0, b"N1", b"too,short").is_err());
        assert!(balances.apply(0, b"N1", &row("soon")).is_err());
        assert!(balances.apply(0, b"N1", &row("99999999999999999999")).is_err());
        assert!(balances.apply(1, b"N1", &row("1")).is_err());
        assert_eq!(balances.totals().messages, 0);
    }
}
