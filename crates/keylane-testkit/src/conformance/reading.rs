//! What is read, from where to where.

use keylane_source::{
    EndOffset, FetchLimits, Message, Offset, Position, ResetCause, SeekTo, Source, SourceEvent,
};

use super::driver::{Driver, fetched_of, has, messages_of, produce};
use super::fixture::{Capability, Fixture, Record};

/// Every message of every queue comes, in ascending order of offset, and positions never go back.
pub fn everything_comes_in_ascending_order<F: Fixture>() {
    let mut fixture = F::new(3);
    let queues = fixture.queues();
    let produced: Vec<_> =
        queues.iter().zip([50, 1, 20]).map(|(q, count)| produce(&mut fixture, *q, count)).collect();
    let mut driver = Driver::reading(&mut fixture);
    for (queue, offsets) in queues.iter().zip(produced) {
        assert_eq!(driver.read_offsets(*queue, offsets.len()), offsets, "{queue}");
    }
    for queue in queues {
        driver.expect_none("everything has been read", messages_of(queue));
    }
}

/// A seek goes to a position, to the first message, behind the last one; forwards and backwards.
pub fn a_seek_may_go_anywhere<F: Fixture>() {
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let offsets = produce(&mut fixture, queue, 10);
    let mut driver = Driver::reading(&mut fixture);
    assert_eq!(driver.read_offsets(queue, 10), offsets);
    for from in [7, 2, 9, 0] {
        driver.seek(queue, SeekTo::Position(offsets[from].into()));
        assert_eq!(driver.read_offsets(queue, 10 - from), offsets[from..], "from index {from}");
    }
    driver.seek(queue, SeekTo::Position(offsets[9].next()));
    driver.expect_none("the seek went to the end", messages_of(queue));
    driver.seek(queue, SeekTo::Earliest);
    assert_eq!(driver.read_offsets(queue, 10), offsets);
    driver.seek(queue, SeekTo::Latest);
    driver.expect_none("the seek went behind the last message", messages_of(queue));
    if has::<F>(Capability::ProduceLate) {
        let late = produce(&mut fixture, queue, 1);
        assert_eq!(driver.read_offsets(queue, 1), late);
    }
}

/// A seek by time goes to the first message that is not older; behind the last one, if all are.
pub fn a_seek_by_time_finds_the_first_message_that_is_not_older<F: Fixture>() {
    if !has::<F>(Capability::SeekByTime) {
        return;
    }
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let times = [1_000_000_000_000, 1_000_000_001_000, 1_000_000_002_000];
    let offsets = times.map(|at| fixture.produce(queue, Record::new().with_timestamp_ms(at)));
    let mut driver = Driver::reading(&mut fixture);
    for (time, expected) in [(times[1], 1), (times[1] + 1, 2), (times[0] - 5, 0)] {
        driver.seek(queue, SeekTo::TimestampMs(time));
        assert_eq!(driver.read_offsets(queue, 3 - expected), offsets[expected..], "at {time}");
    }
    driver.seek(queue, SeekTo::TimestampMs(times[2] + 1));
    driver.expect_none("every message is older", messages_of(queue));
}

/// After a seek nothing comes of what had been fetched ahead: the next message is the one sought.
pub fn a_seek_drops_what_was_fetched_ahead<F: Fixture>() {
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let offsets = produce(&mut fixture, queue, 60);
    let mut driver = Driver::reading(&mut fixture);
    driver.limits = FetchLimits { messages: 1, ..driver.limits };
    driver.read(queue, 2); // what comes next may stand ready somewhere
    for target in [40, 5] {
        driver.seek(queue, SeekTo::Position(offsets[target].into()));
        assert_eq!(driver.read_offsets(queue, 1)[0], offsets[target]);
    }
}

/// A seek to a position that does not exist is answered by `Reset` with `OutOfRange`, which tells
/// what was asked and what there is; nothing is read before the next seek.
pub fn a_seek_outside_the_queue_is_a_reset<F: Fixture>() {
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let offsets = produce(&mut fixture, queue, 3);
    let (mut driver, _) = Driver::assigned(&mut fixture);
    let asked = Position::new(offsets[2].get() + 1_000).expect("far from the last offset");
    driver.seek(queue, SeekTo::Position(asked));
    expect_out_of_range(&mut driver, asked, offsets[0].into(), offsets[2].next());
    driver.expect_none("nothing may be read before the next seek", fetched_of(queue));
    driver.seek(queue, SeekTo::Earliest);
    assert_eq!(driver.read_offsets(queue, 3), offsets);
}

/// A position below what the broker still has is out of range, too.
pub fn what_is_trimmed_is_out_of_range<F: Fixture>() {
    if !has::<F>(Capability::Trim) {
        return;
    }
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let offsets = produce(&mut fixture, queue, 10);
    fixture.trim(queue, offsets[6].into());
    let (mut driver, _) = Driver::assigned(&mut fixture);
    driver.seek(queue, SeekTo::Position(offsets[2].into()));
    expect_out_of_range(&mut driver, offsets[2].into(), offsets[6].into(), offsets[9].next());
    driver.seek(queue, SeekTo::Earliest);
    assert_eq!(driver.read_offsets(queue, 4), offsets[6..]);
}

/// A vector that is given back is memory and nothing else, whatever is still in it.
pub fn what_is_given_back_does_not_come_again<F: Fixture>() {
    let mut fixture = F::new(2);
    let queues = fixture.queues();
    let mut left: Vec<_> =
        queues.iter().map(|queue| (*queue, produce(&mut fixture, *queue, 12))).collect();
    let mut driver = Driver::reading(&mut fixture);
    driver.limits = FetchLimits { messages: 3, ..driver.limits };
    while left.iter().any(|(_, offsets)| !offsets.is_empty()) {
        for (queue, offsets) in left.iter_mut().filter(|(_, offsets)| !offsets.is_empty()) {
            let messages = driver.fetch(*queue).messages;
            let came: Vec<_> = messages.iter().map(Message::offset).collect();
            let due: Vec<_> = offsets.drain(..came.len().min(offsets.len())).collect();
            assert_eq!(came, due, "{queue}");
            driver.source.recycle(messages);
        }
    }
}

fn expect_out_of_range<F: Fixture>(
    driver: &mut Driver<F>,
    expected: Position,
    first: Position,
    last: Position,
) {
    let cause = driver.expect("the reset", |event| match event {
        SourceEvent::Reset { cause, .. } => Ok(cause),
        other => Err(other),
    });
    let ResetCause::OutOfRange { asked, begin, end } = cause else {
        panic!("{cause:?} instead of OutOfRange");
    };
    assert_eq!((asked, begin, end), (expected, first, last), "asked, begin, end");
}

/// A fetch brings no more messages than its limit, where the source says that it is exact; and all
/// of them come, however small the limit.
pub fn a_fetch_keeps_to_its_limits<F: Fixture>() {
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let offsets = produce(&mut fixture, queue, 20);
    let mut driver = Driver::reading(&mut fixture);
    driver.limits = FetchLimits { messages: 3, ..driver.limits };
    let exact = has::<F>(Capability::ExactLimits);
    let mut read: Vec<Offset> = Vec::new();
    while read.len() < offsets.len() {
        let fetch = driver.fetch(queue);
        let count = fetch.messages.len();
        assert!(!exact || count <= 3, "a fetch of {count} messages, though the limit is 3");
        read.extend(fetch.messages.iter().map(Message::offset));
    }
    assert_eq!(read, offsets);
}

/// A message that is larger than the limit of bytes comes all the same, and so does what follows.
pub fn a_message_larger_than_the_limit_comes_all_the_same<F: Fixture>() {
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let sizes = [10, 100_000, 10];
    for size in sizes {
        fixture.produce(queue, Record::new().with_payload(vec![b'x'; size]));
    }
    let mut driver = Driver::reading(&mut fixture);
    driver.limits = FetchLimits { messages: 10, bytes: 1_000 };
    let read = driver.read(queue, 3);
    let came: Vec<_> = read.iter().map(|m| m.payload().map_or(0, <[u8]>::len)).collect();
    assert_eq!(came, sizes);
}

/// A paused queue brings no messages (save a fetch that was under way), and loses none: after the
/// resume the next message is the one behind the last one given out.
pub fn a_pause_brings_nothing_and_loses_nothing<F: Fixture>() {
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    // More than a source that ignores the pause can bring while it is listened to.
    let (polls, wait) = F::listening();
    let offsets = produce(&mut fixture, queue, 3 * 2 * (2 * polls as usize + 4));
    let mut driver = Driver::reading(&mut fixture);
    driver.limits = FetchLimits { messages: 2, ..driver.limits };
    let mut read = Vec::new();
    for _ in 0..3 {
        read.extend(driver.read(queue, 1).iter().map(Message::offset));
        driver.source.pause(queue);
        // What was under way comes with the first polls; the engine keeps it, and so does `read`.
        (0..polls).for_each(|_| driver.poll(wait));
        read.extend(driver.arrived(queue).iter().map(Message::offset));
        driver.expect_none("the queue is paused", messages_of(queue));
        driver.source.resume(queue);
    }
    let end = offsets[offsets.len() - 1].next();
    read.extend(driver.read_to(queue, end).iter().map(Message::offset));
    assert_eq!(read, offsets);
}

/// A pause concerns its queue alone, and pausing twice is resumed once.
pub fn a_pause_is_one_queues_and_may_be_repeated<F: Fixture>() {
    let mut fixture = F::new(2);
    let queues = fixture.queues();
    let produced: Vec<_> = queues.iter().map(|queue| produce(&mut fixture, *queue, 5)).collect();
    let (mut driver, _) = Driver::assigned(&mut fixture);
    driver.source.pause(queues[0]);
    driver.source.pause(queues[0]);
    queues.iter().for_each(|queue| driver.seek(*queue, SeekTo::Earliest));
    assert_eq!(driver.read_offsets(queues[1], 5), produced[1]);
    driver.expect_none("a seek does not end the pause", messages_of(queues[0]));
    driver.source.resume(queues[0]);
    assert_eq!(driver.read_offsets(queues[0], 5), produced[0]);
}

/// The position passes trailing offsets that hold no message, without a message having to come.
pub fn a_position_passes_holes_without_a_message<F: Fixture>() {
    if !has::<F>(Capability::Holes) {
        return;
    }
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let mut offsets = produce(&mut fixture, queue, 3);
    let hole = fixture.leave_hole(queue);
    let mut driver = Driver::reading(&mut fixture);
    let read = driver.read_to(queue, hole);
    assert_eq!(read.iter().map(Message::offset).collect::<Vec<_>>(), offsets);
    if has::<F>(Capability::ProduceLate) {
        offsets.append(&mut produce(&mut fixture, queue, 1));
        assert!(Position::from(offsets[3]) >= hole, "the fixture's hole is none");
        assert_eq!(driver.read_offsets(queue, 1), offsets[3..]);
        let marker_only = fixture.leave_hole(queue);
        assert!(driver.read_to(queue, marker_only).is_empty());
    }
}

/// The end is told sooner or later, where the broker knows it, and is never beyond the true one.
pub fn the_end_is_told_and_never_too_high<F: Fixture>() {
    let mut fixture = F::new(1);
    let queue = fixture.queues()[0];
    let end = produce(&mut fixture, queue, 7)[6].next();
    let mut driver = Driver::reading(&mut fixture);
    let must_come = has::<F>(Capability::Ends);
    let told = |event: SourceEvent| match event {
        SourceEvent::Fetched(fetch) => Ok((fetch.end, !fetch.messages.is_empty())),
        SourceEvent::End { end, .. } => Ok((end, false)),
        other => Err(other),
    };
    loop {
        match driver.expect("the end", told) {
            (EndOffset::At(at), _) => {
                assert!(at <= end, "the end is told to be {at}, though it is {end}");
                if at == end {
                    break;
                }
            }
            // Unknown for ever is allowed where the fixture says so.
            (EndOffset::Unknown, true) if !must_come => break,
            (EndOffset::Unknown, _) => {}
        }
    }
}
