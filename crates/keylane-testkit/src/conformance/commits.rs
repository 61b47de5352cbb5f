//! What becomes of a commit.

use std::time::Duration;

use keylane_source::{Position, SeekTo, Source, SourceEvent, Watermark};

use super::driver::{Driver, behind, has, produce, within};
use super::fixture::{Capability, Fixture};

/// A commit is stored, and its result names queue, watermark, metadata and tag as they were given;
/// also where commits of several queues are under way.
pub fn a_commit_is_stored_and_its_result_names_it<F: Fixture>() {
    let mut fixture = F::new(2);
    let queues = fixture.queues();
    let produced: Vec<_> = queues.iter().map(|queue| produce(&mut fixture, *queue, 3)).collect();
    let mut driver = Driver::reading(&mut fixture);
    queues.iter().for_each(|queue| _ = driver.read(*queue, 3));
    let first = driver.commit(queues[0], behind(produced[0][0]), "first");
    let second = driver.commit(queues[1], behind(produced[1][1]), "second");
    for commit in [&second, &first] {
        driver.result(commit).unwrap_or_else(|error| panic!("{commit:?}: {error}"));
    }
    for commit in [first, second] {
        assert_eq!(fixture.stored(commit.queue), Some(commit.watermark), "{}", commit.queue);
    }
}

/// Of two commits the later one is stored in the end, and reading goes on where it was.
pub fn a_later_commit_wins_and_reading_goes_on<F: Fixture>() {
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let offsets = produce(&mut fixture, queue, 10);
    let mut driver = Driver::reading(&mut fixture);
    driver.limits.messages = 4;
    let mut read = driver.read_offsets(queue, 4);
    driver.commit_now(queue, behind(offsets[0]));
    driver.commit_now(queue, behind(offsets[3]));
    assert_eq!(fixture.stored(queue), Some(behind(offsets[3])));
    let rest = offsets.len() - read.len();
    read.append(&mut driver.read_offsets(queue, rest));
    assert_eq!(read, offsets);
}

/// What was stored is there for the next process, even if the last one ended without a word.
pub fn a_commit_survives_a_crash<F: Fixture>() {
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let offsets = produce(&mut fixture, queue, 5);
    let mut driver = Driver::reading(&mut fixture);
    driver.read(queue, 5);
    driver.commit_now(queue, behind(offsets[1]));
    drop(driver);
    assert_eq!(fixture.stored(queue), Some(behind(offsets[1])));
    let (mut driver, _) = Driver::assigned(&mut fixture);
    driver.seek(queue, SeekTo::Position(behind(offsets[1]).into()));
    assert_eq!(driver.read_offsets(queue, 3), offsets[2..]);
}

/// The watermark 0, or whatever the queue begins with, can be committed, and is then no longer
/// "none".
pub fn a_commit_of_the_start_is_a_commit<F: Fixture>() {
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let start = Watermark::from(Position::from(produce(&mut fixture, queue, 1)[0]));
    let mut driver = Driver::reading(&mut fixture);
    driver.read(queue, 1);
    driver.commit_now(queue, start);
    assert_eq!(fixture.stored(queue), Some(start));
    drop(driver);
    let (_driver, found) = Driver::assigned(&mut fixture);
    match &found[&queue] {
        keylane_source::Committed::At { watermark, .. } => assert_eq!(*watermark, start),
        other => panic!("{other:?}, though {start} was committed"),
    }
}

/// A commit that fails says so; what is stored stays, and the next one can succeed.
pub fn a_failed_commit_says_so_and_stores_nothing<F: Fixture>() {
    if !has::<F>(Capability::FailCommits) {
        return;
    }
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let offsets = produce(&mut fixture, queue, 3);
    let mut driver = Driver::reading(&mut fixture);
    driver.read(queue, 3);
    driver.commit_now(queue, behind(offsets[0]));
    fixture.fail_next_commit(queue);
    let failing = driver.commit(queue, behind(offsets[1]), "");
    assert!(driver.result(&failing).is_err(), "the commit failed, and its result says Ok");
    assert_eq!(fixture.stored(queue), Some(behind(offsets[0])));
    driver.commit_now(queue, behind(offsets[2]));
    assert_eq!(fixture.stored(queue), Some(behind(offsets[2])));
}

/// `close` waits for the commits that were handed over, brings their results, and leaves the group:
/// the next member gets every queue.
pub fn close_answers_every_commit_and_leaves_the_group<F: Fixture>() {
    let mut fixture = F::new(2);
    let queues = fixture.queues();
    let produced: Vec<_> = queues.iter().map(|queue| produce(&mut fixture, *queue, 2)).collect();
    let mut driver = Driver::<F>::reading(&mut fixture);
    queues.iter().for_each(|queue| _ = driver.read(*queue, 2));
    let ends = [behind(produced[0][1]), behind(produced[1][1])];
    let asked = [driver.commit(queues[0], ends[0], ""), driver.commit(queues[1], ends[1], "")];
    let (patience, mut source) = (F::patience(), driver.source);
    let events = within(patience * 2, "close", move || {
        let mut events = Vec::new();
        if let Err(error) = source.close(patience, &mut events) {
            panic!("close: {error}");
        }
        events
    });
    for commit in &asked {
        let answered = events.iter().any(|event| {
            matches!(event, SourceEvent::CommitResult { commit: c, result: Ok(()) } if c == commit)
        });
        assert!(answered, "close brought no result of {commit:?}, but {events:?}");
    }
    let stored = [fixture.stored(queues[0]), fixture.stored(queues[1])];
    assert_eq!(stored, ends.map(Some));
    let (_driver, found) = Driver::assigned(&mut fixture);
    assert_eq!(found.len(), 2);
}

/// `close` returns also where the broker answers nothing, and says what was not done: an open
/// commit is answered with an error, or `close` returns one.
pub fn close_returns_though_the_broker_is_silent<F: Fixture>() {
    if !has::<F>(Capability::Silence) {
        return;
    }
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let offsets = produce(&mut fixture, queue, 1);
    let mut driver = Driver::<F>::reading(&mut fixture);
    driver.read(queue, 1);
    fixture.fall_silent();
    let asked = driver.commit(queue, behind(offsets[0]), "");
    let mut source = driver.source;
    let (events, closed) = within(F::patience(), "close within 100 ms", move || {
        let mut events = Vec::new();
        let closed = source.close(Duration::from_millis(100), &mut events);
        (events, closed)
    });
    let answer = events.iter().find_map(|event| match event {
        SourceEvent::CommitResult { commit, result } if *commit == asked => Some(result.is_ok()),
        _ => None,
    });
    assert_ne!(answer, Some(true), "the commit cannot have been stored");
    assert!(closed.is_err() || answer == Some(false), "nothing says that the commit is open");
}
