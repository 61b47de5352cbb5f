//! A member of the group as its process's engine sees it: [`Source`] and [`QueueLocks`] over the
//! shared broker. It keeps the rules of the boundary; within them it does whatever is allowed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use keylane_source::{
    Commit, Committed, EndOffset, Fetch, FetchLimits, LockReply, QueueId, QueueLocks, ResetCause,
    SeekTo, Source, SourceError, SourceEvent, SourceWaker,
};
use keylane_testkit::guarantee::{Epoch, Event, Found, MemberId};

use super::broker::{SentCommit, position};
use super::plan::SECOND;
use super::world::{SharedWorld, Tenure, World};

/// The longest fetch beyond the limits, as a factor.
pub(super) const HUGE: usize = 4;

/// See the module's description.
pub(super) struct SimSource {
    world: SharedWorld,
    member: MemberId,
    woken: Arc<AtomicBool>,
    readings: BTreeMap<QueueId, Reading>,
    inbox: Vec<Letter>,
}

/// A queue that this member has.
struct Reading {
    generation: u64,
    fence: u64,
    incarnation: u64,
    found: Found,
    /// How often something had been stored when that was looked up.
    stores: u64,
    /// Where reading began: nothing before comes.
    from: u64,
    next: Option<u64>,
    paused: bool,
    /// A fetch was under way when the queue was paused: it may still come.
    under_way: bool,
    /// It comes together with the answer to a look-up, and not before.
    held: bool,
    /// When the next fetch may come.
    fetch_at: Instant,
}

/// Something that the member will hear of.
struct Letter {
    at: Instant,
    what: News,
}

/// What may be told to a member.
pub(super) enum News {
    Assigned { queue: QueueId, generation: u64 },
    Revoking { queue: QueueId, generation: u64 },
    Lost { queue: QueueId, generation: u64 },
    Reset { queue: QueueId },
    LookedUp { queue: QueueId },
    Lock { queue: QueueId, reply: LockReply },
    Answer { commit: Commit, stored: bool },
    Trouble { queue: QueueId, is_fatal: bool },
}

impl News {
    fn queue(&self) -> QueueId {
        match self {
            Self::Assigned { queue, .. }
            | Self::Revoking { queue, .. }
            | Self::Lost { queue, .. }
            | Self::Reset { queue }
            | Self::LookedUp { queue }
            | Self::Lock { queue, .. }
            | Self::Trouble { queue, .. } => *queue,
            Self::Answer { commit, .. } => commit.queue,
        }
    }

    /// Whether it says what the group has committed.
    fn is_look_up(&self) -> bool {
        matches!(self, Self::Assigned { .. } | Self::LookedUp { .. })
    }

    /// Whether it belongs to a membership, and may not be told after its end.
    fn ends_with(&self, generation: u64) -> bool {
        match self {
            Self::Assigned { generation: of, .. }
            | Self::Revoking { generation: of, .. }
            | Self::Lost { generation: of, .. } => *of <= generation,
            Self::Answer { .. } => false,
            _ => true,
        }
    }
}

impl SimSource {
    pub(super) fn new(world: SharedWorld, member: MemberId) -> Self {
        let (readings, inbox) = (BTreeMap::new(), Vec::new());
        Self { world, member, woken: Arc::default(), readings, inbox }
    }

    /// Tells the member something, at this time; what is due at the same time in this order.
    pub(super) fn tell(&mut self, at: Instant, what: News) {
        self.inbox.push(Letter { at, what });
    }

    /// Whether somebody wants the wait to end.
    pub(super) fn has_read(&self, queue: QueueId, end: u64) -> bool {
        self.readings.get(&queue).is_some_and(|reading| reading.next == Some(end))
    }

    /// Whether the member has been told everything.
    pub(super) fn has_heard_all(&self) -> bool {
        self.inbox.is_empty()
    }

    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    /// When there will be something without anybody's doing.
    pub(super) fn next_due(&self, world: &World) -> Option<Instant> {
        let fetches = self.readings.iter().filter_map(|(queue, reading)| {
            let end = world.broker.queues[world.broker.slot(*queue)].end;
            let comes = !reading.paused || (reading.under_way && !reading.held);
            (reading.next? != end && comes).then_some(reading.fetch_at)
        });
        fetches.chain(self.inbox.iter().map(|letter| letter.at)).min()
    }

    /// When the last answer to a commit will have come; `None`: that is not known yet.
    pub(super) fn answered_at(&self, world: &World) -> Option<Instant> {
        let sent = |sent: &SentCommit| sent.member == self.member && sent.answer.is_some();
        if world.broker.commits.iter().any(sent) {
            return None;
        }
        let answer = |letter: &&Letter| matches!(letter.what, News::Answer { .. });
        let last = self.inbox.iter().filter(answer).map(|letter| letter.at).max();
        Some(last.unwrap_or(world.now))
    }

    /// Turns what was told to the member into an event, unless it has no meaning any more.
    fn open(&mut self, world: &mut World, news: News) -> Option<SourceEvent> {
        let queue = news.queue();
        if let News::Answer { commit, stored } = news {
            world.answers(self.member, &commit);
            let result = if stored { Ok(()) } else { Err(SourceError::retryable("not stored")) };
            return Some(SourceEvent::CommitResult { commit, result });
        }
        if let News::Assigned { generation, .. } = news {
            return Some(self.assigned(world, queue, generation));
        }
        let reading = self.readings.get_mut(&queue)?;
        match news {
            News::Revoking { generation, .. } => {
                (generation == reading.generation).then_some(SourceEvent::Revoking { queue })
            }
            News::Lost { generation, .. } if generation == reading.generation => {
                self.forget(queue);
                self.ended(world, queue, |queue, epoch| Event::Lost { queue, epoch });
                Some(SourceEvent::Lost { queue })
            }
            News::Lost { .. } => None,
            News::Reset { .. } => {
                let known = world.broker.queue(queue);
                let cause = known.untold.clone()?;
                (reading.fence, reading.incarnation) = (known.fence, known.incarnation);
                (reading.next, reading.stores) = (None, known.stores);
                reading.found = match &cause {
                    ResetCause::Moved { to } => Found::At((*to).into()),
                    _ => Found::Nothing,
                };
                let slot = world.broker.slot(queue);
                world.announce_reset(slot);
                Some(SourceEvent::Reset { queue, cause })
            }
            News::LookedUp { .. } => {
                let committed = look_up(world, queue, reading);
                Some(SourceEvent::LookedUp { queue, committed })
            }
            News::Lock { reply, .. } => {
                let member = self.member;
                world.trace.line(|| format!("{member:?} hears of the lock of {queue}: {reply:?}"));
                Some(SourceEvent::Lock { queue, reply })
            }
            News::Trouble { is_fatal: false, .. } => {
                let error = SourceError::retryable("the queue has trouble");
                Some(SourceEvent::QueueError { queue, error })
            }
            News::Trouble { .. } => {
                reading.next = None;
                self.ended(world, queue, |queue, epoch| Event::Lost { queue, epoch });
                let error = SourceError::fatal("the queue is broken");
                Some(SourceEvent::QueueError { queue, error })
            }
            News::Assigned { .. } | News::Answer { .. } => None,
        }
    }

    fn assigned(&mut self, world: &mut World, queue: QueueId, generation: u64) -> SourceEvent {
        let mut reading = Reading {
            generation,
            fence: 0,
            incarnation: 0,
            found: Found::Unknown,
            stores: 0,
            from: 0,
            next: None,
            paused: false,
            under_way: false,
            held: false,
            fetch_at: world.now,
        };
        let committed = look_up(world, queue, &mut reading);
        self.readings.insert(queue, reading);
        SourceEvent::Assigned { queue, committed }
    }

    /// The queue's epoch is over for this process.
    fn ended(
        &self,
        world: &mut World,
        queue: QueueId,
        event: impl FnOnce(QueueId, Epoch) -> Event<'static>,
    ) {
        let tenure = world.current(self.member, queue);
        if let Some(tenure) = tenure.filter(|tenure| !world.is_outsider(queue, *tenure)) {
            world.watch.observe(&event(queue, tenure.epoch));
        }
    }

    /// What one fetch of a queue brings.
    fn fetch(
        &mut self,
        world: &mut World,
        queue: QueueId,
        limits: FetchLimits,
    ) -> Option<SourceEvent> {
        let latency = world.latency();
        let now = world.now;
        let reading = self.readings.get_mut(&queue)?;
        let next = reading.next?;
        reading.fetch_at = now + latency;
        reading.under_way = false;
        let plan = Arc::clone(&world.plan);
        let faults = &plan.faults;
        let is_empty = world.fault(faults.fetch_empty);
        let factor = if world.fault(faults.fetch_huge) { HUGE } else { 1 };
        let overlap =
            if world.fault(faults.fetch_overlaps) { world.random.between(1, 5) } else { 0 };
        let names_hole = world.random.chance(0.5);
        let known = world.broker.queue(queue);
        if next < known.begin || next > known.end {
            reading.next = None;
            let cause = ResetCause::OutOfRange {
                asked: position(next),
                begin: position(known.begin),
                end: position(known.end),
            };
            let epoch = world.current(self.member, queue);
            if let Some(tenure) = epoch.filter(|tenure| !world.is_outsider(queue, *tenure)) {
                world.watch.observe(&Event::Reset { queue, epoch: tenure.epoch, cause: &cause });
            }
            return Some(SourceEvent::Reset { queue, cause });
        }
        let end = EndOffset::At(position(known.end));
        let from = known.seek(next.saturating_sub(overlap).max(known.begin).max(reading.from));
        let (mut messages, mut bytes, mut at) = (Vec::new(), 0, next);
        for record in &known.log[from..] {
            let full = messages.len() >= limits.messages * factor || bytes >= limits.bytes * factor;
            if is_empty || (full && at > next) {
                break;
            }
            let message = known.message(*record, &plan);
            bytes += message.size();
            messages.push(message);
            at = at.max(record.offset + 1);
        }
        if names_hole && !is_empty {
            // The source knows that what follows are markers.
            let behind = known.log.get(known.seek(at)).map_or(known.end, |record| record.offset);
            at = at.max(behind);
        }
        reading.next = Some(at);
        let fetch = Fetch { queue, messages, position: position(at), end };
        self.note_fetch(world, &fetch);
        Some(SourceEvent::Fetched(fetch))
    }

    fn note_fetch(&self, world: &mut World, fetch: &Fetch) {
        let Fetch { queue, messages, position, .. } = fetch;
        world.trace.add(position.get());
        world.trace.line(|| {
            format!("{:?} fetches {} of {queue}, up to {position}", self.member, messages.len())
        });
        let tenure = world.current(self.member, *queue);
        if let Some(tenure) = tenure.filter(|tenure| !world.is_outsider(*queue, *tenure)) {
            let (queue, epoch, position) = (*queue, tenure.epoch, *position);
            world.watch.observe(&Event::Fetched { queue, epoch, messages, position });
        }
    }

    /// The member leaves the group, in whichever way.
    pub(super) fn leave(&mut self, world: &mut World, pause: Duration) {
        let at = world.now + pause;
        for queue in &mut world.broker.queues {
            if queue.owner == Some(self.member) {
                (queue.owner, queue.give_back_until, queue.assign_at) = (None, None, Some(at));
            }
        }
    }

    /// The queue is not the member's any more: nothing of it is told from here on.
    fn forget(&mut self, queue: QueueId) -> Option<Reading> {
        let reading = self.readings.remove(&queue)?;
        self.inbox.retain(|letter| {
            letter.what.queue() != queue || !letter.what.ends_with(reading.generation)
        });
        Some(reading)
    }
}

/// What the group has committed, as the broker says it now.
fn look_up(world: &mut World, queue: QueueId, reading: &mut Reading) -> Committed {
    let slot = world.broker.slot(queue);
    // A reset that a queue has not been told of: one that has begun is told before.
    let is_early = reading.next.is_some() && world.broker.queues[slot].untold.is_some();
    if is_early || world.fault(world.plan.faults.look_up_fails) {
        reading.found = Found::Unknown;
        return Committed::Failed(SourceError::retryable("no answer"));
    }
    world.announce_reset(slot);
    let known = &world.broker.queues[slot];
    (reading.fence, reading.incarnation) = (known.fence, known.incarnation);
    reading.stores = known.stores;
    let committed = known.stored.map_or(Committed::None, Committed::at);
    reading.found = Found::from(&committed);
    committed
}

impl Source for SimSource {
    fn poll(
        &mut self,
        limits: FetchLimits,
        _wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        self.woken.store(false, Ordering::SeqCst);
        let shared = Arc::clone(&self.world);
        let mut world = shared.lock();
        let (world, now) = (&mut *world, shared_now());
        if world.fault(world.plan.faults.poll_fails) {
            return Err(SourceError::retryable("the broker is away"));
        }
        if world.fault(world.plan.faults.poll_fails_for_good) {
            return Err(SourceError::fatal("the group is gone"));
        }
        // Nothing more of a queue that leaves, and one look-up of each: the engine seeks by name,
        // so that what it does about the first could be taken for the second's.
        let (mut lost, mut looked_up) = (Vec::new(), Vec::new());
        let due = |letter: &Letter, lost: &[QueueId], looked_up: &[QueueId]| {
            let queue = letter.what.queue();
            let again = letter.what.is_look_up() && looked_up.contains(&queue);
            letter.at <= now && !lost.contains(&queue) && !again
        };
        while let Some(index) = self.inbox.iter().position(|it| due(it, &lost, &looked_up)) {
            let news = self.inbox.remove(index).what;
            if matches!(news, News::Lost { .. }) {
                lost.push(news.queue());
            }
            if news.is_look_up() {
                looked_up.push(news.queue());
            }
            events.extend(self.open(world, news));
        }
        let queues: Vec<_> = self.readings.keys().copied().collect();
        for queue in queues {
            let Some(reading) = self.readings.get(&queue) else { continue };
            // What was under way may come together with the look-up's answer: from before the seek.
            let together = reading.under_way && looked_up.contains(&queue);
            let paused = reading.paused && (!reading.under_way || (reading.held && !together));
            let is_due =
                reading.fetch_at <= now || (together && (reading.held || world.random.chance(0.5)));
            let end = world.broker.queue(queue).end;
            if reading.next == Some(end) {
                let end = EndOffset::At(position(end));
                let tells = world.random.chance(0.05);
                events.extend(tells.then_some(SourceEvent::End { queue, end }));
            } else if !paused && is_due {
                events.extend(self.fetch(world, queue, limits));
            }
        }
        Ok(())
    }

    fn seek(&mut self, queue: QueueId, to: SeekTo) {
        let shared = Arc::clone(&self.world);
        let world = &mut *shared.lock();
        let Some(reading) = self.readings.get_mut(&queue) else {
            // Lost again already: the engine is about to hear of it.
            let (epoch, generation, incarnation) = (Epoch(0), 0, 0);
            let (is_outsider, timed_out) = (true, false);
            let begun_at = world.trace.steps();
            let tenure =
                Tenure { queue, epoch, begun_at, generation, incarnation, is_outsider, timed_out };
            return world.begins(self.member, queue, tenure);
        };
        let known = world.broker.queue(queue);
        let start = match to {
            SeekTo::Position(position) => Some(position),
            _ => None,
        };
        reading.next = Some(match to {
            SeekTo::Position(position) => position.get(),
            SeekTo::Latest => known.end,
            SeekTo::TimestampMs(time) => {
                // Here a message's offset is its timestamp.
                let at = known.seek(u64::try_from(time).unwrap_or(0));
                known.log.get(at).map_or(known.end, |record| record.offset)
            }
            _ => known.begin,
        });
        reading.from = reading.next.unwrap_or_default();
        (reading.under_way, reading.held) = (false, false);
        let (generation, incarnation) = (reading.generation, reading.incarnation);
        let is_owner = known.generation == generation;
        // A commit of the epoch before may have been stored since the look-up.
        let since = known.stored.filter(|_| known.stores > reading.stores);
        let epoch = if is_owner { world.watch.next_epoch(queue) } else { Epoch(0) };
        if is_owner {
            let (member, found) = (self.member, reading.found);
            let assigned = Event::Assigned { member, queue, epoch, found, start };
            world.watch.begin_epoch(&assigned, since);
        }
        let (is_outsider, timed_out) = (!is_owner, false);
        let begun_at = world.trace.steps();
        let tenure =
            Tenure { queue, epoch, begun_at, generation, incarnation, is_outsider, timed_out };
        world.begins(self.member, queue, tenure);
    }

    fn pause(&mut self, queue: QueueId) {
        let world = &mut *self.world.lock();
        let in_spite = world.plan.faults.fetch_in_spite_of_pause;
        let held = world.plan.faults.fetch_from_before_seek;
        // It may come while the queue is given back, or begun anew.
        let at = world.now + world.latency() * 8;
        if let Some(reading) = self.readings.get_mut(&queue).filter(|reading| !reading.paused) {
            (reading.paused, reading.under_way) = (true, world.fault(in_spite));
            reading.held = reading.under_way && world.fault(held);
            reading.fetch_at = reading.fetch_at.max(at);
        }
    }

    fn resume(&mut self, queue: QueueId) {
        let member = self.member;
        self.world.lock().trace.line(|| format!("{member:?} resumes {queue}"));
        if let Some(reading) = self.readings.get_mut(&queue) {
            reading.paused = false;
        }
    }

    fn commit(&mut self, commit: Commit) {
        let shared = Arc::clone(&self.world);
        let world = &mut *shared.lock();
        let epoch = world.asks(self.member, &commit);
        let Some(reading) = self.readings.get(&commit.queue) else {
            return world.wrong(format!("a commit of {}, which is not the member's", commit.queue));
        };
        let faults = &Arc::clone(&world.plan).faults;
        let slow = world.fault(faults.commit_slow);
        let latency = |world: &mut World| {
            if slow { world.random.time(SECOND, 60 * SECOND) } else { world.latency() }
        };
        // Commits of one queue arrive in the order in which they were sent.
        let before = world.broker.commits.iter().filter(|sent| sent.commit.queue == commit.queue);
        let before = before.map(|sent| sent.at).max().unwrap_or(world.now);
        let at = before.max(world.now + latency(world));
        let fails = world.fault(faults.commit_fails);
        let is_stored = !fails || world.fault(faults.commit_fails_stored);
        let answer_at = at + latency(world);
        let answer = (!world.fault(faults.commit_unanswered)).then_some((!fails, answer_at));
        let (member, generation, fence) = (self.member, reading.generation, reading.fence);
        let sent = SentCommit { member, commit, generation, fence, epoch, at, is_stored, answer };
        world.broker.commits.push(sent);
    }

    fn look_up_committed(&mut self, queue: QueueId) {
        let at = {
            let mut world = self.world.lock();
            world.now + world.latency()
        };
        self.tell(at, News::LookedUp { queue });
    }

    fn release(&mut self, queue: QueueId) {
        let Some(reading) = self.forget(queue) else { return };
        let shared = Arc::clone(&self.world);
        let world = &mut *shared.lock();
        world.trace.line(|| format!("{:?} releases {queue}", self.member));
        self.ended(world, queue, |queue, epoch| Event::Revoked { queue, epoch });
        let at = world.now + world.latency();
        let known = world.broker.queue(queue);
        if known.owner == Some(self.member) && known.generation == reading.generation {
            (known.owner, known.give_back_until, known.assign_at) = (None, None, Some(at));
        }
    }

    fn waker(&self) -> SourceWaker {
        let woken = Arc::clone(&self.woken);
        SourceWaker::new(move || woken.store(true, Ordering::SeqCst))
    }

    fn locks(&mut self) -> Option<&mut dyn QueueLocks> {
        let has_locks = self.world.lock().plan.locks.is_some();
        has_locks.then_some(self)
    }

    fn close(
        &mut self,
        _timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        let shared = Arc::clone(&self.world);
        let world = &mut *shared.lock();
        for letter in std::mem::take(&mut self.inbox) {
            if matches!(letter.what, News::Answer { .. }) && letter.at <= world.now {
                events.extend(self.open(world, letter.what));
            }
        }
        world.watch.observe(&Event::Stopped { member: self.member });
        let pause = world.latency();
        self.leave(world, pause);
        Ok(())
    }
}

impl QueueLocks for SimSource {
    fn lease(&self) -> Duration {
        self.world.lock().plan.locks.map_or(Duration::ZERO, |locks| locks.lease)
    }

    fn acquire(&mut self, queues: &[QueueId]) {
        let shared = Arc::clone(&self.world);
        let world = &mut *shared.lock();
        let Some(locks) = world.plan.locks else { return };
        for &queue in queues {
            let now = world.now;
            let refuses = world.fault(world.plan.faults.lock_refused);
            let fails = world.fault(world.plan.faults.lock_fails);
            let at = now + world.latency();
            let known = world.broker.queue(queue);
            let is_free = known.holder(now).is_none_or(|holder| holder == self.member);
            // Who asks knows that it has no lock.
            known.lock_taken_from.retain(|from| *from != self.member);
            let granted = is_free && !refuses;
            if granted {
                known.lock = Some((self.member, now + locks.expiry));
            }
            let reply = match granted {
                _ if fails => LockReply::Failed(SourceError::retryable("no answer")),
                true => LockReply::Held,
                false => LockReply::Refused,
            };
            let member = self.member;
            world.trace.line(|| format!("{member:?} asks for the lock of {queue}: {reply:?}"));
            self.tell(at, News::Lock { queue, reply });
        }
    }

    fn release(&mut self, queues: &[QueueId]) {
        let mut world = self.world.lock();
        for &queue in queues {
            if let Some(runs) = world.runs(self.member, queue) {
                world.wrong(format!("the lock of {queue} is released while {runs}"));
            }
            let known = world.broker.queue(queue);
            known.lock = known.lock.filter(|(holder, _)| *holder != self.member);
        }
    }
}

fn shared_now() -> Instant {
    crate::time::Clock.now()
}
