//! The first commit of a topic at a broker goes alone, and is read back. No thread, no clock, no
//! I/O.
//!
//! A broker makes the table of a group's offsets in a topic when the first of them comes. Of several
//! that come at the same time it may forget one that it has acknowledged, for each made a table and
//! the last table stays. So as long as the table is not known to be there, one commit is under way
//! and the others wait; and what was acknowledged counts once the broker gives it out again, as
//! another member's first commit may come at the same time.
//!
//! What is left: another member's table that takes the place of this one after the commit was read
//! back. The queue's next commit makes good for it (`docs/rocketmq-wire.md`, offsets).

use std::collections::{HashMap, VecDeque};

use keylane_source::{Commit, CommitTag, Position, QueueId};

/// A topic at a broker.
type Place = (&'static str, Option<&'static str>);

#[derive(Debug, Default)]
pub(crate) struct FirstCommits(HashMap<Place, First>);

#[derive(Debug)]
enum First {
    /// This commit is under way, those wait.
    Trying { queue: QueueId, tag: CommitTag, waiting: VecDeque<Commit> },
    /// The table is there.
    Stored,
}

fn place(queue: QueueId) -> Place {
    (queue.topic(), queue.broker())
}

impl FirstCommits {
    /// A commit is wanted; what is to be sent now.
    pub(crate) fn wanted(&mut self, commit: Commit) -> Option<Commit> {
        match self.0.get_mut(&place(commit.queue)) {
            Some(First::Stored) => Some(commit),
            Some(First::Trying { waiting, .. }) => {
                waiting.push_back(commit);
                None
            }
            None => Some(self.tries(commit, VecDeque::new())),
        }
    }

    fn tries(&mut self, commit: Commit, waiting: VecDeque<Commit>) -> Commit {
        let (queue, tag) = (commit.queue, commit.tag);
        self.0.insert(place(queue), First::Trying { queue, tag, waiting });
        commit
    }

    /// Whether this commit, if it was acknowledged, has to be read back.
    pub(crate) fn is_first(&self, commit: &Commit) -> bool {
        match self.0.get(&place(commit.queue)) {
            Some(First::Trying { queue, tag, .. }) => (*queue, *tag) == (commit.queue, commit.tag),
            _ => false,
        }
    }

    /// The first commit is stored, or it is not; what is to be sent now.
    pub(crate) fn answered(&mut self, queue: QueueId, is_stored: bool) -> Vec<Commit> {
        let Some(First::Trying { mut waiting, .. }) = self.0.remove(&place(queue)) else {
            return Vec::new();
        };
        if is_stored {
            self.0.insert(place(queue), First::Stored);
            return waiting.into();
        }
        let next = waiting.pop_front();
        next.map(|next| self.tries(next, waiting)).into_iter().collect()
    }

    /// A connection has ended: the broker may have forgotten everything.
    pub(crate) fn doubt(&mut self) {
        self.0.retain(|_, first| matches!(first, First::Trying { .. }));
    }
}

/// Whether the broker has forgotten a commit that it has acknowledged, by what it gives out now.
/// Brokers before 5.0 say 0 for none; another offset is somebody's will.
pub(crate) fn is_forgotten(commit: &Commit, found: Option<Position>) -> bool {
    match found {
        None => true,
        Some(found) => found == Position::ZERO && commit.watermark.get() > 0,
    }
}

#[cfg(test)]
mod tests {
    use keylane_source::Watermark;

    use super::*;

    fn commit(broker: &str, index: u32, tag: u64) -> Commit {
        let (queue, watermark) = (QueueId::on_broker("t", broker, index), Watermark::new(5));
        let (watermark, metadata) = (watermark.unwrap(), String::new());
        Commit { queue, watermark, metadata, tag: CommitTag(tag) }
    }

    fn tags(commits: impl IntoIterator<Item = Commit>) -> Vec<u64> {
        commits.into_iter().map(|commit| commit.tag.0).collect()
    }

    #[test]
    fn the_first_goes_alone_and_the_others_follow_once_it_is_stored() {
        let mut first = FirstCommits::default();
        assert_eq!(tags(first.wanted(commit("a", 0, 1))), [1]);
        assert!(first.wanted(commit("a", 1, 2)).is_none());
        assert!(first.wanted(commit("a", 2, 3)).is_none());
        assert_eq!(tags(first.wanted(commit("b", 0, 4))), [4], "of another broker");
        assert!(first.is_first(&commit("a", 0, 1)));
        assert!(!first.is_first(&commit("a", 0, 9)) && !first.is_first(&commit("a", 1, 2)));
        assert_eq!(tags(first.answered(commit("a", 0, 1).queue, true)), [2, 3]);
        assert!(!first.is_first(&commit("a", 1, 2)));
        assert_eq!(tags(first.wanted(commit("a", 0, 5))), [5]);
        assert_eq!(tags(first.wanted(commit("a", 1, 6))), [6]);
    }

    #[test]
    fn where_it_fails_the_next_one_is_the_first() {
        let mut first = FirstCommits::default();
        assert_eq!(tags(first.wanted(commit("a", 0, 1))), [1]);
        assert!(first.wanted(commit("a", 1, 2)).is_none());
        assert!(first.wanted(commit("a", 2, 3)).is_none());
        assert_eq!(tags(first.answered(commit("a", 0, 1).queue, false)), [2]);
        assert!(first.is_first(&commit("a", 1, 2)));
        assert_eq!(tags(first.answered(commit("a", 1, 2).queue, true)), [3]);
    }

    #[test]
    fn after_a_connection_has_ended_there_is_a_first_one_again() {
        let mut first = FirstCommits::default();
        first.wanted(commit("a", 0, 1));
        first.answered(commit("a", 0, 1).queue, true);
        assert_eq!(tags(first.wanted(commit("a", 0, 2))), [2]);
        first.doubt();
        assert!(!first.is_first(&commit("a", 0, 2)), "it was sent before");
        assert_eq!(tags(first.wanted(commit("a", 1, 3))), [3]);
        first.doubt();
        assert!(first.is_first(&commit("a", 1, 3)), "it is under way");
    }

    #[test]
    fn what_is_forgotten() {
        let at = |number| Some(Position::new(number).unwrap());
        assert!(is_forgotten(&commit("a", 0, 1), None));
        assert!(is_forgotten(&commit("a", 0, 1), at(0)));
        assert!(!is_forgotten(&commit("a", 0, 1), at(5)));
        assert!(!is_forgotten(&commit("a", 0, 1), at(3)), "an operator's will");
        let begin = Commit { watermark: Watermark::ZERO, ..commit("a", 0, 1) };
        assert!(is_forgotten(&begin, None) && !is_forgotten(&begin, at(0)));
    }
}
