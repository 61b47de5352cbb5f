//! The messages of a run, in the order in which they are produced: read from a file or made up.
//! Asked twice, they are the same ones.

use bytes::Bytes;

use super::balances::{Balances, DELAY_COLUMN};
use super::input::{self, Rows};
use super::plan::{Input, Plan, RunPlan, Synthetic};
use crate::outcome::{Ended, Failure};

/// What is known of a run's messages before they are produced.
#[derive(Debug, Clone)]
pub(super) struct Workload {
    input: Input,
    seed: u64,
    /// The queues by index: as the input names them.
    pub(super) queues: Vec<Vec<u8>>,
    pub(super) messages: u64,
    pub(super) keys: u64,
    pub(super) keyless: u64,
}

/// One message to produce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// Index of its queue.
    pub(super) queue: u32,
    pub(super) key: Option<Bytes>,
    pub(super) payload: Bytes,
}

impl Workload {
    /// Looks at the input.
    pub(super) fn new(plan: &Plan, run: RunPlan) -> Ended<Self> {
        let (input, seed) = (plan.input.clone(), plan.seed);
        match &plan.input {
            Input::File { path, key, queue, .. } => {
                let survey = input::survey(path, key, queue, run.messages)?;
                if run.exact && run.messages.is_some_and(|wanted| wanted > survey.rows) {
                    return Err(Failure::usage(format!(
                        "--messages {} is more than {} has: {} rows",
                        run.messages.unwrap_or_default(),
                        path.display(),
                        survey.rows
                    )));
                }
                let input::Survey { queues, rows, keys, keyless } = survey;
                Ok(Self { input, seed, queues, messages: rows, keys, keyless })
            }
            Input::Synthetic(synthetic) => {
                let messages = run.messages.unwrap_or_default();
                let queues = (0..synthetic.queues).map(|n| n.to_string().into_bytes()).collect();
                let mut seen = vec![false; synthetic.keys as usize];
                let draws = Draws::new(synthetic, seed);
                draws.take(usize::try_from(messages).unwrap_or(usize::MAX)).for_each(|key| {
                    seen[key as usize] = true;
                });
                let keys = seen.iter().filter(|seen| **seen).count() as u64;
                Ok(Self { input, seed, queues, messages, keys, keyless: 0 })
            }
        }
    }

    /// A queue's name, fit to be printed.
    pub(super) fn queue_name(&self, index: usize) -> String {
        match self.queues.get(index).map(|name| String::from_utf8_lossy(name)) {
            None => format!("queue {index}"),
            Some(name) if name.is_empty() => "(empty)".to_owned(),
            Some(name) => name.into_owned(),
        }
    }

    /// Says which messages these are: two workloads with the same text have the same messages.
    pub(super) fn fingerprint(&self) -> String {
        let Self { input, seed, messages, .. } = self;
        match input {
            Input::File { path, key, queue, .. } => format!(
                "{messages} rows of {}, key {key}, queue {queue}",
                path.file_name().unwrap_or_default().to_string_lossy()
            ),
            Input::Synthetic(synthetic) => {
                format!("{messages} made-up messages, seed {seed}, {synthetic:?}")
            }
        }
    }

    /// Whether the messages are the flights that come along, from the first one on.
    pub(super) fn is_flights(&self) -> bool {
        matches!(self.input, Input::File { flights: true, .. })
    }

    /// Hands out the messages in order, until `take` fails.
    pub(super) fn each(&self, mut take: impl FnMut(Item) -> Ended) -> Ended {
        match &self.input {
            Input::Synthetic(synthetic) => {
                // Every payload is a slice of one buffer.
                let buffer = Bytes::from(vec![b'.'; synthetic.payload as usize]);
                let draws = Draws::new(synthetic, self.seed);
                for (_, key) in (0..self.messages).zip(draws) {
                    take(Item {
                        queue: queue_of(key, synthetic.queues),
                        key: Some(Bytes::from(format!("key-{key}"))),
                        payload: buffer.clone(),
                    })?;
                }
                Ok(())
            }
            Input::File { path, key, queue, .. } => {
                let mut rows = Rows::open(path, key, queue)?;
                let mut text = Vec::new();
                for _ in 0..self.messages {
                    let Some(row) = rows.next()? else {
                        return Err(Failure::Other(format!(
                            "{} has become shorter while it was read",
                            path.display()
                        )));
                    };
                    let name = row.queue();
                    let queue = self.queues.binary_search_by(|known| known[..].cmp(name));
                    let Some(queue) = queue.ok().and_then(|index| u32::try_from(index).ok()) else {
                        return Err(Failure::Other(format!(
                            "{} has changed while it was read",
                            path.display()
                        )));
                    };
                    row.write_to(&mut text);
                    take(Item {
                        queue,
                        key: row.key().map(Bytes::copy_from_slice),
                        payload: Bytes::copy_from_slice(&text),
                    })?;
                }
                Ok(())
            }
        }
    }

    /// The balances that come of the first `counts[queue]` messages of each queue, taken in order;
    /// `None` where the messages are no flights.
    pub(super) fn balances(&self, counts: &[u64]) -> Ended<Option<Balances>> {
        let Input::File { path, key, queue, flights: true } = &self.input else { return Ok(None) };
        let column = Rows::open(path, key, queue)?.column("dep_delay");
        if column != Some(DELAY_COLUMN) {
            return Err(Failure::Other(format!(
                "{}: dep_delay is not column {DELAY_COLUMN}",
                path.display()
            )));
        }
        let mut balances = Balances::new(self.queues.len());
        let mut left = counts.to_vec();
        self.each(|item| {
            let left = left.get_mut(item.queue as usize).filter(|left| **left > 0);
            if let Some(left) = left {
                *left -= 1;
                let applied = balances.apply(
                    item.queue,
                    item.key.as_deref().unwrap_or_default(),
                    &item.payload,
                );
                applied.map_err(|error| Failure::other(path.display(), error))?;
            }
            Ok(())
        })?;
        Ok(Some(balances))
    }
}

/// The queue that a key's messages go to, as a producer would spread them.
fn queue_of(key: u32, queues: u32) -> u32 {
    let spread = Random(u64::from(key)).next() % u64::from(queues);
    u32::try_from(spread).unwrap_or(0)
}

/// The keys of made-up messages, for ever. Key 0 is the one that a skew or `--hot-key` prefers.
struct Draws {
    random: Random,
    keys: u32,
    hot_key: f64,
    /// Cumulative shares of the keys; empty where all are alike.
    zipf: Vec<f64>,
}

impl Draws {
    fn new(synthetic: &Synthetic, seed: u64) -> Self {
        let &Synthetic { keys, skew, hot_key, .. } = synthetic;
        let mut zipf = Vec::new();
        if skew > 0.0 {
            let mut sum = 0.0;
            let weights = (1..=keys).map(|rank| f64::from(rank).powf(-skew));
            zipf.extend(weights.map(|weight| {
                sum += weight;
                sum
            }));
        }
        Self { random: Random(seed), keys, hot_key, zipf }
    }
}

impl Iterator for Draws {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.hot_key > 0.0 && self.random.unit() < self.hot_key {
            return Some(0);
        }
        let unit = self.random.unit();
        #[expect(clippy::cast_possible_truncation, reason = "below the number of keys")]
        let key = match self.zipf.last() {
            None => (unit * f64::from(self.keys)) as u32,
            Some(all) => self.zipf.partition_point(|sum| *sum < unit * all) as u32,
        };
        Some(key.min(self.keys - 1))
    }
}

/// SplitMix64: small, and the same numbers everywhere.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Within `0.0..1.0`.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
