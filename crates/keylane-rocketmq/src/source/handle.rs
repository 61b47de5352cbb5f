//! What follows from what has arrived.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::Instant;

use keylane_source::{
    Commit, Committed, LockReply, Position, QueueId, SourceError, SourceEvent, Watermark,
};

use super::Member;
use super::first_commits::is_forgotten;
use super::group::Verdict;
use super::incoming::{Incoming, LookUp};
use super::queue::{Next, Queue, Turn};
use crate::Error;
use crate::wire::body::{Connections, MessageQueue};
use crate::wire::code::answer;
use crate::wire::request;

impl Member {
    pub(super) fn handle(&mut self, incoming: Incoming, now: Instant) {
        match incoming {
            Incoming::Woken => {}
            Incoming::Notified => self.group.notified(now),
            Incoming::Disconnected { address } => {
                self.group.disconnected(&address, now);
                self.first_commits.doubt();
            }
            Incoming::OffsetsMoved { offsets } => self.offsets_moved(offsets),
            Incoming::Route { topic, answer } => {
                let known = !self.queues.is_empty();
                match self.group.route_came(&topic, answer, now) {
                    Ok(()) => {}
                    Err(error) if known => log::warn!("{error}"),
                    Err(error) => self.errors.push_back(error.into()),
                }
            }
            Incoming::Heartbeat { address, answer } => self.heartbeat_came(&address, answer, now),
            Incoming::Members { topic, address, answer } => {
                self.look_for_a_twin(&answer);
                match self.group.members_came(&topic, &address, answer, now) {
                    Verdict::Allocated(queues) => self.allocated(&topic, queues),
                    Verdict::Expelled => self.expelled(&topic, &address),
                    Verdict::Unclear => {}
                }
            }
            Incoming::Subscriptions { answer } => self.subscriptions_came(answer),
            Incoming::LookedUp { queue, look_up, answer } => self.looked_up(queue, look_up, answer),
            Incoming::Sought { queue, turn, answer } => self.sought(queue, turn, answer, now),
            Incoming::Pulled { queue, turn, sent, answer } => {
                self.pulled(queue, turn, sent, answer, now);
            }
            Incoming::Checked { queue, turn, asked, answer } => {
                let known = self.queues.get_mut(&queue);
                self.events.extend(known.and_then(|known| known.checked(turn, asked, answer, now)));
            }
            Incoming::Committed { commit, answer } => self.committed(commit, answer),
            Incoming::ReadBack { commit, answer } => self.read_back(commit, answer),
            Incoming::Locked { queues, answer } => self.locked(queues, answer),
            Incoming::Unlocked { queues, answer } => self.unlocked(queues, answer),
            Incoming::Unregistered { .. } => {}
        }
    }

    fn heartbeat_came(&mut self, address: &str, answer: Result<(), Error>, now: Instant) {
        let heard = answer.is_ok();
        if let Err(error) = answer {
            let error = error.doing(format_args!("heartbeat to {address}"));
            if self.queues.is_empty() {
                self.errors.push_back(error.into());
            } else {
                log::warn!("{error}");
            }
        }
        if !self.group.heartbeat_came(address, heard, now) {
            return;
        }
        // The broker is there (again): whoever waited for it need not wait any longer.
        let ids: Vec<QueueId> = self.queues.keys().copied().collect();
        for id in ids.into_iter().filter(|id| self.group.master_of(*id) == Some(address)) {
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.retry_now(now);
                self.alarms.push(Reverse((now, id)));
            }
        }
    }

    /// A client id that is listed twice: another member has the same one, and some queues are read
    /// by both and others by nobody.
    fn look_for_a_twin(&mut self, members: &Result<Vec<String>, Error>) {
        let Ok(members) = members else { return };
        let twin = members.iter().filter(|id| **id == self.client_id).count() > 1;
        if twin && !self.twin {
            let error = format!(
                "group {}: another member has the client id {:?}, too. Each must have its own, or \
                 queues are read by both or by nobody",
                self.config.group, self.client_id
            );
            log::error!("{error}");
            self.errors.push_back(SourceError::retryable(error));
        }
        self.twin = twin;
    }

    /// The present allocation of a topic.
    fn allocated(&mut self, topic: &str, allocated: Vec<QueueId>) {
        let allocated: HashSet<QueueId> = allocated.into_iter().collect();
        self.given_up.retain(|id| id.topic() != topic || allocated.contains(id));
        let mut gone: Vec<QueueId> = self.queues_of(topic, |q| !q.is_revoking());
        gone.retain(|id| !allocated.contains(id));
        for id in gone {
            let turn = self.next_turn();
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            self.seeks.remove(&id);
            if queue.is_known() {
                self.events.push_back(queue.revoke(turn));
            } else {
                self.queues.remove(&id);
            }
        }
        self.allocated.insert(topic.to_owned(), allocated);
        self.take_allocated(topic);
    }

    /// Begins with the queues that are allocated and not there yet. One that is still being given
    /// back begins anew once the engine has released it.
    pub(super) fn take_allocated(&mut self, topic: &str) {
        let Some(allocated) = self.allocated.get(topic) else { return };
        let (queues, given_up) = (&self.queues, &self.given_up);
        let new = |id: &&QueueId| !queues.contains_key(*id) && !given_up.contains(*id);
        let mut new: Vec<QueueId> = allocated.iter().filter(new).copied().collect();
        new.sort();
        for id in new {
            let turn = self.next_turn();
            self.queues.insert(id, Queue::new(id, turn));
            self.ask_committed(id, LookUp::First(turn));
        }
    }

    /// The broker has given this member up, and the others have been told.
    fn expelled(&mut self, topic: &str, address: &str) {
        let lost = self.queues_of(topic, |_| true);
        if !lost.is_empty() {
            log::warn!("{address} does not list {} any more: {topic} is lost", self.client_id);
        }
        for id in lost {
            self.seeks.remove(&id);
            if self.queues.remove(&id).is_some_and(|queue| queue.is_known()) {
                self.events.push_back(SourceEvent::Lost { queue: id });
            }
        }
    }

    fn queues_of(&self, topic: &str, which: impl Fn(&Queue) -> bool) -> Vec<QueueId> {
        let of_topic = |queue: &&Queue| queue.id.topic() == topic && which(queue);
        let mut ids: Vec<QueueId> =
            self.queues.values().filter(of_topic).map(|queue| queue.id).collect();
        ids.sort();
        ids
    }

    /// Compares what this member reads with what the broker believes that the group reads.
    fn subscriptions_came(&mut self, answer: Result<Connections, Error>) {
        let connections = match answer {
            Ok(connections) => connections,
            Err(error) => return log::debug!("subscriptions of the group: {error}"),
        };
        let shown = |topic: &str, expression: &str| format!("{topic} {expression:?}");
        let mut own: Vec<String> =
            self.subscriptions.iter().map(|own| shown(&own.topic, &own.sub_string)).collect();
        let mut theirs: Vec<String> = connections
            .subscriptions
            .iter()
            .map(|(topic, data)| shown(topic, data.sub_string.trim()))
            .collect();
        own.sort();
        theirs.sort();
        if own == theirs {
            self.mismatch = None;
            return;
        }
        let mismatch = format!(
            "group {}: another member subscribes to {}; this one to {}. All must subscribe alike, \
             or some queues are read by nobody",
            self.config.group,
            theirs.join(", "),
            own.join(", "),
        );
        if self.mismatch.as_ref() != Some(&mismatch) {
            log::error!("{mismatch}");
            self.errors.push_back(SourceError::retryable(mismatch.clone()));
            self.mismatch = Some(mismatch);
        }
    }

    fn looked_up(
        &mut self,
        queue: QueueId,
        look_up: LookUp,
        answer: Result<Option<Position>, Error>,
    ) {
        let committed = match answer {
            Ok(Some(position)) => Committed::at(Watermark::from(position)),
            Ok(None) => Committed::None,
            Err(error) => Committed::Failed(error.into()),
        };
        let Some(known) = self.queues.get_mut(&queue) else { return };
        self.events.extend(match look_up {
            LookUp::First(turn) => known.assigned(turn, committed),
            LookUp::Again(turn) => known.looked_up(turn, committed),
        });
    }

    fn committed(&mut self, commit: Commit, answer: Result<(), Error>) {
        if !self.first_commits.is_first(&commit) {
            return self.report_commit(commit, answer.map_err(SourceError::from));
        }
        match answer {
            Ok(()) => self.ask_back(commit),
            Err(error) => self.first_commit_ended(commit, Err(error.into())),
        }
    }

    fn read_back(&mut self, commit: Commit, answer: Result<Option<Position>, Error>) {
        let result = match answer {
            Ok(found) if is_forgotten(&commit, found) => {
                let (queue, watermark) = (commit.queue, commit.watermark);
                let error = format!("commit {queue} at {watermark}: acknowledged, and not there");
                Err(SourceError::retryable(error))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        };
        self.first_commit_ended(commit, result);
    }

    fn first_commit_ended(&mut self, commit: Commit, result: Result<(), SourceError>) {
        for next in self.first_commits.answered(commit.queue, result.is_ok()) {
            self.ask_commit(next);
        }
        self.report_commit(commit, result);
    }

    fn report_commit(&mut self, commit: Commit, result: Result<(), SourceError>) {
        if let Some(count) = self.committing.get_mut(&commit.queue) {
            *count -= 1;
            if *count == 0 {
                self.committing.remove(&commit.queue);
            }
        }
        self.events.push_back(SourceEvent::CommitResult { commit, result });
    }

    fn sought(&mut self, id: QueueId, turn: Turn, answer: Result<Position, Error>, now: Instant) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let next = match answer {
            Ok(_) if queue.turn() != turn => Next::Stale,
            Ok(position) => {
                queue.read_from(turn, position);
                self.seeks.remove(&id);
                Next::Go
            }
            Err(error) => queue.seek_failed(turn, error.into(), now),
        };
        self.follow(id, next);
    }

    fn pulled(
        &mut self,
        id: QueueId,
        turn: Turn,
        sent: Instant,
        answer: Result<super::pull::Pulled, Error>,
        now: Instant,
    ) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let refused = answer.as_ref().err().and_then(Error::code);
        let next = queue.pulled(turn, answer, now.saturating_duration_since(sent), now);
        if let (Some(code), Next::Trouble(..)) = (refused, &next) {
            let address = self.group.master_of(id).map(str::to_owned);
            let forgotten = [
                answer::SUBSCRIPTION_NOT_EXIST,
                answer::SUBSCRIPTION_NOT_LATEST,
                answer::SUBSCRIPTION_GROUP_NOT_EXIST,
            ];
            match address {
                Some(address) if forgotten.contains(&code) => self.group.forgotten(&address, now),
                // The topic may have changed.
                _ => self.group.doubt_route(id.topic(), now),
            }
        }
        self.follow(id, next);
    }

    fn follow(&mut self, id: QueueId, next: Next) {
        match next {
            Next::Go => self.look_at(id),
            Next::At(at) => {
                self.alarms.push(Reverse((at, id)));
                self.look_at(id);
            }
            Next::Stop(event) => self.events.push_back(event),
            Next::Trouble(event, at) => {
                self.events.push_back(event);
                self.alarms.push(Reverse((at, id)));
            }
            Next::Stale => {}
        }
    }

    fn locked(&mut self, queues: Vec<QueueId>, answer: Result<Vec<MessageQueue>, Error>) {
        for queue in queues {
            let granted = match &answer {
                Ok(granted) => Ok(granted.contains(&MessageQueue::from(queue))),
                Err(error) => {
                    Err(SourceError::from(error.clone().doing(format_args!("lock {queue}"))))
                }
            };
            let reply: LockReply = self.locks.answered(queue, granted);
            self.events.push_back(SourceEvent::Lock { queue, reply });
        }
    }

    fn unlocked(&mut self, mut queues: Vec<QueueId>, answer: Result<(), Error>) {
        if let Err(error) = answer {
            log::warn!("unlock {queues:?}: {error}; the locks expire at the broker");
        }
        queues.retain(|queue| self.locks.returned(*queue));
        if !queues.is_empty() {
            self.acquire(queues);
        }
    }

    /// Brokers before 5.0 tell the members, and leave it to them to store the new offsets.
    fn offsets_moved(&mut self, offsets: Vec<(QueueId, Position)>) {
        for (id, to) in offsets {
            let turn = self.next_turn();
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            if let Some(event) = queue.moved(turn, to) {
                self.events.push_back(event);
                let request = request::update_offset(&self.config.group, id, to.to_i64());
                if let Some(address) = self.group.master_of(id) {
                    self.client.ask(address, request, crate::wire::reply::done, move |answer| {
                        if let Err(error) = answer {
                            log::warn!("store the moved offset {to} of {id}: {error}");
                        }
                    });
                }
            }
        }
    }
}
