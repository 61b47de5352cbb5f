//! The log's one thread: it writes commits, forces writes to the disk in intervals, and removes what
//! nobody needs. So no caller of a [`Source`](keylane_source::Source) waits for the disk.
//!
//! It sleeps while there is nothing to do. Commits that came while it was writing go together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::{Commit, SourceEvent};
use parking_lot::{Condvar, Mutex};

use crate::inbox::Inbox;
use crate::log::Core;
use crate::topic::Topic;
use crate::{Error, Fsync, Retention};

/// A source's wish to commit.
pub(crate) struct Request {
    pub(crate) topic: Arc<Topic>,
    pub(crate) group: Arc<str>,
    pub(crate) commit: Commit,
    pub(crate) reply: Arc<Inbox>,
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
        self.state.lock().requests.push(request);
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
        while state.writing || !state.requests.is_empty() {
            self.changed.wait(&mut state);
        }
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// The thread. Ends after [`stop`](Self::stop), with everything written and forced to the disk.
    pub(crate) fn run(&self, core: &Core) {
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
    let mut rest = &requests[..];
    while let Some(first) = rest.first() {
        let same = |request: &&Request| request.topic.number == first.topic.number;
        let (these, others) = rest.split_at(rest.iter().take_while(same).count());
        rest = others;
        let commits = these.iter().map(|request| (&*request.group, &request.commit));
        let result = core.write_commits(&first.topic, commits);
        for request in these {
            let result = result.clone().map_err(|error: Error| {
                let Commit { queue, watermark, .. } = request.commit;
                let doing = format!("commit {queue} at {watermark} for group {:?}", request.group);
                error.context(doing).to_source_error()
            });
            let commit = request.commit.clone();
            request.reply.result(SourceEvent::CommitResult { commit, result });
        }
    }
}
