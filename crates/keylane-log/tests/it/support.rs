//! What the tests share: reading a source as the engine would.
#![expect(clippy::unwrap_used, reason = "this is part of the tests")]

use std::collections::BTreeMap;
use std::time::Duration;

use keylane_log::LogSource;
use keylane_source::{
    Commit, CommitTag, Committed, Fetch, FetchLimits, Message, Position, QueueId, SeekTo, Source,
    SourceError, SourceEvent, Watermark,
};

pub(crate) const LIMITS: FetchLimits = FetchLimits { messages: 100, bytes: 1 << 20 };
/// Long enough for a busy machine; nothing waits for all of it unless it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn at(bound: u64) -> Position {
    Position::new(bound).unwrap()
}

/// Polls until `done` finds what it wants in an event; panics when it does not come.
pub(crate) fn poll_for<T>(
    source: &mut LogSource,
    limits: FetchLimits,
    mut done: impl FnMut(&SourceEvent) -> Option<T>,
) -> T {
    let deadline = std::time::Instant::now() + PATIENCE;
    let mut events = Vec::new();
    while std::time::Instant::now() < deadline {
        source.poll(limits, Duration::from_secs(1), &mut events).unwrap();
        if let Some(found) = events.iter().find_map(&mut done) {
            return found;
        }
        events.clear();
    }
    panic!("what was waited for did not come");
}

/// The assignments that the first poll brings.
pub(crate) fn assigned(source: &mut LogSource) -> Vec<(QueueId, Committed)> {
    let mut events = Vec::new();
    source.poll(LIMITS, Duration::ZERO, &mut events).unwrap();
    let assignment = |event| match event {
        SourceEvent::Assigned { queue, committed } => (queue, committed),
        other => panic!("{other:?} before the assignments"),
    };
    events.into_iter().map(assignment).collect()
}

/// Reads all queues from their begin to their end.
pub(crate) fn read_all(source: &mut LogSource) -> BTreeMap<QueueId, Vec<Message>> {
    let queues: Vec<_> = assigned(source).into_iter().map(|(queue, _)| queue).collect();
    let mut read: BTreeMap<_, _> = queues.iter().map(|queue| (*queue, Vec::new())).collect();
    for queue in &queues {
        source.seek(*queue, SeekTo::Earliest);
    }
    let mut events = Vec::new();
    loop {
        source.poll(LIMITS, Duration::ZERO, &mut events).unwrap();
        if events.is_empty() {
            return read;
        }
        for event in events.drain(..) {
            match event {
                SourceEvent::Fetched(Fetch { queue, messages, position, .. }) => {
                    assert_eq!(messages.last().unwrap().offset().next(), position);
                    read.get_mut(&queue).unwrap().extend(messages);
                }
                SourceEvent::End { .. } => {}
                other => panic!("{other:?} while reading"),
            }
        }
    }
}

/// Commits and waits for the result.
pub(crate) fn commit(
    source: &mut LogSource,
    queue: QueueId,
    watermark: u64,
    metadata: &str,
) -> Result<(), SourceError> {
    let watermark = Watermark::new(watermark).unwrap();
    let tag = CommitTag(watermark.get() + 1);
    let asked = Commit { queue, watermark, metadata: metadata.into(), tag };
    source.commit(asked.clone());
    poll_for(source, LIMITS, |event| match event {
        SourceEvent::CommitResult { commit, result } if commit.tag == tag => {
            assert_eq!(*commit, asked);
            Some(result.clone())
        }
        _ => None,
    })
}
