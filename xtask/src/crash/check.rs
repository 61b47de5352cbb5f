//! What the whole history says, once the last process has ended: it is fed to the guarantees of the
//! test kit, and compared with what the log holds.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use keylane_log::Log;
use keylane_source::{
    FetchLimits, Offset, Position, QueueId, SeekTo, Source, SourceEvent, Watermark,
};
use keylane_testkit::guarantee::{
    CallId, Checkers, CommitStep, Delivered, Epoch, Event, Found, Lane, MemberId, Moment, Outcome,
    Settled, Verdict,
};

use super::history::{Line, Looked, Message, Step};
use super::{FETCH, IN_FLIGHT, QUEUES, TOPIC, payload};
use crate::outcome::{Ended, Failure};

/// What was found.
pub(super) struct Checked {
    pub(super) verdict: Verdict,
    /// What the log had promised and does not hold.
    pub(super) missing: Vec<String>,
    pub(super) kills: Kills,
    pub(super) lines: u64,
}

/// Where the kills hit. One may count in several places.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Kills {
    all: u64,
    opening: u64,
    append: u64,
    commit: u64,
    call: u64,
}

impl Checked {
    pub(super) fn is_clean(&self) -> bool {
        self.verdict.is_clean() && self.missing.is_empty()
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kills { all, opening, append, commit, call } = &self.kills;
        writeln!(f, "{} lines of history", self.lines)?;
        writeln!(
            f,
            "{all} kills: {opening} before the first queue began, {append} inside an append, \
             {commit} with a commit not answered, {call} inside a listener call"
        )?;
        write!(f, "{}", self.verdict)?;
        self.missing.iter().try_for_each(|missing| write!(f, "\n{missing}"))
    }
}

/// Checks everything.
pub(super) fn check(history: &Path, log: &Log) -> Ended<Checked> {
    let failed = |error: std::io::Error| Failure::other(history.display(), error);
    let mut replay = Replay::new();
    let mut lines = 0;
    for line in BufReader::new(File::open(history).map_err(failed)?).lines() {
        lines += 1;
        let line: Line = line.map_err(failed)?.parse().map_err(Failure::Other)?;
        replay.take(line);
    }
    let mut missing = Vec::new();
    let ends = read_all(log, &mut missing)?;
    for index in 0..QUEUES {
        let end = ends.get(&index).copied().unwrap_or(0);
        let promised = replay.acknowledged.get(&index).copied().unwrap_or(0);
        if promised > end {
            missing.push(format!("queue {index} was acknowledged up to {promised}, ends at {end}"));
        }
        // Also what nobody was promised is owed, once it is there.
        replay.produced(index, 0, end);
    }
    let verdict = replay.checkers.verdict(Moment::Drained);
    Ok(Checked { verdict, missing, kills: replay.kills, lines })
}

/// Feeds lines to the checkers.
struct Replay {
    checkers: Checkers,
    process: u32,
    epochs: HashMap<u32, Epoch>,
    calls: HashMap<u64, Vec<Message>>,
    acknowledged: BTreeMap<u32, u64>,
    kills: Kills,
    /// Of the process that runs: whether a queue began, an append runs, how many commits are open.
    has_begun: bool,
    appends: bool,
    commits: i64,
}

impl Replay {
    fn new() -> Self {
        let in_flight = IN_FLIGHT + FETCH * QUEUES as usize;
        Self {
            checkers: Checkers::with_in_flight_limit(in_flight as u64),
            process: 0,
            epochs: HashMap::new(),
            calls: HashMap::new(),
            acknowledged: BTreeMap::new(),
            kills: Kills::default(),
            has_begun: false,
            appends: false,
            commits: 0,
        }
    }

    fn take(&mut self, line: Line) {
        match line {
            Line::Begins { queue, found, start } => self.begin(queue, found, start),
            Line::Fetched { queue, offsets, position } => {
                let id = QueueId::new(TOPIC, queue);
                let message = |at| keylane_source::Message::new(id, offset(at));
                self.checkers.observe(&Event::Fetched {
                    queue: id,
                    epoch: self.epoch(queue),
                    messages: &offsets.into_iter().map(message).collect::<Vec<_>>(),
                    position: position_at(position),
                });
            }
            Line::Called { call, shard, messages } => self.call(call, shard, messages),
            Line::Ended { call, done } => self.end(call, done),
            Line::Commit { queue, watermark, step } => {
                self.commits += if step == Step::Asked { 1 } else { -1 };
                self.checkers.observe(&Event::Committed {
                    queue: QueueId::new(TOPIC, queue),
                    epoch: self.epoch(queue),
                    watermark: watermark_at(watermark),
                    step: match step {
                        Step::Asked => CommitStep::Asked,
                        Step::Stored => CommitStep::Stored,
                        Step::Failed => CommitStep::Failed,
                    },
                });
            }
            Line::Released { queue } => self.checkers.observe(&Event::Revoked {
                queue: QueueId::new(TOPIC, queue),
                epoch: self.epoch(queue),
            }),
            Line::Appending => self.appends = true,
            Line::Appended { queue, first, end } => {
                self.appends = false;
                let promised = self.acknowledged.entry(queue).or_default();
                *promised = end.max(*promised);
                self.produced(queue, first, end);
            }
            Line::Killed => self.kill(),
            Line::Stopped => {
                self.checkers.observe(&Event::Stopped { member: MemberId(self.process) });
            }
        }
    }

    fn epoch(&self, queue: u32) -> Epoch {
        self.epochs.get(&queue).copied().unwrap_or_default()
    }

    fn produced(&mut self, queue: u32, first: u64, end: u64) {
        let queue = QueueId::new(TOPIC, queue);
        let (first, end) = (offset(first), position_at(end));
        self.checkers.observe(&Event::Produced { queue, first, end });
    }

    fn begin(&mut self, queue: u32, found: Looked, start: Option<u64>) {
        self.has_begun = true;
        let epoch = self.epochs.entry(queue).or_default();
        epoch.0 += 1;
        self.checkers.observe(&Event::Assigned {
            member: MemberId(self.process),
            queue: QueueId::new(TOPIC, queue),
            epoch: *epoch,
            found: match found {
                Looked::At(watermark) => Found::At(watermark_at(watermark)),
                Looked::Nothing => Found::Nothing,
                Looked::Unknown => Found::Unknown,
            },
            start: start.map(position_at),
        });
    }

    fn call(&mut self, call: u64, shard: usize, messages: Vec<Message>) {
        for message in &messages {
            let lane = Lane::key(message.key.clone());
            self.checkers.observe(&Event::Delivered(Delivered {
                member: MemberId(self.process),
                call: self.call_id(call),
                queue: QueueId::new(TOPIC, message.queue),
                epoch: self.epoch(message.queue),
                offset: offset(message.offset),
                lane: &lane,
                shard,
                attempt: message.attempt,
            }));
        }
        self.calls.insert(call, messages);
    }

    fn end(&mut self, call: u64, done: usize) {
        let messages = self.calls.remove(&call).unwrap_or_default();
        for (index, message) in messages.iter().enumerate() {
            let lane = Lane::key(message.key.clone());
            self.checkers.observe(&Event::Settled(Settled {
                member: MemberId(self.process),
                call: Some(self.call_id(call)),
                queue: QueueId::new(TOPIC, message.queue),
                epoch: self.epoch(message.queue),
                offset: offset(message.offset),
                lane: &lane,
                outcome: if index < done { Outcome::Done } else { Outcome::Failed },
            }));
        }
    }

    /// Each process counts its calls from zero.
    fn call_id(&self, call: u64) -> CallId {
        CallId(u64::from(self.process) << 40 | call)
    }

    fn kill(&mut self) {
        let Kills { all, opening, append, commit, call } = &mut self.kills;
        *all += 1;
        *opening += u64::from(!self.has_begun);
        *append += u64::from(self.appends);
        *commit += u64::from(self.commits > 0);
        *call += u64::from(!self.calls.is_empty());
        self.checkers.observe(&Event::Crashed { member: MemberId(self.process) });
        self.process += 1;
        self.calls.clear();
        (self.has_begun, self.appends, self.commits) = (false, false, 0);
    }
}

/// Reads the log from its beginning, each record against its place; where each queue ends.
fn read_all(log: &Log, missing: &mut Vec<String>) -> Ended<BTreeMap<u32, u64>> {
    let failed = |error: keylane_log::Error| Failure::Broken(format!("read the log: {error}"));
    log.verify().map_err(failed)?;
    let mut source = log.source(TOPIC, "check").map_err(failed)?;
    let mut next: BTreeMap<u32, u64> = BTreeMap::new();
    let mut events = Vec::new();
    let limits = FetchLimits { messages: 1_000, bytes: 1 << 20 };
    loop {
        let polled = source.poll(limits, Duration::ZERO, &mut events);
        polled.map_err(|error| Failure::Broken(format!("read the log: {error}")))?;
        if events.is_empty() {
            break;
        }
        for event in events.drain(..) {
            match event {
                SourceEvent::Assigned { queue, .. } => source.seek(queue, SeekTo::Earliest),
                SourceEvent::Fetched(fetch) => {
                    let next = next.entry(fetch.queue.index()).or_default();
                    for message in &fetch.messages {
                        let expected = payload(fetch.queue.index(), *next);
                        let found = message.payload().unwrap_or_default();
                        let is_right = message.offset().get() == *next
                            && found.starts_with(format!("{expected} ").as_bytes());
                        if !is_right && missing.len() < 10 {
                            missing.push(format!("{expected} is not what the log has there"));
                        }
                        *next += 1;
                    }
                }
                _ => {}
            }
        }
    }
    Ok(next)
}

fn offset(at: u64) -> Offset {
    Offset::new(at).unwrap_or(Offset::MAX)
}

fn position_at(at: u64) -> Position {
    Position::new(at).unwrap_or(Position::ZERO)
}

fn watermark_at(at: u64) -> Watermark {
    Watermark::new(at).unwrap_or(Watermark::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(lines: &[&str]) -> (Verdict, Kills) {
        let mut replay = Replay::new();
        lines.iter().for_each(|line| replay.take(line.parse().unwrap()));
        (replay.checkers.verdict(Moment::Drained), replay.kills)
    }

    /// Two messages, the first of which was in a call when the process died.
    const KILLED: [&str; 7] = [
        "begins 0 none anywhere",
        "appending",
        "appended 0 0 2",
        "fetched 0 2 0-2",
        "called 0 1 0:0:1:a",
        "appending",
        "killed",
    ];

    #[test]
    fn what_a_kill_interrupts_is_done_again() {
        let again = [
            "begins 0 none anywhere",
            "fetched 0 2 0-2",
            "called 0 1 0:0:1:a,0:1:1:b",
            "ended 0 2",
            "commit 0 2 asked",
            "commit 0 2 stored",
            "released 0",
            "stopped",
        ];
        let (verdict, kills) = verdict(&[&KILLED[..], &again].concat());
        verdict.assert_clean();
        assert_eq!((verdict.delivered, verdict.duplicates), (2, 0));
        assert_eq!(kills, Kills { all: 1, opening: 0, append: 1, commit: 0, call: 1 });
    }

    #[test]
    fn a_commit_that_passes_the_interrupted_call_is_seen() {
        let mut early = KILLED.to_vec();
        early.insert(5, "commit 0 2 asked");
        let again = ["begins 0 2 2", "stopped"];
        let (verdict, kills) = verdict(&[&early[..], &again].concat());
        assert_eq!((verdict.commit_violations, verdict.lost), (1, 2), "{verdict}");
        assert_eq!(kills, Kills { all: 1, opening: 0, append: 1, commit: 1, call: 1 });
    }
}
