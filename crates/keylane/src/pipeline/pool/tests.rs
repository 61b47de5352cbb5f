//! The pool by itself: one thread at a time in a shard, and a turn for every queue.

use std::sync::mpsc;

use keylane_source::{Message, Offset, Position, QueueId, SourceWaker};
use rayon::ThreadPoolBuilder;

use super::*;
use crate::config::{Config, Mode};
use crate::listener::{IntoListener, listen};
use crate::outcome::Outcome;
use crate::pipeline::chunk::{Collected, Route, Tag};
use crate::pipeline::mode::ModeState;
use crate::pipeline::tenure::Tenure;
use crate::pipeline::tracker::Tracker;
use crate::time::Clock;

/// Queue-locked shards on a pool of so many threads.
struct Rig {
    pool: Arc<ThreadPool>,
    shared: Arc<Shared>,
    cells: Vec<Arc<ShardCell>>,
}

impl Rig {
    fn new(threads: usize, queues: usize, slice: Duration, listener: impl IntoListener) -> Self {
        let pool = Arc::new(ThreadPoolBuilder::new().num_threads(threads).build().unwrap());
        let config = Config { mode: Mode::QueueLocked, batch_max: 1, slice, ..Config::default() };
        let waker = SourceWaker::noop();
        let timeout = Duration::from_secs(1);
        let shared = Arc::new(Shared::new(Clock, waker, None, None, timeout));
        let factory = listener.into_factory();
        let tasks = Pool::Threads(Arc::downgrade(&pool));
        let mode = ModeState::new(&Arc::new(config), Some(tasks), false, &factory);
        let cells = (0..queues).map(|slot| mode.make_shard(slot, &shared).unwrap()).collect();
        Self { pool, shared, cells }
    }

    /// Puts messages into a queue's shard, and says nobody so.
    fn offer(&self, slot: usize, messages: u64) {
        let queue = QueueId::new("pool", u32::try_from(slot).unwrap());
        let tenure = Arc::new(Tenure::new(queue, 1, slot, None));
        let mut tracker = Tracker::new(Position::ZERO);
        let now = self.shared.clock.now();
        let mut chunk = Collected::default();
        for offset in 0..messages {
            let offset = Offset::new(offset).unwrap();
            let bit = tracker.register(offset, 0, now);
            let tag = Tag::new(Route::NoKeyOfQueue, bit, None);
            let message = Message::new(queue, offset);
            chunk.push(message, tag, &tenure, tracker.page());
        }
        self.cells[slot].shard.lock().offer(chunk.take(now).unwrap());
    }

    fn threads(&self) -> &ThreadPool {
        &self.pool
    }
}

#[test]
fn one_task_is_submitted_however_often_a_shard_is_scheduled() {
    let (called, calls) = mpsc::channel();
    let called = std::sync::Mutex::new(called);
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let rig = Rig::new(
        2,
        1,
        SLICE,
        listen::each(move |message, _| {
            called.lock().unwrap().send(message.offset().get()).unwrap();
            wait.lock().unwrap().recv()?;
            Ok(Outcome::Done)
        }),
    );
    rig.offer(0, 3);
    for _ in 0..10 {
        rig.cells[0].nudge();
    }
    assert_eq!(calls.recv().unwrap(), 0);
    // One thread is in the call; what else was submitted, the other one has run before this.
    let (passed, behind) = mpsc::channel();
    rig.threads().spawn(move || passed.send(()).unwrap());
    behind.recv().unwrap();
    assert!(rig.shared.timers.next_due().is_none(), "no second task found the shard taken");
    (0..3).for_each(|_| go.send(()).unwrap());
    assert_eq!((calls.recv().unwrap(), calls.recv().unwrap()), (1, 2));
}

#[test]
fn the_lock_keeps_a_second_task_out_where_the_flag_did_not() {
    let (called, calls) = mpsc::channel();
    let called = std::sync::Mutex::new(called);
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let rig = Rig::new(
        4,
        1,
        SLICE,
        listen::each(move |message, _| {
            called.lock().unwrap().send(message.offset().get()).unwrap();
            wait.lock().unwrap().recv()?;
            Ok(Outcome::Done)
        }),
    );
    rig.offer(0, 2);
    // Past the flag, twice: the first task is in its call, the second finds the lock taken.
    submit(&rig.cells[0]);
    assert_eq!(calls.recv().unwrap(), 0);
    submit(&rig.cells[0]);
    // It does not wait for the lock: it comes back later, and its thread is free.
    let due = loop {
        match rig.shared.timers.next_due() {
            Some(due) => break due,
            None => std::thread::yield_now(),
        }
    };
    assert!(calls.try_recv().is_err(), "two calls of one queue at a time");
    (0..2).for_each(|_| go.send(()).unwrap());
    assert_eq!(calls.recv().unwrap(), 1);
    rig.shared.timers.fire(due);
    assert!(rig.shared.timers.next_due().is_none_or(|next| next > due));
}

#[test]
fn a_queue_whose_slice_is_over_gives_its_thread_to_the_next() {
    let (called, calls) = mpsc::channel();
    let called = std::sync::Mutex::new(called);
    // One thread, a slice of nothing: after each message another queue has its turn.
    let rig = Rig::new(
        1,
        2,
        Duration::ZERO,
        listen::each(move |message, _| {
            called.lock().unwrap().send(message.queue().index()).unwrap();
            Ok(Outcome::Done)
        }),
    );
    rig.offer(0, 3);
    rig.offer(1, 3);
    rig.threads().install(|| {
        // From inside the pool, so that nothing runs before both are submitted.
        rig.cells[0].nudge();
        rig.cells[1].nudge();
    });
    let mut turns = Vec::new();
    while turns.len() < 6 {
        rig.shared.timers.fire(rig.shared.clock.now());
        turns.extend(calls.try_iter());
        std::thread::yield_now();
    }
    let first_half = &turns[..3];
    assert!(first_half.contains(&0) && first_half.contains(&1), "{turns:?}");
    assert_eq!(turns.iter().filter(|&&queue| queue == 0).count(), 3);
}

#[test]
fn what_waits_when_the_consumer_has_ended_is_looked_at_once_more_and_kept_by_nobody() {
    let (called, calls) = mpsc::channel();
    let called = std::sync::Mutex::new(called);
    let rig = Rig::new(
        1,
        1,
        Duration::ZERO,
        listen::each(move |message, _| {
            called.lock().unwrap().send(message.offset().get()).unwrap();
            Ok(Outcome::Done)
        }),
    );
    rig.offer(0, 2);
    rig.cells[0].nudge();
    assert_eq!(calls.recv().unwrap(), 0);
    while rig.shared.timers.next_due().is_none() {
        std::thread::yield_now(); // Until the slice is over.
    }
    rig.shared.gate.move_to(GateState::Closed);
    rig.shared.timers.close();
    assert_eq!(rig.shared.timers.next_due(), None);
    // The task has seen that it is over: the listener is gone, without another call.
    let end = calls.recv_timeout(Duration::from_secs(60));
    assert_eq!(end, Err(mpsc::RecvTimeoutError::Disconnected));
    assert!(!rig.shared.wait_until(rig.shared.clock.now(), &rig.cells[0], false));
    assert_eq!(rig.shared.timers.next_due(), None);
}

#[test]
fn a_call_that_returns_after_the_end_is_the_last_though_the_pool_is_nobodys_any_more() {
    let (called, calls) = mpsc::channel();
    let called = std::sync::Mutex::new(called);
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let rig = Rig::new(
        1,
        1,
        Duration::ZERO, // The call outlasts its slice.
        listen::each(move |message, _| {
            called.lock().unwrap().send(message.offset().get()).unwrap();
            wait.lock().unwrap().recv()?;
            Ok(Outcome::Done)
        }),
    );
    rig.offer(0, 2);
    rig.cells[0].nudge();
    assert_eq!(calls.recv().unwrap(), 0);
    rig.shared.gate.move_to(GateState::Closed);
    rig.shared.timers.close();
    drop(rig.pool);
    go.send(()).unwrap();
    // The task has seen that it is over: the listener is gone, without another call.
    let end = calls.recv_timeout(Duration::from_secs(60));
    assert_eq!(end, Err(mpsc::RecvTimeoutError::Disconnected));
}
