//! What no tap touches passes as it is; what one touches comes to it, and in which order.

use std::sync::Arc;

use keylane_source::{CommitTag, LockReply, Watermark};
use parking_lot::Mutex;

use super::*;
use crate::script::{Call, Script};

const LIMITS: FetchLimits = FetchLimits { messages: 1, bytes: usize::MAX };

fn queue() -> QueueId {
    QueueId::new("tapped", 0)
}

/// Two messages, locks, and an error when it is closed.
fn script() -> Script {
    let script = Script::new().with_locks(Duration::from_secs(7));
    script.assign(queue());
    script.produce(queue(), "a", "first");
    script.produce(queue(), "a", "second");
    script.fail_close(SourceError::retryable("scripted"));
    script
}

fn commit() -> Commit {
    let watermark = Watermark::new(1).unwrap();
    Commit { queue: queue(), watermark, metadata: "m".to_owned(), tag: CommitTag(3) }
}

/// Every call there is; what was told, and what came back.
fn call_everything(mut source: impl Source) -> (String, Duration) {
    let mut told = Vec::new();
    source.poll(LIMITS, Duration::ZERO, &mut told).unwrap();
    source.seek(queue(), SeekTo::Earliest);
    source.pause(queue());
    source.resume(queue());
    source.commit(commit());
    source.look_up_committed(queue());
    source.poll(LIMITS, Duration::ZERO, &mut told).unwrap();
    source.waker().wake();
    // Were the wake lost, it would bring the second message.
    source.pause(queue());
    source.poll(LIMITS, Duration::from_secs(3_600), &mut told).unwrap();
    let locks = source.locks().unwrap();
    let lease = locks.lease();
    locks.acquire(&[queue()]);
    locks.release(&[queue()]);
    source.release(queue());
    let error = source.close(Duration::from_secs(5), &mut told).unwrap_err();
    (format!("{told:?}, {error}"), lease)
}

struct Nothing;
impl Tap for Nothing {}

#[test]
fn what_is_not_touched_passes_as_it_is() {
    let (plain, tapped) = (script(), script());
    let told = call_everything(plain.source());
    assert_eq!(call_everything(Nothing.on(tapped.source())), told);
    assert_eq!(told.1, Duration::from_secs(7));
    assert_eq!(tapped.history(), plain.history());
    let calls = [
        Call::Poll { times: 1 },
        Call::Seek { queue: queue(), to: SeekTo::Earliest },
        Call::Pause(queue()),
        Call::Resume(queue()),
        Call::Commit(commit()),
        Call::LookUp(queue()),
        Call::Poll { times: 1 },
        Call::Pause(queue()),
        Call::Poll { times: 1 },
        Call::AcquireLocks(vec![queue()]),
        Call::ReleaseLocks(vec![queue()]),
        Call::Release(queue()),
        Call::Close { timeout: Duration::from_secs(5) },
        Call::Dropped,
    ];
    assert_eq!(tapped.history(), calls);
}

#[test]
fn a_source_without_locks_has_none() {
    assert!(Nothing.on(Script::new().source()).locks().is_none());
}

/// Notes each call and event; brings an event of its own, and takes and gives no lock.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().push(what.into());
    }
}

impl Tap for Notes {
    fn event(&mut self, event: &SourceEvent) {
        let text = format!("{event:?}");
        self.note(text.split(' ').next().unwrap());
    }

    fn poll(
        &mut self,
        source: &mut dyn Source,
        limits: FetchLimits,
        wait: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        self.note("poll");
        events.push(SourceEvent::Lock { queue: queue(), reply: LockReply::Held });
        source.poll(limits, wait, events)?;
        Err(SourceError::retryable("the tap's"))
    }

    fn acquire(&mut self, _: &mut dyn QueueLocks, queues: &[QueueId]) {
        self.note(format!("acquire {}", queues.len()));
    }

    fn unlock(&mut self, _: &mut dyn QueueLocks, queues: &[QueueId]) {
        self.note(format!("unlock {}", queues.len()));
    }

    fn close(
        &mut self,
        source: &mut dyn Source,
        timeout: Duration,
        events: &mut Vec<SourceEvent>,
    ) -> Result<(), SourceError> {
        self.note("close");
        source.close(timeout, events)
    }

    fn closed(&mut self) {
        self.note("closed");
    }
}

#[test]
fn a_tap_sees_what_the_engine_is_about_to_see() {
    let (script, notes) = (script(), Notes::default());
    let mut source = notes.clone().on(script.source());
    let mut told = vec![SourceEvent::Revoking { queue: queue() }];
    let error = source.poll(LIMITS, Duration::ZERO, &mut told).unwrap_err();
    assert_eq!((error.to_string().as_str(), told.len()), ("the tap's", 3));
    source.commit(commit());
    let locks = source.locks().unwrap();
    locks.acquire(&[queue(), queue()]);
    locks.release(&[queue()]);
    source.close(Duration::ZERO, &mut told).unwrap_err();
    let expected =
        ["poll", "Lock", "Assigned", "acquire 2", "unlock 1", "close", "CommitResult", "closed"];
    assert_eq!(*notes.0.lock(), expected);
    assert!(!script.history().iter().any(|call| matches!(call, Call::AcquireLocks(_))));
}
