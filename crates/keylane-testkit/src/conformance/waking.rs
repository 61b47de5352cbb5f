//! When `poll` waits, and what ends its wait.
//!
//! A wait that nothing ends shows as a test that is not over when the fixture's patience is. No
//! rule measures how long something took.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use keylane_source::{Source, SourceEvent};

use super::driver::{Driver, FOR_EVER, WIDE, produce, within};
use super::fixture::{Capability, Fixture};

/// A source that has nothing to say: every queue is assigned, sought and read to its end.
fn quiet_source<F: Fixture>(fixture: &mut F) -> F::Source {
    let queues = fixture.queues();
    let ends: Vec<_> = queues.iter().map(|queue| produce(fixture, *queue, 1)[0].next()).collect();
    let mut driver = Driver::reading(fixture);
    for (queue, end) in queues.iter().zip(ends) {
        driver.read_to(*queue, end);
    }
    driver.expect_none(
        "everything has been read",
        |event| matches!(event, SourceEvent::Fetched(fetch) if !fetch.messages.is_empty()),
    );
    driver.source
}

/// A wake that comes while nobody waits makes the next poll return at once: every time.
pub fn a_wake_is_never_lost<F: Fixture>() {
    let mut fixture = F::new(1);
    let mut source = quiet_source(&mut fixture);
    within(F::patience(), "polls with a wake before each", move || {
        let waker = source.waker();
        for _ in 0..100 {
            waker.clone().wake();
            poll(&mut source, FOR_EVER);
        }
    });
}

/// A wake from another thread ends a wait that has begun, or is about to.
pub fn a_wake_ends_a_long_wait<F: Fixture>() {
    let mut fixture = F::new(1);
    let mut source = quiet_source(&mut fixture);
    within(F::patience(), "polls with a wake during each", move || {
        let waker = source.waker();
        let (begin, begun) = mpsc::channel();
        let other = thread::spawn(move || begun.iter().for_each(|()| waker.wake()));
        for _ in 0..20 {
            begin.send(()).expect("the waking thread lives");
            poll(&mut source, FOR_EVER);
        }
        drop(begin);
        other.join().expect("the waking thread ends");
    });
}

/// A message that arrives ends the wait.
pub fn a_new_message_ends_a_long_wait<F: Fixture>() {
    if !super::driver::has::<F>(Capability::ProduceLate) {
        return;
    }
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let mut source = quiet_source(&mut fixture);
    let (read, was_read) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut messages = 0;
        while messages < 3 {
            for event in poll(&mut source, FOR_EVER) {
                if let SourceEvent::Fetched(fetch) = event {
                    messages += fetch.messages.len();
                    read.send(fetch.messages.len()).expect("the test waits");
                }
            }
        }
    });
    for _ in 0..3 {
        produce(&mut fixture, queue, 1);
        let mut arrived = 0;
        while arrived == 0 {
            match was_read.recv_timeout(F::patience()) {
                Ok(messages) => arrived = messages,
                Err(_) => panic!("a new message does not end the wait of a poll"),
            }
        }
    }
    reader.join().expect("the reader ends");
}

/// A poll with a wait of zero returns whether or not there is something: a thousand of them are
/// over in no time.
pub fn a_poll_without_a_wait_never_waits<F: Fixture>() {
    let mut fixture = F::new(1);
    let mut source = quiet_source(&mut fixture);
    within(F::patience(), "a thousand polls that do not wait", move || {
        (0..1_000).for_each(|_| _ = poll(&mut source, Duration::ZERO));
    });
}

/// A wait that nothing ends is over when its time is.
pub fn a_wait_ends_by_itself<F: Fixture>() {
    let mut fixture = F::new(1);
    let mut source = quiet_source(&mut fixture);
    within(F::patience(), "polls that wait for a moment", move || {
        (0..3).for_each(|_| _ = poll(&mut source, Duration::from_millis(10)));
    });
}

fn poll(source: &mut impl Source, wait: Duration) -> Vec<SourceEvent> {
    let mut events = Vec::new();
    if let Err(error) = source.poll(WIDE, wait, &mut events) {
        assert!(error.is_retryable(), "poll reports a fatal error: {error}");
    }
    events
}
