//! What the suite does not ask of a source: fairness among queues, wakes used up, the topic's view.

use super::*;

const LIMITS: FetchLimits = FetchLimits { messages: 3, bytes: 1 << 20 };

fn topic(queues: u32, messages: u64) -> MemoryTopic {
    MemoryTopic::generate("memory", queues, messages, |queue, offset| {
        Message::new(queue, offset).with_payload(vec![b'x'; 10])
    })
}

fn poll(source: &mut MemorySource) -> Vec<SourceEvent> {
    let mut events = Vec::new();
    source.poll(LIMITS, Duration::ZERO, &mut events).unwrap();
    events
}

fn reading(topic: &MemoryTopic) -> MemorySource {
    let mut source = topic.source();
    poll(&mut source);
    topic.queues().for_each(|queue| source.seek(queue, SeekTo::Earliest));
    source
}

/// Index of the queue and number of messages of each fetch.
fn fetched(source: &mut MemorySource) -> Vec<(u32, usize)> {
    let fetch = |event| match event {
        SourceEvent::Fetched(fetch) => (fetch.queue.index(), fetch.messages.len()),
        other => panic!("{other:?}"),
    };
    poll(source).into_iter().map(fetch).collect()
}

#[test]
fn every_queue_gets_its_turn_before_any_gets_a_second_one() {
    let mut source = reading(&topic(10, 5));
    let turn: Vec<_> = (0..3).flat_map(|_| fetched(&mut source)).collect();
    let queues: Vec<_> = turn.iter().map(|(queue, _)| *queue).collect();
    assert_eq!(queues, (0..10).chain(0..10).collect::<Vec<_>>());
    assert!(turn[..10].iter().all(|(_, messages)| *messages == 3), "{turn:?}");
    assert!(turn[10..].iter().all(|(_, messages)| *messages == 2), "{turn:?}");
    assert!(fetched(&mut source).is_empty());
}

#[test]
fn the_topic_knows_when_all_is_fetched_and_when_all_is_committed() {
    let topic = topic(2, 3);
    let mut source = reading(&topic);
    assert_eq!((topic.is_fetched(), topic.is_committed()), (false, false));
    fetched(&mut source);
    assert_eq!((topic.is_fetched(), topic.is_committed()), (true, false));
    for queue in topic.queues() {
        assert!(!topic.is_committed());
        let watermark = Watermark::from(topic.end(queue).unwrap());
        let (metadata, tag) = (String::new(), keylane_source::CommitTag(1));
        source.commit(Commit { queue, watermark, metadata, tag });
    }
    assert!(topic.is_committed());
    assert!(MemoryTopic::generate("empty", 2, 0, Message::new).is_committed());
}

#[test]
fn bytes_are_limited_too() {
    let mut source = reading(&topic(1, 5));
    let mut events = Vec::new();
    source.poll(FetchLimits { messages: 5, bytes: 25 }, Duration::ZERO, &mut events).unwrap();
    let [SourceEvent::Fetched(fetch)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((fetch.messages.len(), fetch.position), (2, Position::new(2).unwrap()));
}

#[test]
fn a_vector_that_comes_back_is_filled_again() {
    let mut source = reading(&topic(1, 6));
    let fetch = |source: &mut MemorySource| match poll(source).remove(0) {
        SourceEvent::Fetched(fetch) => fetch.messages,
        other => panic!("{other:?}"),
    };
    let mut first = fetch(&mut source);
    let memory = first.as_ptr();
    // Whoever gives it back with something in it does not see that again.
    first.truncate(1);
    source.recycle(first);
    let second = fetch(&mut source);
    assert_eq!(second.as_ptr(), memory);
    let offsets: Vec<_> = second.iter().map(|message| message.offset().get()).collect();
    assert_eq!(offsets, [3, 4, 5]);
}

#[test]
fn a_wake_is_used_up_by_the_wait_that_it_ends() {
    let mut source = topic(1, 0).source();
    poll(&mut source);
    source.waker().wake();
    assert!(*source.wakes.woken.lock());
    source.poll(LIMITS, Duration::from_secs(3_600), &mut Vec::new()).unwrap();
    assert!(!*source.wakes.woken.lock());
}

#[test]
fn messages_with_holes_and_empty_queues_are_kept_as_they_are() {
    let queue = QueueId::new("holes", 0);
    let message = |offset| Message::new(queue, Offset::new(offset).unwrap());
    let other = (QueueId::new("holes", 1), Vec::new());
    let topic = MemoryTopic::from_queues([(queue, vec![message(5), message(9)]), other]);
    assert_eq!((topic.messages(), topic.queues().count()), (2, 2));
    let mut source = reading(&topic);
    source.seek(queue, SeekTo::Position(Position::new(6).unwrap()));
    let events = poll(&mut source);
    let [SourceEvent::Fetched(fetch)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(fetch.messages[0].offset().get(), 9);
    assert_eq!(fetch.end, EndOffset::At(Position::new(10).unwrap()));
}

#[test]
#[should_panic(expected = "holes/0: offsets do not ascend")]
fn offsets_have_to_ascend() {
    let message = |offset| Message::new(QueueId::new("holes", 0), Offset::new(offset).unwrap());
    MemoryTopic::from_messages([message(5), message(5)]);
}
