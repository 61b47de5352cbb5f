//! Stands between the engine and its source: notes when messages were pulled, and, asked to break a
//! guarantee, commits too much.

use std::sync::Arc;
use std::time::Instant;

use keylane_source::{Commit, Source, SourceEvent, Watermark};
use keylane_testkit::tap::Tap;

use super::timeline::Timeline;

/// What it does to commits, the recorder below it sees.
pub(super) struct Pulls {
    pub(super) pulled: Arc<Timeline>,
    /// Whether the next commit is to pass a message that is not finished.
    pub(super) commits_too_much: bool,
}

impl Tap for Pulls {
    fn event(&mut self, event: &SourceEvent) {
        if let SourceEvent::Fetched(fetch) = event
            && let Some(first) = fetch.messages.first()
        {
            self.pulled.note(fetch.queue, first.offset(), Instant::now());
        }
    }

    fn commit(&mut self, source: &mut dyn Source, mut commit: Commit) {
        if std::mem::take(&mut self.commits_too_much) {
            let passed = Watermark::new(commit.watermark.get() + 1);
            commit.watermark = passed.unwrap_or(commit.watermark);
        }
        source.commit(commit);
    }
}
