//! The messages of a run, in the order in which they are produced: read from a file or made up.
//! Asked twice, they are the same ones.

use std::collections::HashSet;

use bytes::Bytes;
use keylane_source::{Offset, QueueId};
use keylane_testkit::workload::{Keys, Sizes, Workload as MadeUp};

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
                let mut workload = Self { input, seed, queues, messages, keys: 0, keyless: 0 };
                let mut keys = HashSet::new();
                workload.each(|item| {
                    keys.extend(item.key);
                    Ok(())
                })?;
                workload.keys = keys.len() as u64;
                Ok(workload)
            }
        }
    }

    /// What the test kit makes up; `None` where messages come from a file.
    pub(super) fn made_up(&self, topic: &str) -> Option<MadeUp> {
        let Input::Synthetic(Synthetic { queues, keys, skew, hot_key, payload }) = self.input
        else {
            return None;
        };
        let keys = match (hot_key, skew) {
            (hot, _) if hot > 0.0 => Keys::hot(keys.into(), hot),
            (_, skew) if skew > 0.0 => Keys::zipf(keys.into(), skew),
            _ => Keys::uniform(keys.into()),
        };
        let made_up = MadeUp::new(self.seed).queues(topic, queues).messages(self.messages);
        Some(made_up.keys(keys).sizes(Sizes::Fixed(payload as usize)))
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

    /// Hands out the messages in order, until `take` fails.
    pub(super) fn each(&self, mut take: impl FnMut(Item) -> Ended) -> Ended {
        match &self.input {
            Input::Synthetic(_) => self.each_made_up(take),
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

    /// Queues in turn, so that they grow together.
    fn each_made_up(&self, mut take: impl FnMut(Item) -> Ended) -> Ended {
        let Some(made_up) = self.made_up("load") else { return Ok(()) };
        let queues = u32::try_from(self.queues.len()).unwrap_or(u32::MAX);
        for number in 0..self.messages {
            let queue = u32::try_from(number % u64::from(queues)).unwrap_or(0);
            let offset = Offset::new(number / u64::from(queues)).unwrap_or(Offset::MAX);
            let message = made_up.message(QueueId::new("load", queue), offset);
            let (key, payload) = (message.key_bytes().cloned(), message.payload_bytes().cloned());
            take(Item { queue, key, payload: payload.unwrap_or_default() })?;
        }
        Ok(())
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
