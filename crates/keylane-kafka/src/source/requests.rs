//! What is asked of the broker and answered later: commits, look-ups, seeks.

use std::time::{Duration, Instant};

use keylane_source::{
    Commit, Committed, Position, QueueId, ResetCause, SeekTo, SourceError, SourceEvent, Watermark,
};

use super::KafkaSource;
use super::queues::{Phase, Tenure};
use crate::native::{Code, Event, Partition, Tag, Trouble};

/// How long a look-up may take before it counts as failed.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long librdkafka's own thread may take to carry a seek out.
pub(super) const SEEK_TIMEOUT: Duration = Duration::from_millis(100);
/// When what was refused is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// Begin and end of a partition, as Kafka's look-up of offsets wants them.
const BEGIN: i64 = -2;
const END: i64 = -1;

/// What an answer belongs to.
#[derive(Debug)]
pub(super) enum Request {
    Commits(Vec<Commit>),
    /// What the group has committed; `first`: the engine does not know these queues yet.
    Committed {
        asked: Vec<(QueueId, Tenure)>,
        first: bool,
    },
    /// Where to seek to.
    Timestamp {
        queue: QueueId,
        tenure: Tenure,
        timestamp_ms: i64,
    },
    /// Where a queue begins, then where it ends: it was asked for a position that it does not have.
    Range {
        queue: QueueId,
        tenure: Tenure,
        asked: Position,
        begin: Option<Position>,
    },
}

impl KafkaSource {
    fn note(&mut self, request: Request) -> Tag {
        self.last_tag += 1;
        self.requests.insert(self.last_tag, request);
        self.last_tag
    }

    pub(super) fn send_requests(&mut self, now: Instant) {
        self.send_commits();
        if self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.retry_at = None;
        self.send_seeks(now);
        for (queue, asked) in std::mem::take(&mut self.ranges) {
            let Some(state) = self.queues.get(queue) else { continue };
            let tenure = state.tenure;
            self.ask_range(Request::Range { queue, tenure, asked, begin: None }, queue, BEGIN);
        }
    }

    /// All commits of a round are one request.
    fn send_commits(&mut self) {
        if self.commits.is_empty() {
            return;
        }
        let commits = std::mem::take(&mut self.commits);
        let offsets: Vec<_> = commits
            .iter()
            .map(|commit| (commit.queue, commit.watermark.to_i64(), commit.metadata.clone()))
            .collect();
        let tag = self.note(Request::Commits(commits));
        if let Err(code) = self.client.commit(offsets.into_iter(), tag) {
            self.on_stored(tag, Err(code), &[]);
        }
    }

    pub(super) fn ask_committed(&mut self, asked: Vec<(QueueId, Tenure)>, first: bool) {
        let queues: Vec<_> = asked.iter().map(|(queue, _)| *queue).collect();
        let tag = self.note(Request::Committed { asked, first });
        self.client.look_up_committed(&self.options.group, &queues, LOOK_UP_TIMEOUT, tag);
    }

    fn ask_range(&mut self, request: Request, queue: QueueId, at: i64) {
        let tag = self.note(request);
        self.ask_offsets(queue, at, tag);
    }

    fn ask_offsets(&mut self, queue: QueueId, at: i64, tag: Tag) {
        let read_committed = self.options.read_committed;
        let asked = [(queue, at)];
        if let Err(code) = self.client.look_up_offsets(&asked, read_committed, LOOK_UP_TIMEOUT, tag)
        {
            self.on_offsets(tag, Err(code.to_string()));
        }
    }

    /// Carries out the seeks that were asked for; what is refused stays to be tried again.
    fn send_seeks(&mut self, now: Instant) {
        let mut moves = Vec::new();
        for queue in std::mem::take(&mut self.seeks) {
            let Some(state) = self.queues.get_mut(queue) else { continue };
            let Some(to) = state.seek else { continue };
            let (tenure, broken) = (state.tenure, state.broken);
            match offset_of(to) {
                Ok(offset) if broken => self.revive(queue, offset),
                Ok(offset) => moves.push((queue, offset)),
                Err(timestamp_ms) => {
                    let tag = self.note(Request::Timestamp { queue, tenure, timestamp_ms });
                    self.ask_offsets(queue, timestamp_ms.max(0), tag);
                }
            }
        }
        self.move_queues(&moves);
        if !self.seeks.is_empty() {
            self.retry_at = Some(now + RETRY_AFTER);
        }
    }

    fn move_queues(&mut self, moves: &[(QueueId, i64)]) {
        if moves.is_empty() {
            return;
        }
        let results = self.client.seek(moves, SEEK_TIMEOUT);
        for (index, (queue, offset)) in moves.iter().enumerate() {
            let result = match &results {
                Ok(results) => results[index],
                Err(code) => Err(*code),
            };
            match result {
                Ok(()) => self.on_moved(*queue, *offset),
                // Usual right after the assignment: its fetcher is not there yet.
                Err(_) => self.seeks.push(*queue),
            }
        }
    }

    fn revive(&mut self, queue: QueueId, offset: i64) {
        match self.reassign(queue, offset) {
            Ok(()) => {
                if let Some(state) = self.queues.get_mut(queue) {
                    state.broken = false;
                }
            }
            Err(code) => {
                let error = SourceError::retryable(format!("restart {queue} at {offset}: {code}"));
                self.told.push_back(SourceEvent::QueueError { queue, error });
            }
        }
        self.seeks.push(queue);
    }

    /// Seeks a running queue to where it is read to, without dropping what waits to be given out.
    pub(super) fn follow_with_seek(&mut self, queue: QueueId, at: i64) {
        let Some(state) = self.queues.get_mut(queue) else { return };
        if state.started && state.phase == Phase::Open && state.seek.is_none() {
            state.seek = Some(place_of(at));
            self.seeks.push(queue);
        }
    }

    /// librdkafka is where the engine wants it: from now on it may fetch.
    fn on_moved(&mut self, queue: QueueId, offset: i64) {
        let Some(state) = self.queues.get_mut(queue) else { return };
        state.moved_to = offset;
        (state.seek, state.broken, state.started) = (None, false, true);
        self.client.pause(&[queue], false);
        let forwarded = state.wants_forward();
        state.forwarded = forwarded;
        self.client.forward(queue, forwarded);
    }

    pub(super) fn serve_replies(&mut self, _now: Instant) {
        while let Some(event) = self.client.replies.next() {
            match event {
                Event::Stored { tag, result, partitions } => {
                    self.on_stored(tag, result, &partitions);
                }
                Event::Committed { tag, result } => self.on_committed(tag, &result),
                Event::Offsets { tag, result } => self.on_offsets(tag, result),
                _ => {}
            }
        }
    }

    fn on_stored(&mut self, tag: Tag, whole: Result<(), Code>, partitions: &[Partition]) {
        let Some(Request::Commits(commits)) = self.requests.remove(&tag) else { return };
        for commit in commits {
            let one = partitions.iter().find(|partition| partition.queue == commit.queue);
            let result = one.map_or(whole, |one| whole.and(one.accepted())).map_err(|code| {
                SourceError::retryable(format!(
                    "commit {} at {} for group {}: {code}",
                    commit.queue, commit.watermark, self.options.group
                ))
            });
            self.told.push_back(SourceEvent::CommitResult { commit, result });
        }
    }

    fn on_committed(&mut self, tag: Tag, result: &Result<Vec<Partition>, String>) {
        let Some(Request::Committed { asked, first }) = self.requests.remove(&tag) else { return };
        for (queue, tenure) in asked {
            let current = self.queues.get_mut(queue).filter(|state| state.tenure == tenure);
            let Some(state) = current else { continue };
            let committed = committed_of(queue, &self.options.group, result);
            if first {
                state.phase = Phase::Open;
                self.told.push_back(SourceEvent::Assigned { queue, committed });
            } else if state.phase == Phase::Open {
                self.told.push_back(SourceEvent::LookedUp { queue, committed });
            }
        }
    }

    fn on_offsets(&mut self, tag: Tag, result: Result<Vec<Partition>, String>) {
        let found = result.and_then(|partitions| {
            let one = partitions.into_iter().next().ok_or("the answer is empty")?;
            one.accepted().map_err(|code| code.to_string())?;
            Ok(one.offset)
        });
        match self.requests.remove(&tag) {
            Some(Request::Timestamp { queue, tenure, timestamp_ms }) => {
                self.on_timestamp(queue, tenure, timestamp_ms, found);
            }
            Some(Request::Range { queue, tenure, asked, begin }) => {
                self.on_range((queue, tenure), asked, begin, found);
            }
            _ => {}
        }
    }

    fn on_timestamp(
        &mut self,
        queue: QueueId,
        tenure: Tenure,
        timestamp_ms: i64,
        found: Result<i64, String>,
    ) {
        let current = self.queues.get_mut(queue).filter(|state| state.tenure == tenure);
        let Some(state) = current else { return };
        if state.seek != Some(SeekTo::TimestampMs(timestamp_ms)) {
            return;
        }
        self.seeks.push(queue);
        match found {
            // Behind the last message where none is that young.
            Ok(offset) => {
                state.seek =
                    Some(Position::from_i64(offset).map_or(SeekTo::Latest, SeekTo::Position));
            }
            Err(text) => {
                let text = format!("look up timestamp {timestamp_ms} in {queue}: {text}");
                let error = SourceError::retryable(text);
                self.told.push_back(SourceEvent::QueueError { queue, error });
                self.retry_later();
            }
        }
    }

    fn on_range(
        &mut self,
        (queue, tenure): (QueueId, Tenure),
        asked: Position,
        begin: Option<Position>,
        found: Result<i64, String>,
    ) {
        let current = self.queues.get(queue).filter(|state| state.tenure == tenure);
        // The engine may have moved it meanwhile.
        let Some(_) = current.filter(|state| state.broken && state.seek.is_none()) else { return };
        let found = found.and_then(|offset| {
            Position::from_i64(offset).ok_or_else(|| format!("{offset} is not an offset"))
        });
        match (begin, found) {
            (None, Ok(begin)) => {
                let request = Request::Range { queue, tenure, asked, begin: Some(begin) };
                self.ask_range(request, queue, END);
            }
            (Some(begin), Ok(end)) => {
                let cause = ResetCause::OutOfRange { asked, begin, end };
                self.told.push_back(SourceEvent::Reset { queue, cause });
            }
            (_, Err(text)) => {
                let error = SourceError::retryable(format!("look up the range of {queue}: {text}"));
                self.told.push_back(SourceEvent::QueueError { queue, error });
                self.ranges.push((queue, asked));
                self.retry_later();
            }
        }
    }

    fn retry_later(&mut self) {
        self.retry_at = Some(Instant::now() + RETRY_AFTER * 10);
    }

    /// An error that came among a queue's messages.
    pub(super) fn on_queue_trouble(&mut self, queue: QueueId, trouble: &Trouble) {
        let Some(state) = self.queues.get_mut(queue) else { return };
        if state.phase != Phase::Open || state.seek.is_some() || !state.started {
            return;
        }
        if trouble.code == Code::OFFSET_RESET {
            state.broken = true;
            let asked = Position::from_i64(trouble.offset).or(state.read);
            self.ranges.push((queue, asked.unwrap_or(Position::ZERO)));
            self.signal.activity();
            return;
        }
        let text = format!("fetch {queue} at {}: {}", trouble.offset, trouble.text);
        let error = SourceError::retryable(text);
        self.told.push_back(SourceEvent::QueueError { queue, error });
    }

    /// Commits that will not be answered any more are answered so.
    pub(super) fn fail_commits(&mut self) {
        let mut open = std::mem::take(&mut self.commits);
        for request in std::mem::take(&mut self.requests).into_values() {
            if let Request::Commits(commits) = request {
                open.extend(commits);
            }
        }
        for commit in open {
            let text = format!(
                "commit {} at {} for group {}: no answer before the source was closed",
                commit.queue, commit.watermark, self.options.group
            );
            let result = Err(SourceError::retryable(text));
            self.told.push_back(SourceEvent::CommitResult { commit, result });
        }
    }

    pub(super) fn commits_under_way(&self) -> bool {
        let commits = |request: &Request| matches!(request, Request::Commits(_));
        !self.commits.is_empty() || self.requests.values().any(commits)
    }
}

/// The place that librdkafka's number stands for.
fn place_of(offset: i64) -> SeekTo {
    match Position::from_i64(offset) {
        Some(position) => SeekTo::Position(position),
        None if offset == BEGIN => SeekTo::Earliest,
        None => SeekTo::Latest,
    }
}

/// librdkafka's number for a place; a timestamp has to be looked up first.
fn offset_of(to: SeekTo) -> Result<i64, i64> {
    match to {
        SeekTo::Position(position) => Ok(position.to_i64()),
        SeekTo::Earliest => Ok(BEGIN),
        SeekTo::TimestampMs(timestamp_ms) => Err(timestamp_ms),
        // `Latest`, and whatever the boundary may know one day.
        _ => Ok(END),
    }
}

fn committed_of(queue: QueueId, group: &str, result: &Result<Vec<Partition>, String>) -> Committed {
    let failed = |text: &dyn std::fmt::Display| {
        let text = format!("look up what group {group} has committed for {queue}: {text}");
        Committed::Failed(SourceError::retryable(text))
    };
    let partitions = match result {
        Ok(partitions) => partitions,
        Err(text) => return failed(text),
    };
    let Some(one) = partitions.iter().find(|partition| partition.queue == queue) else {
        return failed(&"the answer does not name the queue");
    };
    match (one.accepted(), Watermark::from_i64(one.offset)) {
        (Err(code), _) => failed(&code),
        (Ok(()), None) => Committed::None,
        (Ok(()), Some(watermark)) => Committed::At { watermark, metadata: one.metadata.clone() },
    }
}
