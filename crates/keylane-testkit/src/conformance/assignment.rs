//! How a queue's tenure begins.

use keylane_source::{Committed, QueueId, SeekTo, Source, SourceEvent};

use super::driver::{Driver, behind, fetched_of, has, produce};
use super::fixture::{Capability, Fixture};

/// Nothing is read from a queue before the first seek.
pub fn nothing_before_a_seek<F: Fixture>() {
    let mut fixture = F::new(2);
    let queues = fixture.queues();
    queues.iter().for_each(|queue| _ = produce(&mut fixture, *queue, 3));
    let (mut driver, _) = Driver::assigned(&mut fixture);
    driver.expect_none("nothing may be fetched before a seek", |event| {
        matches!(event, SourceEvent::Fetched(_))
    });
    // A seek begins its own queue, and no other.
    driver.seek(queues[1], SeekTo::Earliest);
    assert_eq!(driver.read(queues[1], 3).len(), 3);
    driver.expect_none("only the other queue was sought", fetched_of(queues[0]));
}

/// Where the group has committed nothing, that is what is said: [`Committed::None`], or what the
/// broker has for it ([`Fixture::without_a_commit`]).
pub fn a_group_without_an_offset_is_told_so<F: Fixture>() {
    let mut fixture = F::new(2);
    let queues = fixture.queues();
    queues.iter().for_each(|queue| _ = produce(&mut fixture, *queue, 1));
    let (_driver, found) = Driver::assigned(&mut fixture);
    for (queue, committed) in found {
        assert_nothing_committed::<F>(queue, &committed);
    }
}

/// What was committed is told at the next assignment, with its metadata where the broker keeps it.
pub fn a_committed_offset_is_told_with_its_metadata<F: Fixture>() {
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let offsets = produce(&mut fixture, queue, 3);
    let mut driver = Driver::reading(&mut fixture);
    driver.read(queue, 3);
    let expected = behind(offsets[1]);
    let commit = driver.commit(queue, expected, "held: 4");
    driver.result(&commit).unwrap_or_else(|error| panic!("commit: {error}"));
    drop(driver);
    let (_driver, found) = Driver::assigned(&mut fixture);
    let Committed::At { watermark, metadata } = &found[&queue] else {
        panic!("{:?} instead of {expected:?}", found[&queue]);
    };
    assert_eq!(*watermark, expected);
    if has::<F>(Capability::Metadata) {
        assert_eq!(metadata, "held: 4");
    }
}

/// `look_up_committed` is answered by `LookedUp`, with what is stored at that time.
pub fn a_look_up_is_answered<F: Fixture>() {
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let offsets = produce(&mut fixture, queue, 2);
    let mut driver = Driver::reading(&mut fixture);
    driver.source.look_up_committed(queue);
    let committed = looked_up(&mut driver);
    assert_nothing_committed::<F>(queue, &committed);
    let expected = behind(offsets[0]);
    driver.read(queue, 2);
    driver.commit_now(queue, expected);
    driver.source.look_up_committed(queue);
    match looked_up(&mut driver) {
        Committed::At { watermark, .. } => assert_eq!(watermark, expected),
        other => panic!("{other:?} instead of {expected:?}"),
    }
}

/// A look-up that fails is `Failed`, not "none"; asking again then gives the offset.
pub fn a_failed_look_up_is_neither_none_nor_an_offset<F: Fixture>() {
    if !has::<F>(Capability::FailLookUps) {
        return;
    }
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let offsets = produce(&mut fixture, queue, 2);
    let expected = behind(offsets[0]);
    let mut driver = Driver::reading(&mut fixture);
    driver.read(queue, 2);
    driver.commit_now(queue, expected);
    fixture.fail_next_look_up(queue);
    driver.source.look_up_committed(queue);
    let committed = looked_up(&mut driver);
    assert!(matches!(committed, Committed::Failed(_)), "{committed:?} after a failed look-up");
    driver.source.look_up_committed(queue);
    match looked_up(&mut driver) {
        Committed::At { watermark, .. } => assert_eq!(watermark, expected),
        other => panic!("{other:?} instead of {expected:?}"),
    }
}

fn assert_nothing_committed<F: Fixture>(queue: QueueId, committed: &Committed) {
    let expected = F::without_a_commit();
    let is_so = match (expected, committed) {
        (None, Committed::None) => true,
        (Some(expected), Committed::At { watermark, .. }) => *watermark == expected,
        _ => false,
    };
    assert!(is_so, "{queue}: {committed:?} instead of {expected:?}");
}

fn looked_up<F: Fixture>(driver: &mut Driver<F>) -> Committed {
    driver.expect("the look-up's answer", |event| match event {
        SourceEvent::LookedUp { committed, .. } => Ok(committed),
        other => Err(other),
    })
}
