//! What is asked of the broker and answered later: look-ups and seeks (commits: `commits.rs`).

use std::time::{Duration, Instant};

use keylane_source::{
    Committed, EndOffset, Position, QueueId, ResetCause, SeekTo, SourceError, SourceEvent,
    Watermark,
};

use super::KafkaSource;
use super::commits::Pending;
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
    Commits(Vec<Pending>),
    /// What the group has committed; `first`: the engine does not know these queues yet.
    Committed {
        asked: Vec<(QueueId, Tenure)>,
        first: bool,
    },
    /// Where the places lie that queues are to be moved to.
    Places(Vec<(QueueId, Tenure, SeekTo)>),
    /// Where queues end.
    Ends(Vec<(QueueId, Tenure)>),
    /// Where a queue begins, then where it ends: it was asked for a position that it does not have.
    Range {
        queue: QueueId,
        tenure: Tenure,
        asked: Position,
        begin: Option<Position>,
    },
}

impl KafkaSource {
    pub(super) fn note(&mut self, request: Request) -> Tag {
        self.last_tag += 1;
        self.requests.insert(self.last_tag, request);
        self.last_tag
    }

    pub(super) fn send_requests(&mut self, now: Instant) {
        self.send_commits(now);
        if self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.retry_at = None;
        self.send_seeks(now);
        for (queue, asked) in std::mem::take(&mut self.ranges) {
            let Some(state) = self.queues.get(queue) else { continue };
            let tenure = state.tenure;
            let request = Request::Range { queue, tenure, asked, begin: None };
            self.ask_offsets(request, vec![(queue, BEGIN)]);
        }
    }

    pub(super) fn ask_committed(&mut self, asked: Vec<(QueueId, Tenure)>, first: bool) {
        let queues: Vec<_> = asked.iter().map(|(queue, _)| *queue).collect();
        let tag = self.note(Request::Committed { asked, first });
        self.client.look_up_committed(&self.options.group, &queues, LOOK_UP_TIMEOUT, tag);
    }

    fn ask_offsets(&mut self, request: Request, asked: Vec<(QueueId, i64)>) {
        let tag = self.note(request);
        let read_committed = self.options.read_committed;
        if let Err(code) = self.client.look_up_offsets(&asked, read_committed, LOOK_UP_TIMEOUT, tag)
        {
            self.on_offsets(tag, &Err(code.to_string()));
        }
    }

    /// Carries out the seeks that were asked for; what is refused stays to be tried again.
    ///
    /// A place that is no offset is looked up first. (librdkafka would do that too, but queue by
    /// queue and behind the fetches that it has under way, which takes seconds for many queues.)
    fn send_seeks(&mut self, now: Instant) {
        let (mut moves, mut places) = (Vec::new(), Vec::new());
        for queue in std::mem::take(&mut self.seeks) {
            let Some(state) = self.queues.get_mut(queue) else { continue };
            match state.seek {
                None => {}
                Some(SeekTo::Position(to)) if state.broken => self.revive(queue, to),
                Some(SeekTo::Position(to)) => moves.push((queue, to)),
                Some(to) => places.push((queue, state.tenure, to)),
            }
        }
        self.move_queues(&moves);
        if !places.is_empty() {
            let asked = places.iter().map(|(queue, _, to)| (*queue, number_of(*to))).collect();
            self.ask_offsets(Request::Places(places), asked);
        }
        if !self.seeks.is_empty() {
            self.retry_at = Some(now + RETRY_AFTER);
        }
    }

    fn move_queues(&mut self, moves: &[(QueueId, Position)]) {
        if moves.is_empty() {
            return;
        }
        let offsets: Vec<_> = moves.iter().map(|(queue, to)| (*queue, to.to_i64())).collect();
        let results = self.client.seek(&offsets, SEEK_TIMEOUT);
        let mut moved = Vec::new();
        for (index, (queue, to)) in moves.iter().enumerate() {
            let result = results.as_ref().map_or_else(|code| Err(*code), |all| all[index]);
            match (result, self.queues.get_mut(*queue)) {
                (Ok(()), Some(state)) => {
                    (state.seek, state.started, state.moved_to) = (None, true, *to);
                    state.forwarded = state.wants_forward();
                    self.client.forward(*queue, state.forwarded);
                    moved.push(*queue);
                }
                // Its fetcher is not there yet, or not any more.
                (Err(_), Some(_)) => self.seeks.push(*queue),
                (_, None) => {}
            }
        }
        self.client.pause(&moved, false);
        self.ask_ends(moved);
    }

    /// Asks where queues end, which is worth knowing, and wakes the threads that fetch them, which
    /// librdkafka's own resume does not: they might sleep for half a second.
    pub(super) fn ask_ends(&mut self, queues: Vec<QueueId>) {
        let tenure = |queue| Some((queue, self.queues.get(queue)?.tenure));
        let asked: Vec<_> = queues.into_iter().filter_map(tenure).collect();
        if !asked.is_empty() {
            let ends = asked.iter().map(|(queue, _)| (*queue, END)).collect();
            self.ask_offsets(Request::Ends(asked), ends);
        }
    }

    fn revive(&mut self, queue: QueueId, to: Position) {
        match self.reassign(queue, to) {
            Ok(()) => {
                if let Some(state) = self.queues.get_mut(queue) {
                    state.broken = false;
                }
            }
            Err(code) => {
                let error = SourceError::retryable(format!("restart {queue} at {to}: {code}"));
                self.told.push_back(SourceEvent::QueueError { queue, error });
            }
        }
        self.seeks.push(queue);
    }

    /// Seeks a running queue to where it is read to, without dropping what waits to be given out.
    pub(super) fn follow_with_seek(&mut self, queue: QueueId, at: Position) {
        let Some(state) = self.queues.get_mut(queue) else { return };
        if state.started && state.phase == Phase::Open && state.seek.is_none() {
            state.seek = Some(SeekTo::Position(at));
            self.seeks.push(queue);
        }
    }

    pub(super) fn serve_replies(&mut self, now: Instant) {
        while let Some(event) = self.client.replies.next() {
            match event {
                Event::Stored { tag, result, partitions } => {
                    self.on_stored(tag, result, &partitions, now);
                }
                Event::Committed { tag, result } => self.on_committed(tag, &result),
                Event::Offsets { tag, result } => self.on_offsets(tag, &result),
                _ => {}
            }
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

    fn on_offsets(&mut self, tag: Tag, result: &Result<Vec<Partition>, String>) {
        match self.requests.remove(&tag) {
            Some(Request::Places(places)) => {
                for (queue, tenure, to) in places {
                    self.on_place((queue, tenure), to, offset_in(result, queue));
                }
            }
            Some(Request::Ends(asked)) => {
                for (queue, tenure) in asked {
                    self.on_end((queue, tenure), offset_in(result, queue));
                }
            }
            Some(Request::Range { queue, tenure, asked, begin }) => {
                self.on_range((queue, tenure), asked, begin, offset_in(result, queue));
            }
            _ => {}
        }
    }

    fn on_place(
        &mut self,
        (queue, tenure): (QueueId, Tenure),
        to: SeekTo,
        found: Result<i64, String>,
    ) {
        let current = self.queues.get_mut(queue).filter(|state| state.tenure == tenure);
        // The engine may want it elsewhere by now.
        let Some(state) = current.filter(|state| state.seek == Some(to)) else { return };
        self.seeks.push(queue);
        match found.map(Position::from_i64) {
            Ok(Some(position)) => state.seek = Some(SeekTo::Position(position)),
            // No message is that young: behind the last one.
            Ok(None) => state.seek = Some(SeekTo::Latest),
            Err(text) => {
                let error = SourceError::retryable(format!("look up {to:?} of {queue}: {text}"));
                self.told.push_back(SourceEvent::QueueError { queue, error });
                self.retry_later();
            }
        }
    }

    fn on_end(&mut self, (queue, tenure): (QueueId, Tenure), found: Result<i64, String>) {
        let state = self.queues.get(queue);
        let open = state.is_some_and(|s| s.tenure == tenure && s.phase == Phase::Open);
        if let (true, Ok(Some(end))) = (open, found.map(Position::from_i64)) {
            self.told.push_back(SourceEvent::End { queue, end: EndOffset::At(end) });
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
                self.ask_offsets(request, vec![(queue, END)]);
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
}

/// Kafka's number for a place that is to be looked up.
fn number_of(to: SeekTo) -> i64 {
    match to {
        SeekTo::Earliest => BEGIN,
        SeekTo::TimestampMs(timestamp_ms) => timestamp_ms.max(0),
        // `Latest`, and whatever the boundary may know one day.
        _ => END,
    }
}

/// What a look-up of offsets says about one queue.
fn offset_in(result: &Result<Vec<Partition>, String>, queue: QueueId) -> Result<i64, String> {
    let partitions = result.as_ref().map_err(Clone::clone)?;
    let one = partitions.iter().find(|partition| partition.queue == queue);
    let one = one.ok_or("the answer does not name the queue")?;
    one.accepted().map_err(|code| code.to_string())?;
    Ok(one.offset)
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
