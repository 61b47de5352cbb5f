//! How a queue leaves, or changes under the reader.

use keylane_source::{QueueId, ResetCause, SeekTo, Source, SourceEvent};

use super::driver::{Driver, behind, fetched_of, has, messages_of, produce};
use super::fixture::{Capability, Fixture};

fn revoking<F: Fixture>(driver: &mut Driver<F>) -> QueueId {
    driver.expect("the revoke", |event| match event {
        SourceEvent::Revoking { queue } => Ok(queue),
        other => Err(other),
    })
}

/// A queue that is revoked stays with the source until it is released: its last commit is stored.
pub fn a_revoke_waits_for_the_release<F: Fixture>() {
    if !has::<F>(Capability::Revoke) {
        return;
    }
    let mut fixture = F::new(2);
    let queues = fixture.queues();
    let produced: Vec<_> = queues.iter().map(|queue| produce(&mut fixture, *queue, 3)).collect();
    let mut driver = Driver::reading(&mut fixture);
    queues.iter().for_each(|queue| _ = driver.read(*queue, 3));
    fixture.revoke_one();
    let queue = revoking(&mut driver);
    driver.expect_none(
        "the queue must not go before it is released",
        |event| matches!(event, SourceEvent::Lost { queue: lost } if *lost == queue),
    );
    let index = queues.iter().position(|known| *known == queue).expect("one of the queues");
    let drained = behind(produced[index][2]);
    driver.commit_now(queue, drained);
    assert_eq!(fixture.stored(queue), Some(drained), "committed before the release");
    driver.source.release(queue);
    assert_eq!(fixture.stored(queue), Some(drained));
}

/// After a release nothing of the queue comes any more; the others go on.
pub fn after_a_release_nothing_of_the_queue_comes<F: Fixture>() {
    if !has::<F>(Capability::Revoke) || !has::<F>(Capability::ProduceLate) {
        return;
    }
    let mut fixture = F::new(2);
    let queues = fixture.queues();
    queues.iter().for_each(|queue| _ = produce(&mut fixture, *queue, 3));
    let mut driver = Driver::reading(&mut fixture);
    queues.iter().for_each(|queue| _ = driver.read(*queue, 3));
    fixture.revoke_one();
    let gone = revoking(&mut driver);
    driver.source.release(gone);
    produce(&mut fixture, gone, 1);
    driver.expect_none("the queue was released", fetched_of(gone));
    let kept = queues.into_iter().find(|queue| *queue != gone).expect("two queues");
    // A group may take all queues away before it deals them out again.
    if driver.keeps(kept) {
        let late = produce(&mut fixture, kept, 1);
        assert_eq!(driver.read_offsets(kept, 1), late);
    }
}

/// After `Lost` nothing of the queue comes, and a commit that comes too late stores nothing.
pub fn after_a_loss_nothing_of_the_queue_comes_and_nothing_is_stored<F: Fixture>() {
    if !has::<F>(Capability::Lose) {
        return;
    }
    let mut fixture = F::new(2);
    let queues = fixture.queues();
    let produced: Vec<_> = queues.iter().map(|queue| produce(&mut fixture, *queue, 3)).collect();
    let mut driver = Driver::reading(&mut fixture);
    queues.iter().for_each(|queue| _ = driver.read(*queue, 3));
    fixture.lose_one();
    let lost = driver.expect("the loss", |event| match event {
        SourceEvent::Lost { queue } => Ok(queue),
        other => Err(other),
    });
    let index = queues.iter().position(|known| *known == lost).expect("one of the queues");
    let late = driver.commit(lost, behind(produced[index][2]), "");
    assert!(driver.result(&late).is_err(), "a commit after the loss cannot succeed");
    assert_eq!(fixture.stored(lost), None);
    if has::<F>(Capability::ProduceLate) {
        produce(&mut fixture, lost, 1);
        driver.expect_none("the queue is lost", messages_of(lost));
    }
}

/// An offset that an operator has moved is a `Reset` with `Moved`; reading goes on there after the
/// next seek, and not before.
pub fn a_moved_offset_is_a_reset<F: Fixture>() {
    if !has::<F>(Capability::MoveOffset) {
        return;
    }
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let offsets = produce(&mut fixture, queue, 6);
    let mut driver = Driver::reading(&mut fixture);
    driver.read(queue, 6);
    fixture.move_offset(queue, offsets[2].into());
    let cause = driver.expect("the reset", |event| match event {
        SourceEvent::Reset { cause, .. } => Ok(cause),
        other => Err(other),
    });
    let ResetCause::Moved { to } = cause else { panic!("{cause:?} instead of Moved") };
    assert_eq!(to, offsets[2].into());
    driver.expect_none("nothing may be read before the next seek", fetched_of(queue));
    driver.seek(queue, SeekTo::Position(to));
    assert_eq!(driver.read_offsets(queue, 4), offsets[2..]);
}
