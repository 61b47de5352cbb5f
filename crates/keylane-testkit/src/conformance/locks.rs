//! Queue locks, where the broker has them.

use std::time::Duration;

use keylane_source::{LockReply, QueueId, Source, SourceEvent};

use super::driver::{Driver, has};
use super::fixture::{Capability, Fixture};

/// Asks for the lock of this queue and waits for the answer.
fn acquire<F: Fixture>(driver: &mut Driver<F>, queue: QueueId) -> LockReply {
    driver.source.locks().expect("the source has locks").acquire(&[queue]);
    answer(driver, queue)
}

fn answer<F: Fixture>(driver: &mut Driver<F>, expected: QueueId) -> LockReply {
    driver.expect(&format!("an answer about the lock of {expected}"), |event| match event {
        SourceEvent::Lock { queue, reply } if queue == expected => Ok(reply),
        other => Err(other),
    })
}

/// A source has locks exactly where the broker has them, with a lease that is not zero.
pub fn locks_are_there_exactly_where_the_fixture_says_so<F: Fixture>() {
    let expected = F::capabilities().has(Capability::Locks);
    let mut source = F::new(1).source();
    let lease = source.locks().map(|locks| locks.lease());
    assert_eq!(lease.is_some(), expected, "locks: {lease:?}");
    assert!(lease.is_none_or(|lease| lease > Duration::ZERO), "a lease of no time");
}

/// Each queue that is asked for is answered; asking again prolongs.
pub fn a_lock_is_acquired_and_prolonged_for_each_queue<F: Fixture>() {
    if !has::<F>(Capability::Locks) {
        return;
    }
    let mut fixture = F::new(2);
    let queues = fixture.queues();
    let (mut driver, _) = Driver::assigned(&mut fixture);
    for round in ["acquired", "prolonged"] {
        driver.source.locks().expect("the source has locks").acquire(&queues);
        for queue in &queues {
            let reply = answer(&mut driver, *queue);
            assert!(matches!(reply, LockReply::Held), "{queue}, to be {round}: {reply:?}");
            assert!(fixture.is_locked(*queue), "{queue} is {round}, and the broker denies it");
        }
    }
}

/// A lock that somebody else has is refused, and the others are not.
pub fn a_lock_that_somebody_else_has_is_refused<F: Fixture>() {
    if !has::<F>(Capability::Locks) {
        return;
    }
    let mut fixture = F::new(2);
    let queues = fixture.queues();
    let (mut driver, _) = Driver::assigned(&mut fixture);
    fixture.lock_elsewhere(queues[0]);
    driver.source.locks().expect("the source has locks").acquire(&queues);
    let replies = [answer(&mut driver, queues[0]), answer(&mut driver, queues[1])];
    assert!(matches!(replies, [LockReply::Refused, LockReply::Held]), "{replies:?}");
}

/// A lock that was released is free; and may be acquired again.
pub fn a_released_lock_is_free<F: Fixture>() {
    if !has::<F>(Capability::Locks) {
        return;
    }
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let (mut driver, _) = Driver::assigned(&mut fixture);
    assert!(matches!(acquire(&mut driver, queue), LockReply::Held));
    driver.source.locks().expect("the source has locks").release(&[queue]);
    let (polls, wait) = F::listening();
    for _ in 0..polls {
        driver.poll(wait);
    }
    assert!(!fixture.is_locked(queue), "the lock was released, and the broker still holds it");
    assert!(matches!(acquire(&mut driver, queue), LockReply::Held));
}

/// A lock that is held and goes to somebody else is told: by an event, or by the answer to the next
/// request, and then not as held.
pub fn a_lock_taken_away_is_told<F: Fixture>() {
    if !has::<F>(Capability::Locks) {
        return;
    }
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let (mut driver, _) = Driver::assigned(&mut fixture);
    assert!(matches!(acquire(&mut driver, queue), LockReply::Held));
    fixture.lock_elsewhere(queue);
    let reply = acquire(&mut driver, queue);
    assert!(matches!(reply, LockReply::Lost | LockReply::Refused), "{reply:?}");
}
