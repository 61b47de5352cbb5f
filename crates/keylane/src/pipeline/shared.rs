//! What the source thread, the shards and the handle share.
//!
//! **Wake-ups.** A thread that is about to wait first says what it waits for, then looks once more;
//! a thread that changes something first changes it, then looks who waits. Whichever comes second
//! sees the other, so no wake-up is lost:
//!
//! | who waits | says so in | for |
//! | --- | --- | --- |
//! | source thread | [`Signals::arm`] | budget: enough of it free, or a shard with nothing to do |
//! | source thread | [`Inbox::wait_for_room`](super::cell::Inbox::wait_for_room) | room in a full channel |
//! | source thread | [`Signals::attend`] | the end of calls, while a queue or the consumer ends |
//! | shard | its channel and its bell | messages; the bell says "look again" |

use std::sync::Arc;
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use keylane_source::{DeadLetter, SourceWaker};
use parking_lot::{Condvar, Mutex as Plain};

use super::cell::ShardCell;
use super::pool::Timers;
use super::shard::{Effects, LetterId};
use crate::error::Error;
use crate::observer::{Event, Observer};
use crate::report::StopReport;
use crate::sync::{AtomicBool, AtomicU8, AtomicU64, Mutex, Ordering, removed};
use crate::time::{Clock, LONGEST};

/// See the module's description.
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) gate: Gate,
    pub(crate) signals: Signals,
    /// Queues (by slot) that the source thread should look at.
    notes: Mutex<Vec<usize>>,
    /// Shards that wait for a time, and have no thread of their own to do so.
    pub(crate) timers: Timers,
    /// Events of the source thread that were not reported yet.
    events: Mutex<Vec<Event>>,
    letters: Mutex<Option<Sender<Posted>>>,
    observer: Option<Arc<dyn Observer>>,
    stop: Mutex<StopRequest>,
    stop_timeout: Duration,
    ended: Plain<Option<Result<StopReport, Error>>>,
    ended_changed: Condvar,
}

/// A dead letter on its way to the sink.
pub(crate) struct Posted {
    pub(crate) cell: Arc<ShardCell>,
    pub(crate) id: LetterId,
    pub(crate) letter: DeadLetter,
}

/// Whether and how the consumer was asked to stop.
#[derive(Debug, Default)]
struct StopRequest {
    asked: Option<StopAsked>,
    /// A listener's, or the failure policy's: `wait` returns it as an error.
    by_listener: Option<String>,
    /// Our own fault.
    internal: Option<String>,
}

/// A stop that was asked for: once, or several times.
#[derive(Debug, Clone)]
pub(crate) struct StopAsked {
    /// The first reason.
    pub(crate) reason: String,
    /// The earliest time at which it has to be over.
    pub(crate) deadline: Instant,
    /// How long that was when it was asked for.
    pub(crate) allowed: Duration,
}

/// Whether calls may begin.
#[derive(Debug)]
pub(crate) struct Gate(AtomicU8);

/// See [`Gate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum GateState {
    Open = 0,
    /// No call begins, everything else goes on.
    Paused = 1,
    /// What is in the channels is handled, then the shards end.
    Draining = 2,
    /// No call begins, ever.
    Closed = 3,
}

impl Gate {
    pub(crate) fn state(&self) -> GateState {
        match self.0.load(Ordering::Acquire) {
            0 => GateState::Open,
            1 => GateState::Paused,
            2 => GateState::Draining,
            _ => GateState::Closed,
        }
    }

    pub(crate) fn admits(&self) -> bool {
        matches!(self.state(), GateState::Open | GateState::Draining)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.state() >= GateState::Draining
    }

    /// Pauses or goes on, unless the consumer stops.
    pub(crate) fn pause(&self, pause: bool) {
        let (from, to) = if pause { (0, 1) } else { (1, 0) };
        if removed!("pause and go on only where it stands so") {
            return self.0.store(to, Ordering::Release);
        }
        // A failure means that it stops, or is in that state already.
        let _ = self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Moves on towards the end; never back.
    pub(crate) fn move_to(&self, state: GateState) {
        self.0.fetch_max(state as u8, Ordering::AcqRel);
    }
}

/// How shards reach the source thread.
pub(crate) struct Signals {
    waker: SourceWaker,
    source_thread: OnceLock<Thread>,
    /// The source thread waits for budget.
    armed: AtomicBool,
    enough: AtomicU64,
    freed: AtomicU64,
    /// The source thread waits for calls to end.
    attends: AtomicBool,
}

impl Signals {
    pub(crate) fn wake(&self) {
        self.waker.wake();
        if let Some(thread) = self.source_thread.get() {
            thread.unpark();
        }
    }

    pub(crate) fn set_source_thread(&self, thread: Thread) {
        // Set once, by the source thread itself.
        let _ = self.source_thread.set(thread);
    }

    /// Asks to be woken once `enough` messages have been finished: a wake-up for each would cost more
    /// than the message. Who arms waits no longer than [`SCARCE`](super::coordinator::SCARCE), so
    /// that less than enough is used as well.
    pub(crate) fn arm(&self, enough: u64) {
        self.freed.store(0, Ordering::Relaxed);
        self.enough.store(enough, Ordering::Relaxed);
        self.armed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    pub(crate) fn attend(&self, attends: bool) {
        self.attends.store(attends, Ordering::SeqCst);
    }

    fn finished(&self, messages: u64) {
        if self.armed.load(Ordering::SeqCst) && !removed!("wake for budget") {
            let freed = self.freed.fetch_add(messages, Ordering::Relaxed) + messages;
            if freed >= self.enough.load(Ordering::Relaxed) {
                self.fire();
            }
        }
    }

    fn fire(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// A call has been settled.
    pub(crate) fn settled(&self) {
        if self.attends.load(Ordering::SeqCst) {
            self.wake();
        }
    }
}

impl Shared {
    pub(crate) fn new(
        clock: Clock,
        waker: SourceWaker,
        letters: Option<Sender<Posted>>,
        observer: Option<Arc<dyn Observer>>,
        stop_timeout: Duration,
    ) -> Self {
        let signals = Signals {
            waker,
            source_thread: OnceLock::new(),
            armed: AtomicBool::new(false),
            enough: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            attends: AtomicBool::new(false),
        };
        Self {
            clock,
            gate: Gate(AtomicU8::new(0)),
            signals,
            timers: Timers::default(),
            notes: Mutex::new(Vec::new()),
            events: Mutex::default(),
            letters: Mutex::new(letters),
            observer,
            stop: Mutex::default(),
            stop_timeout,
            ended: Plain::new(None),
            ended_changed: Condvar::new(),
        }
    }

    /// Does what a step of a shard asks for. Not to be called under a shard's mutex.
    pub(crate) fn carry_out(&self, cell: &Arc<ShardCell>, out: &mut Effects) {
        if !out.noted.is_empty() {
            self.notes.lock().append(&mut out.noted);
        }
        if out.finished > 0 {
            self.signals.finished(out.finished);
            out.finished = 0;
        }
        for (id, letter) in out.letters.drain(..) {
            self.post(Posted { cell: Arc::clone(cell), id, letter });
        }
        for event in out.events.drain(..) {
            self.report(&event);
        }
        if let Some(reason) = out.stop.take() {
            self.stop_for_listener(reason);
        }
    }

    fn post(&self, posted: Posted) {
        // Without a sink nothing is posted; with one that has ended, the consumer has too, and the
        // message stays unfinished.
        if let Some(sender) = self.letters.lock().as_ref() {
            drop(sender.send(posted));
        }
    }

    /// No further dead letter comes: the sink's thread ends once it has handled what it has.
    pub(crate) fn close_letters(&self) {
        self.letters.lock().take();
    }

    /// Notes an event under the coordinator's lock, which an observer may want to take:
    /// [`report_noted`](Self::report_noted) reports it.
    pub(crate) fn report_later(&self, event: Event) {
        self.events.lock().push(event);
    }

    /// Reports what was noted. Not to be called under the coordinator's lock.
    pub(crate) fn report_noted(&self) {
        for event in std::mem::take(&mut *self.events.lock()) {
            self.report(&event);
        }
    }

    /// Logs an event and tells the observer.
    pub(crate) fn report(&self, event: &Event) {
        log::log!(target: "keylane", event.level(), "{event}");
        let Some(observer) = &self.observer else { return };
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| observer.event(event)));
        if let Err(panic) = told {
            // Before the log is asked whether it wants to know: the payload is not to be dropped here.
            let what = panic_text(panic);
            log::error!(target: "keylane", "the observer panicked: {what}");
        }
    }

    /// Takes the slots that shards have noted.
    pub(crate) fn take_notes(&self, into: &mut Vec<usize>) {
        into.append(&mut self.notes.lock());
    }

    pub(crate) fn has_notes(&self) -> bool {
        !self.notes.lock().is_empty()
    }

    /// Asks for a stop with the default deadline.
    pub(crate) fn request_stop(&self, reason: &str) {
        self.request_stop_within(reason, self.stop_timeout);
    }

    pub(crate) fn request_stop_within(&self, reason: &str, allowed: Duration) {
        let allowed = allowed.min(LONGEST);
        let deadline = self.clock.now() + allowed;
        let mut stop = self.stop.lock();
        stop.asked = Some(match stop.asked.take() {
            None => StopAsked { reason: reason.to_owned(), deadline, allowed },
            Some(first) if deadline < first.deadline => StopAsked { deadline, allowed, ..first },
            Some(first) => first,
        });
        drop(stop);
        self.signals.wake();
    }

    fn stop_for_listener(&self, reason: String) {
        // At once: nobody may begin a call after this.
        self.gate.move_to(GateState::Closed);
        self.stop.lock().by_listener.get_or_insert_with(|| reason.clone());
        self.request_stop(&reason);
    }

    /// Something of our own has failed: what is finished is committed, and the consumer stops.
    pub(crate) fn fail(&self, what: &str) {
        self.stop.lock().internal.get_or_insert_with(|| what.to_owned());
        self.request_stop(what);
    }

    pub(crate) fn failed(&self) -> Option<String> {
        self.stop.lock().internal.clone()
    }

    pub(crate) fn stop_asked(&self) -> Option<StopAsked> {
        self.stop.lock().asked.clone()
    }

    pub(crate) fn stopped_by_listener(&self) -> Option<String> {
        self.stop.lock().by_listener.clone()
    }

    /// Sets how it ended; the first one counts.
    pub(crate) fn end(&self, result: Result<StopReport, Error>) {
        self.ended.lock().get_or_insert(result);
        self.ended_changed.notify_all();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.lock().is_some()
    }

    /// Waits until it has ended; `None` when `timeout` passes first.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Option<Result<StopReport, Error>> {
        let mut ended = self.ended.lock();
        let until = timeout.map(|timeout| self.clock.now() + timeout.min(LONGEST));
        while ended.is_none() {
            match until {
                None => self.ended_changed.wait(&mut ended),
                Some(until) => {
                    if self.ended_changed.wait_until(&mut ended, until).timed_out() {
                        break;
                    }
                }
            }
        }
        ended.clone()
    }
}

/// What a panic said. Its payload may be any value, also one whose drop panics: that goes no further.
pub(crate) fn panic_text(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = match panic.downcast_ref::<&str>() {
        Some(text) => (*text).to_owned(),
        None => {
            panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "(not a text)".to_owned())
        }
    };
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(panic)));
    if let Err(again) = dropped {
        std::mem::forget(again);
    }
    text
}
