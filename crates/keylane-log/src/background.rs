//! The log's one thread: it writes commits, forces writes to the disk in intervals, and removes
//! what nobody needs. So no caller of a [`Source`](keylane_source::Source) waits for the disk.
//!
//! It sleeps while there is nothing to do. Commits that came while it was writing go together.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{Commit, SourceEvent};
use parking_lot::{Condvar, Mutex};

use crate::error::Kind;
use crate::inbox::Inbox;
use crate::shared::Core;
use crate::topic::Topic;
use crate::{Error, Fsync, Retention};

/// A source's wish to commit. Answered exactly once: dropped unanswered, it says that it failed.
pub(crate) struct Request {
    topic: Arc<Topic>,
    group: Arc<str>,
    commit: Option<Commit>,
    reply: Arc<Inbox>,
}

impl Request {
    pub(crate) fn new(
        topic: &Arc<Topic>,
        group: &Arc<str>,
        commit: Commit,
        reply: &Arc<Inbox>,
    ) -> Self {
        Self {
            topic: Arc::clone(topic),
            group: Arc::clone(group),
            commit: Some(commit),
            reply: Arc::clone(reply),
        }
    }

    fn answer(&mut self, result: Result<(), Error>) {
        let Some(commit) = self.commit.take() else { return };
        let result = result.map_err(|error| {
            let Commit { queue, watermark, .. } = commit;
            let doing = format!("commit {queue} at {watermark} for group {:?}", self.group);
            error.context(doing).to_source_error()
        });
        self.reply.result(SourceEvent::CommitResult { commit, result });
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.answer(Err(dead()));
    }
}

fn dead() -> Error {
    Error::new(Kind::Stopped, "the log's thread has ended")
}

#[derive(Default)]
pub(crate) struct Background {
    state: Mutex<State>,
    changed: Condvar,
    /// The interval of [`Fsync::Interval`].
    interval: Option<Duration>,
    trims: bool,
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    /// Requests are being written.
    writing: bool,
    /// When the oldest write that is not forced to the disk was made.
    unforced_since: Option<Instant>,
    stop: bool,
    /// The thread has ended.
    is_dead: bool,
}

enum Work {
    Commits(Vec<Request>),
    Sync,
    Stop,
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Background")
    }
}

impl Background {
    pub(crate) fn new(fsync: Fsync, retention: Retention) -> Self {
        let interval = match fsync {
            Fsync::Interval(interval) => Some(interval),
            Fsync::EveryBatch | Fsync::Never => None,
        };
        Self { interval, trims: retention == Retention::Consumed, ..Self::default() }
    }

    pub(crate) fn commit(&self, request: Request) {
        let mut state = self.state.lock();
        if state.is_dead {
            // Its drop answers.
            return;
        }
        state.requests.push(request);
        drop(state);
        self.changed.notify_all();
    }

    /// Something was handed to the operating system that is to be forced to the disk in time.
    pub(crate) fn written(&self) {
        if self.interval.is_some() {
            let mut state = self.state.lock();
            if state.unforced_since.is_none() {
                state.unforced_since = Some(Instant::now());
                drop(state);
                self.changed.notify_all();
            }
        }
    }

    /// Waits until every commit handed over so far is answered.
    pub(crate) fn drain(&self) {
        let mut state = self.state.lock();
        while !state.is_dead && (state.writing || !state.requests.is_empty()) {
            self.changed.wait(&mut state);
        }
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// The thread. Ends after [`stop`](Self::stop), with everything written and forced to the disk.
    ///
    /// A panic here (the store's) stops the log like a failed write, and leaves nobody waiting.
    pub(crate) fn run(&self, core: &Core) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.work(core)));
        if ended.is_err() {
            core.stop(dead().context("a panic in the log's thread"));
        }
        let mut state = self.state.lock();
        state.is_dead = true;
        let unanswered = std::mem::take(&mut state.requests);
        drop(state);
        drop(unanswered);
        self.changed.notify_all();
    }

    fn work(&self, core: &Core) {
        loop {
            match self.next() {
                Work::Commits(requests) => {
                    let trim = self.trims.then(|| topics_of(&requests));
                    write_commits(core, requests);
                    self.state.lock().writing = false;
                    self.changed.notify_all();
                    self.written();
                    for topic in trim.into_iter().flatten() {
                        // What fails here stops the log, or is tried again after the next commit.
                        let _ = crate::retention::trim(core, &topic);
                    }
                }
                Work::Sync => drop(core.sync()),
                Work::Stop => {
                    drop(core.sync());
                    return;
                }
            }
        }
    }

    fn next(&self) -> Work {
        let mut state = self.state.lock();
        loop {
            let due = state.unforced_since.zip(self.interval).map(|(since, wait)| since + wait);
            if due.is_some_and(|due| due <= Instant::now()) {
                state.unforced_since = None;
                return Work::Sync;
            }
            if !state.requests.is_empty() {
                state.writing = true;
                return Work::Commits(std::mem::take(&mut state.requests));
            }
            if state.stop {
                return Work::Stop;
            }
            match due {
                Some(due) => drop(self.changed.wait_until(&mut state, due)),
                None => self.changed.wait(&mut state),
            }
        }
    }
}

fn topics_of(requests: &[Request]) -> Vec<Arc<Topic>> {
    let mut topics: Vec<_> = requests.iter().map(|request| Arc::clone(&request.topic)).collect();
    topics.sort_by_key(|topic| topic.number);
    topics.dedup_by_key(|topic| topic.number);
    topics
}

/// Writes the requests, those of a topic together, and answers each.
fn write_commits(core: &Core, mut requests: Vec<Request>) {
    // Stable: the commits of a queue stay in the order in which they were asked for.
    requests.sort_by_key(|request| request.topic.number);
    for these in requests.chunk_by_mut(|one, next| one.topic.number == next.topic.number) {
        let commits =
            these.iter().filter_map(|request| Some((&*request.group, request.commit.as_ref()?)));
        let result = core.write_commits(&these[0].topic, commits);
        these.iter_mut().for_each(|request| request.answer(result.clone()));
    }
}
