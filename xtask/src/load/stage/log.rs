//! Messages in the embedded log: in a temporary folder, or in one that stays.
//!
//! # A folder that stays
//!
//! A run may be killed at any moment, while it writes or while it consumes, and the next one goes
//! on:
//!
//! - Messages of a queue are written in order, and a batch is there whole or not at all. So what
//!   each queue has is a beginning of what it should have, and the next run writes the rest.
//! - It consumes as the same group, from what that group had committed. What lies below was finished
//!   by earlier runs: it is counted apart, never as delivered.
//! - A group that has committed everything is done with; the next run is another group.
//!
//! A file beside the log says which messages it holds; other ones are refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use keylane_log::{Batch, Log, Producer, Record};
use keylane_source::{Offset, Position, Source};
use tempfile::TempDir;

use super::{Producing, Stored, Writer};
use crate::load::plan::{Plan, RunPlan};
use crate::load::workload::Workload;
use crate::outcome::{Ended, Failure};

const TOPIC: &str = "load";
/// The file that says which messages the folder holds.
const CONTENT: &str = "content.txt";
/// Records a batch: one write to the store.
const BATCH: usize = 256;

/// A log, its topic and the group that consumes it.
pub(in crate::load) struct LogStage {
    log: Log,
    producer: Producer,
    group: String,
    /// Removed after the log was closed.
    _temporary: Option<TempDir>,
}

struct LogWriter(Producer);

impl LogStage {
    /// Opens or creates the folder.
    pub(super) fn open(plan: &Plan, run: RunPlan, workload: &Workload) -> Ended<Self> {
        let (temporary, folder) = match &plan.dir {
            Some(dir) => (None, lasting(dir, run, workload)?),
            None => {
                let temporary = TempDir::with_prefix("keylane-load-")
                    .map_err(|error| Failure::other("create a temporary folder", error))?;
                let folder = temporary.path().join("log");
                (Some(temporary), folder)
            }
        };
        let open = || -> Result<_, keylane_log::Error> {
            let log = Log::open(&folder)?;
            let queues = u32::try_from(workload.queues.len()).unwrap_or(u32::MAX);
            log.ensure_topic(TOPIC, queues)?;
            let producer = log.producer(TOPIC)?;
            let group = group(&log, workload.messages)?;
            Ok(Self { log, producer, group, _temporary: temporary })
        };
        open().map_err(|error| Failure::other(format!("log in {}", folder.display()), error))
    }

    pub(super) fn writer(&self) -> Box<dyn Writer> {
        Box::new(LogWriter(self.producer.clone()))
    }

    pub(super) fn produce(&self, producing: &Producing<'_>) -> Ended {
        let stored = self.stored()?;
        for Stored { queue, end, .. } in &stored {
            let end = Position::new(*end).unwrap_or(Position::ZERO);
            producing.recorder.produced_range(*queue, Offset::ZERO, end);
            producing.produced.note(*queue, Offset::ZERO, Instant::now());
        }
        let there: Vec<u64> = stored.iter().map(|stored| stored.end).collect();
        self.writer().write(producing, there)
    }

    pub(super) fn source(&self) -> Ended<Box<dyn Source>> {
        let source = self.log.source(TOPIC, &self.group);
        let source = source.map_err(|error| Failure::other("consume from the log", error))?;
        Ok(Box::new(source))
    }

    pub(super) fn stored(&self) -> Ended<Vec<Stored>> {
        let read = || -> Result<Vec<Stored>, keylane_log::Error> {
            let queues = self.log.topic(TOPIC)?.queues;
            let groups = self.log.groups(TOPIC)?;
            let group = groups.iter().find(|group| group.group == self.group);
            let stored = queues.iter().enumerate().map(|(index, queue)| Stored {
                queue: queue.queue,
                committed: group.and_then(|group| group.queues.get(index)?.committed),
                end: queue.end.get(),
            });
            Ok(stored.collect())
        };
        read().map_err(|error| Failure::other("look into the log", error))
    }
}

impl Writer for LogWriter {
    fn write(self: Box<Self>, producing: &Producing<'_>, mut there: Vec<u64>) -> Ended {
        let mut batch = self.0.batch();
        // Paced, messages come in small batches: what is due by now, and no more.
        let mut written = 0;
        producing.workload.each(|item| {
            if let Some(skip) = there.get_mut(item.queue as usize).filter(|skip| **skip > 0) {
                *skip -= 1;
                written += 1;
                return Ok(());
            }
            if let Some(pace) = producing.pace {
                let wait = pace.due(written).saturating_duration_since(Instant::now());
                if !wait.is_zero() {
                    self.append(&mut batch, producing, written)?;
                    thread::sleep(wait);
                }
            }
            let record = Record::new().with_payload(&item.payload).to_queue(item.queue);
            let record = match &item.key {
                Some(key) => record.with_key(key),
                None => record,
            };
            batch.push(&record).map_err(|error| Failure::other("write into the log", error))?;
            written += 1;
            if batch.len() >= BATCH {
                self.append(&mut batch, producing, written)?;
                (producing.written)(written);
            }
            Ok(())
        })?;
        self.append(&mut batch, producing, written)?;
        (producing.written)(written);
        Ok(())
    }
}

impl LogWriter {
    /// Appends the batch, whose last message is the one before the `written`-th.
    fn append(&self, batch: &mut Batch, producing: &Producing<'_>, written: u64) -> Ended {
        let now = Instant::now();
        // Paced, a message counts as produced when it was due: being late is latency, too.
        let due = producing.pace.map(|pace| pace.due(written.saturating_sub(1)));
        let at = due.map_or(now, |due| due.min(now));
        let appended = self.0.append(batch);
        for one in appended.map_err(|error| Failure::other("write into the log", error))? {
            let end = Position::new(one.first.get() + one.count).unwrap_or(Position::ZERO);
            producing.recorder.produced_range(one.queue, one.first, end);
            producing.produced.note(one.queue, one.first, at);
        }
        Ok(())
    }
}

/// The group that consumes: the last one, unless it has committed everything.
fn group(log: &Log, messages: u64) -> Result<String, keylane_log::Error> {
    let name = |n: u64| format!("run-{n}");
    let groups = log.groups(TOPIC)?;
    let number = |group: &str| group.strip_prefix("run-")?.parse::<u64>().ok();
    let last = groups
        .iter()
        .filter_map(|group| Some((number(&group.group)?, group)))
        .max_by_key(|(n, _)| *n);
    let Some((number, last)) = last else { return Ok(name(1)) };
    let written: u64 = log.topic(TOPIC)?.queues.iter().map(|queue| queue.end.get()).sum();
    let is_done = written == messages && last.queues.iter().all(|queue| queue.lag == 0);
    Ok(name(if is_done { number + 1 } else { number }))
}

/// The log's folder inside one that stays, which must hold these messages or nothing.
fn lasting(dir: &Path, run: RunPlan, workload: &Workload) -> Ended<PathBuf> {
    let wanted = format!("{}, {}\n", workload.fingerprint(), super::super::plan::name(run.mode));
    let content = dir.join(CONTENT);
    let failed = |error: std::io::Error| Failure::other(content.display(), error);
    match fs::read_to_string(&content) {
        Ok(there) if there == wanted => {}
        Ok(there) => {
            return Err(Failure::usage(format!(
                "--dir {} holds something else: {}; it would have to be: {}",
                dir.display(),
                there.trim_end(),
                wanted.trim_end()
            )));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            fs::create_dir_all(dir).map_err(failed)?;
            let is_empty = fs::read_dir(dir).map_err(failed)?.next().is_none();
            if !is_empty {
                return Err(Failure::usage(format!(
                    "--dir {} holds something that is not of this program: name an empty folder, \
                     or one that does not exist",
                    dir.display()
                )));
            }
            fs::write(&content, wanted).map_err(failed)?;
        }
        Err(error) => return Err(failed(error)),
    }
    Ok(dir.join("log"))
}
