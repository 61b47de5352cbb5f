//! Parts by themselves: the tracker's bits, a tenure's counters, the gate, a channel's room.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{Message, Offset, Position, QueueId, SourceWaker};
use loom::thread;

use crate::pipeline::{Collected, Finished, GateState, Inbox, Route, Shared, Tag, Tenure, Tracker};
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::time::Clock;

/// Messages before the two that matter, so that these lie on both sides of a word's end.
const BEFORE: u64 = 63;

/// Time stands still.
pub(super) fn now() -> Instant {
    let now = Clock.now();
    Clock.set_virtual(Some(now));
    now
}

pub(super) fn offset(at: u64) -> Offset {
    Offset::new(at).expect("a small number")
}

pub(super) fn queue() -> QueueId {
    QueueId::new("model", 0)
}

/// Two messages are finished by two threads, while the source thread looks.
pub(super) fn tracker() {
    let now = now();
    let mut tracker = Tracker::new(Position::ZERO);
    let mut before = Finished::default();
    let mut page = None;
    for at in 0..BEFORE {
        let bit = tracker.register(offset(at), 0, now);
        before.add(tracker.page(), bit);
        page = Some(Arc::clone(tracker.page()));
    }
    before.flush(&page.expect("there were some"));

    let done: Arc<[AtomicBool; 2]> = Arc::default();
    let finish = |index: usize, tracker: &mut Tracker| {
        let bit = tracker.register(offset(BEFORE + index as u64), 0, now);
        let (page, done) = (Arc::clone(tracker.page()), Arc::clone(&done));
        thread::spawn(move || {
            // What the listener did, in the weakest way.
            done[index].store(true, Ordering::Relaxed);
            let mut finished = Finished::default();
            finished.add(&page, bit);
            finished.flush(&page);
        })
    };
    let threads = [finish(0, &mut tracker), finish(1, &mut tracker)];
    let mut last = 0;
    let mut look = |tracker: &mut Tracker| {
        let watermark = tracker.watermark().get();
        assert!(watermark >= last, "it fell from {last} to {watermark}");
        for (at, done) in (BEFORE..).zip(&*done) {
            assert!(watermark <= at || done.load(Ordering::Relaxed), "{watermark} passes {at}");
        }
        last = watermark;
    };
    look(&mut tracker);
    look(&mut tracker);
    threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
    look(&mut tracker);
    assert_eq!((tracker.watermark().get(), tracker.span()), (BEFORE + 2, 0));
}

/// Two shards give back a message each; the source thread looks where it was told to.
pub(super) fn budget() {
    let tenure = Arc::new(Tenure::new(queue(), 1, 0, None));
    let notes = Arc::new(AtomicU64::new(0));
    let shard = || {
        let (tenure, notes) = (Arc::clone(&tenure), Arc::clone(&notes));
        thread::spawn(move || {
            if tenure.finish(1, 10) {
                notes.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    let shards = [shard(), shard()];
    let (mut taken, mut sums) = (0, (0, 0));
    let mut look = |last: bool| {
        let noted = notes.load(Ordering::SeqCst);
        if noted > taken {
            taken = noted;
            sums = tenure.looked();
        }
        assert!(!last || sums == (2, 20), "given back: (2, 20), counted: {sums:?}");
    };
    look(false);
    // The joins order nothing that the counters would need: what was noted was noted before.
    shards.into_iter().for_each(|shard| shard.join().expect("it ends"));
    look(true);
}

/// A pause and its end against a stop.
pub(super) fn gate() {
    let shared = Arc::new(shared(SourceWaker::noop()));
    let other = Arc::clone(&shared);
    let pauses = thread::spawn(move || {
        other.gate.pause(true);
        other.gate.pause(false);
    });
    shared.gate.move_to(GateState::Draining);
    assert!(shared.gate.is_stopping(), "taken back");
    shared.gate.move_to(GateState::Closed);
    pauses.join().expect("it ends");
    assert_eq!(shared.gate.state(), GateState::Closed);
}

/// The router waits for room in a full channel, which a shard empties.
pub(super) fn room() {
    let now = now();
    let woken = Arc::new(AtomicBool::new(false));
    let wake = Arc::clone(&woken);
    let shared = shared(SourceWaker::new(move || wake.store(true, Ordering::SeqCst)));
    let (inbox, chunks) = Inbox::new(2);
    let tenure = Arc::new(Tenure::new(queue(), 1, 0, None));
    let mut tracker = Tracker::new(Position::ZERO);
    for at in 0..2 {
        let tag = Tag::new(Route::NoKey, tracker.register(offset(at), 0, now), None);
        let mut collected = Collected::default();
        collected.push(Message::new(queue(), offset(at)), tag, &tenure, tracker.page());
        inbox.send(collected.take(now).expect("one message"));
    }
    let taker = Arc::clone(&inbox);
    let shard = thread::spawn(move || {
        while let Ok(chunk) = chunks.try_recv() {
            taker.taken(chunk.len(), &shared.signals);
        }
    });
    if inbox.wait_for_room() {
        while !woken.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        assert!(inbox.room() > 0, "woken for nothing");
    }
    shard.join().expect("it ends");
    assert_eq!(inbox.room(), 2);
}

fn shared(waker: SourceWaker) -> Shared {
    Shared::new(Clock, waker, None, None, Duration::from_secs(1))
}
