//! What the tests share: a consumer on a scripted source whose every step is recorded, latches, and
//! logs that can be waited for.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use keylane::source::{Offset, Position, QueueId, Watermark};

mod kept;
mod latch;
mod letters;
mod log;
mod rig;

pub(crate) use latch::Latch;
pub(crate) use letters::{Letters, Plan};
pub(crate) use log::{Events, Log};
pub(crate) use rig::Rig;

/// How long a test waits for something before it says that it will not come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The queue with this index.
pub(crate) fn q(index: u32) -> QueueId {
    QueueId::new("it", index)
}

pub(crate) fn offset(n: u64) -> Offset {
    Offset::new(n).expect("an offset")
}

pub(crate) fn position(n: u64) -> Position {
    Position::new(n).expect("a position")
}

pub(crate) fn watermark(n: u64) -> Watermark {
    Watermark::new(n).expect("a watermark")
}

/// A thread with a name.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).expect("a thread")
}

/// A panic without the message on standard error.
pub(crate) fn panics(payload: impl std::any::Any + Send) -> ! {
    std::panic::resume_unwind(Box::new(payload))
}

/// What `run` gave, and how long it took: for deadlines, whose upper bound is generous.
pub(crate) fn timed<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let begin = now();
    let result = run();
    (result, begin.elapsed())
}

#[expect(clippy::disallowed_methods, reason = "tests measure deadlines")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits for something that nobody announces: a number in the metrics, a state in a report.
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = now() + PATIENCE;
    while !condition() {
        assert!(now() < deadline, "waited {PATIENCE:?} in vain for: {what}");
        std::thread::park_timeout(MS);
    }
}

/// How many threads of this process have names that begin so; the system keeps 15 bytes of a name.
pub(crate) fn threads_named(prefix: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a list of threads");
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        // A thread may end while it is looked at.
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).filter(|name| name.starts_with(prefix)).count()
}

/// Sends the key `"17"` to shard 17 modulo the number of shards, and keys without a number to 0.
pub(crate) fn by_number(key: &[u8]) -> u64 {
    std::str::from_utf8(key).ok().and_then(|key| key.parse().ok()).unwrap_or(0)
}
