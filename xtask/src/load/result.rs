//! What came of a run, and whether it is as it should be.

use std::time::Duration;

use hdrhistogram::Histogram;
use indicatif::HumanCount;
use keylane::Metrics;
use keylane_testkit::guarantee::Verdict;

use super::balances::{LARGEST, Totals, WHOLE_FILE};
use crate::flags::Mode;

/// Everything that table, JSON and report show.
pub(super) struct RunResult {
    pub(super) mode: Mode,
    pub(super) source: String,
    pub(super) shards: u32,
    /// How many calls can run at the same time.
    pub(super) threads: u32,
    pub(super) in_flight_limit: u64,
    pub(super) work: String,
    pub(super) seed: u64,
    pub(super) queues: Vec<QueueResult>,
    pub(super) keys: u64,
    pub(super) keyless: u64,
    pub(super) messages: u64,
    /// Finished by earlier runs over the same folder: below what their group had committed.
    pub(super) finished_before: u64,
    /// From the start of the consumer until the last message was done.
    pub(super) elapsed: Duration,
    /// How long the messages took to write, where they were written before.
    pub(super) written_in: Option<Duration>,
    pub(super) verdict: Verdict,
    pub(super) metrics: Metrics,
    pub(super) tally: Counted,
    pub(super) cpu_seconds: Option<f64>,
    pub(super) peak_bytes: Option<u64>,
    /// Messages per second of bare threads that do the same work.
    pub(super) ceiling: Option<f64>,
    pub(super) flights: Option<Flights>,
    pub(super) samples: Vec<Sample>,
    /// Why the consumer did not end well, or did not get on.
    pub(super) trouble: Vec<String>,
}

/// One queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueueResult {
    pub(super) name: String,
    pub(super) finished_before: u64,
    pub(super) delivered: u64,
    /// As the store has it.
    pub(super) committed: u64,
    pub(super) end: u64,
}

/// What the listeners counted.
pub(super) struct Counted {
    /// Successful messages per shard.
    pub(super) per_shard: Vec<u64>,
    pub(super) failures: u64,
    pub(super) panics: u64,
    pub(super) hand_off: Histogram<u64>,
    pub(super) in_engine: Histogram<u64>,
    /// `None` where everything was written before it was consumed: then it only says how long that
    /// took.
    pub(super) end_to_end: Option<Histogram<u64>>,
}

/// How far a run was, at some moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) at: Duration,
    pub(super) done: u64,
}

/// The balances of the flights: a value that only comes out right in the right order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flights {
    pub(super) got: Totals,
    /// What the same flights give in order, read straight from the file.
    pub(super) right: Totals,
    /// The balance of the aircraft that has the largest one in the whole file.
    pub(super) largest_is: Option<i64>,
}

/// A guarantee, and whether it held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) what: &'static str,
    pub(super) held: bool,
    pub(super) detail: String,
}

impl RunResult {
    /// Distinct messages that reached the listener and succeeded.
    pub(super) fn delivered(&self) -> u64 {
        self.verdict.delivered
    }

    pub(super) fn per_second(&self) -> f64 {
        per_second(self.delivered(), self.elapsed)
    }

    /// Whether every queue is committed at its end, and has everything that was to be produced.
    pub(super) fn committed(&self) -> bool {
        let written: u64 = self.queues.iter().map(|queue| queue.end).sum();
        let at_end = |queue: &QueueResult| queue.committed == queue.end;
        self.queues.iter().all(at_end) && written == self.messages
    }

    /// The messages of the fullest shard over what each thread would have if they were even: 1 is
    /// even. Without order any thread takes any message.
    pub(super) fn imbalance(&self) -> f64 {
        let most = self.tally.per_shard.iter().max().copied().unwrap_or(0);
        let all: u64 = self.tally.per_shard.iter().sum();
        if all == 0 || self.mode == Mode::Concurrent {
            return 1.0;
        }
        (most as f64 * f64::from(self.threads) / all as f64).max(1.0)
    }

    /// What bare threads would reach that get exactly these messages.
    pub(super) fn ceiling_for_these_keys(&self) -> Option<f64> {
        self.ceiling.map(|ceiling| ceiling / self.imbalance())
    }

    /// Every guarantee that was checked.
    pub(super) fn guarantees(&self) -> Vec<Line> {
        let verdict = &self.verdict;
        let count = |what, count: u64, of: &str| Line {
            what,
            held: count == 0,
            detail: if count == 0 { of.to_owned() } else { format!("broken {count} times") },
        };
        let unit = match self.mode {
            Mode::KeySharded => "of a key",
            Mode::QueueLocked => "of a queue",
            Mode::Concurrent => "(this mode promises none)",
        };
        let committed = self.committed();
        let accounted = self.delivered() + self.finished_before == self.messages;
        vec![
            count("G1 order", verdict.order_violations, &format!("messages {unit} in order")),
            count(
                "G2 exclusion",
                verdict.overlap_violations,
                &format!("no two calls {unit} overlap"),
            ),
            Line {
                what: "G3 nothing lost",
                held: verdict.lost == 0 && accounted,
                detail: format!(
                    "{} delivered + {} by earlier runs of {} · {} lost",
                    HumanCount(self.delivered()),
                    HumanCount(self.finished_before),
                    HumanCount(self.messages),
                    HumanCount(verdict.lost)
                ),
            },
            count(
                "G3 commits",
                verdict.commit_violations,
                "no commit passed an unfinished message",
            ),
            Line {
                what: "G4 progress",
                held: committed && verdict.committed,
                detail: if committed {
                    "every queue committed to its end"
                } else {
                    "not at the end"
                }
                .to_owned(),
            },
            Line {
                what: "G5 bounded",
                held: self.metrics.in_flight_max <= self.in_flight_limit,
                detail: format!(
                    "{} in flight at most, {} allowed",
                    HumanCount(self.metrics.in_flight_max),
                    HumanCount(self.in_flight_limit)
                ),
            },
            count(
                "the rest",
                verdict.other_violations,
                "no repetition without a reason, no call after the end",
            ),
        ]
    }

    /// What is not as it should be, in words; nothing where all is well.
    pub(super) fn broken(&self) -> Vec<String> {
        let mut broken: Vec<String> = self
            .guarantees()
            .into_iter()
            .filter(|line| !line.held)
            .map(|line| format!("{}: {}", line.what, line.detail))
            .collect();
        broken.extend(self.verdict.violations.iter().map(ToString::to_string));
        broken.extend(self.trouble.iter().cloned());
        if let Some(flights) = &self.flights {
            broken.extend(flights.wrong());
        }
        broken
    }
}

impl Flights {
    /// Whether all of the file was consumed.
    pub(super) fn is_whole_file(&self) -> bool {
        self.right.messages == WHOLE_FILE.messages
    }

    /// What is not as it should be.
    pub(super) fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.got != self.right {
            wrong
                .push(format!("balances: {:?}, in order they would be {:?}", self.got, self.right));
        }
        if self.is_whole_file() {
            if self.right != WHOLE_FILE {
                wrong
                    .push(format!("the file is another one: {:?}, not {WHOLE_FILE:?}", self.right));
            }
            if self.largest_is != Some(WHOLE_FILE.largest) {
                let (queue, key) = LARGEST;
                let got = self.largest_is;
                wrong.push(format!(
                    "balance of {key} at {queue}: {got:?}, not {}",
                    WHOLE_FILE.largest
                ));
            }
        }
        wrong
    }
}

/// So many in so long.
pub(super) fn per_second(messages: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { messages as f64 / elapsed.as_secs_f64() }
}
