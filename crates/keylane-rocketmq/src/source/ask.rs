//! What is sent to brokers; each answer comes back as an [`Incoming`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use keylane_source::{Commit, QueueId, SeekTo};

use super::group::Step;
use super::incoming::{Incoming, LookUp};
use super::locks::LockCall;
use super::queue::PullPlan;
use super::{Member, heartbeat};
use crate::Error;
use crate::client::Reply;
use crate::wire::{reply, request};

impl Member {
    pub(super) fn ask(&mut self, step: Step) {
        let outbox = self.outbox.clone();
        match step {
            Step::AskRoute { topic } => self.client.ask_route(&topic.clone(), move |answer| {
                let _ = outbox.send(Incoming::Route { topic, answer });
            }),
            Step::Heartbeat { address } => {
                let data = heartbeat(&self.client_id, &self.config.group, &self.subscriptions);
                let request = request::heartbeat(&data);
                self.client.ask(&address.clone(), request, reply::done, move |answer| {
                    let _ = outbox.send(Incoming::Heartbeat { address, answer });
                });
            }
            Step::AskMembers { topic, address } => {
                let request = request::members(&self.config.group);
                self.client.ask(&address.clone(), request, reply::members, move |answer| {
                    let _ = outbox.send(Incoming::Members { topic, address, answer });
                });
            }
            Step::AskSubscriptions { address } => {
                let request = request::connections(&self.config.group);
                self.client.ask(&address, request, reply::connections, move |answer| {
                    let _ = outbox.send(Incoming::Subscriptions { answer });
                });
            }
        }
    }

    /// What the group has committed.
    pub(super) fn ask_committed(&mut self, queue: QueueId, look_up: LookUp) {
        let outbox = self.outbox.clone();
        let group = self.config.group.clone();
        let report = move |answer: Result<_, Error>| {
            let doing = |error: Error| {
                error.doing(format_args!("look up what group {group} has committed of {queue}"))
            };
            let answer = answer.map_err(doing);
            let _ = outbox.send(Incoming::LookedUp { queue, look_up, answer });
        };
        let request = request::query_offset(&self.config.group, queue);
        match self.master_of(queue) {
            Ok(address) => self.client.ask(&address, request, reply::committed, report),
            Err(error) => report(Err(error)),
        }
    }

    pub(super) fn ask_seek(&mut self, queue: QueueId) {
        let (Some(known), Some(to)) = (self.queues.get(&queue), self.seeks.get(&queue)) else {
            return;
        };
        let (turn, to, outbox) = (known.turn(), *to, self.outbox.clone());
        let report = move |answer: Result<_, Error>| {
            let doing = |error: Error| error.doing(format_args!("seek {queue} to {to:?}"));
            let _ = outbox.send(Incoming::Sought { queue, turn, answer: answer.map_err(doing) });
        };
        let request = match to {
            SeekTo::Earliest => request::min_offset(queue),
            SeekTo::Latest => request::max_offset(queue),
            SeekTo::TimestampMs(timestamp_ms) => request::search_offset(queue, timestamp_ms),
            other => {
                let error = Error::configuration(format!("{other:?} is not known here"));
                return report(Err(error));
            }
        };
        match self.master_of(queue) {
            Ok(address) => self.client.ask(&address, request, reply::offset, report),
            Err(error) => report(Err(error)),
        }
    }

    pub(super) fn ask_pull(&mut self, queue: QueueId, plan: PullPlan, now: Instant) {
        let (outbox, turn) = (self.outbox.clone(), plan.turn);
        let report = move |answer| {
            let _ = outbox.send(match plan.is_check {
                false => Incoming::Pulled { queue, turn, sent: now, answer },
                true => Incoming::Checked { queue, turn, asked: plan.from, answer },
            });
        };
        let messages_max = if plan.is_check { 1 } else { self.config.pull_messages };
        let Some(reading) = self.readings.get(queue.topic()).cloned() else { return };
        let subscription = self.subscriptions.iter().find(|data| data.topic == queue.topic());
        let hold = if plan.hold { self.config.hold } else { Duration::ZERO };
        let request = request::pull(request::Pull {
            group: &self.config.group,
            queue,
            from: plan.from,
            messages_max: self.limits.messages.clamp(1, messages_max),
            bytes_max: self.limits.bytes.clamp(1, self.config.pull_bytes),
            hold_ms: u64::try_from(hold.as_millis()).unwrap_or(u64::MAX),
            expression: subscription.map_or("*", |data| &data.sub_string),
            subscription_version: subscription.map_or(0, |data| data.sub_version),
        });
        match self.master_of(queue) {
            Ok(address) => {
                let reply = Reply::new(move |answer| {
                    let read = |frame| reading.read(&frame, queue, plan.from, plan.gaps);
                    report(answer.and_then(read));
                });
                self.client.call(&address, request, hold + self.config.call_timeout, reply);
            }
            Err(error) => report(Err(error)),
        }
    }

    pub(super) fn ask_commit(&mut self, commit: Commit) {
        let (queue, watermark) = (commit.queue, commit.watermark);
        let outbox = self.outbox.clone();
        let report = move |answer: Result<(), Error>| {
            let doing = |error: Error| error.doing(format_args!("commit {queue} at {watermark}"));
            let _ = outbox.send(Incoming::Committed { commit, answer: answer.map_err(doing) });
        };
        let request = request::update_offset(&self.config.group, queue, watermark.to_i64());
        match self.master_of(queue) {
            Ok(address) => self.client.ask(&address, request, reply::done, report),
            Err(error) => report(Err(error)),
        }
    }

    /// Asks for what was committed just now.
    pub(super) fn ask_back(&mut self, commit: Commit) {
        let (queue, outbox) = (commit.queue, self.outbox.clone());
        let report = move |answer: Result<_, Error>| {
            let doing = |error: Error| error.doing(format_args!("read back a commit of {queue}"));
            let _ = outbox.send(Incoming::ReadBack { commit, answer: answer.map_err(doing) });
        };
        let request = request::query_offset(&self.config.group, queue);
        match self.master_of(queue) {
            Ok(address) => self.client.ask(&address, request, reply::committed, report),
            Err(error) => report(Err(error)),
        }
    }

    /// Carries out what the engine has asked of the locks, in its order.
    pub(super) fn run_lock_calls(&mut self) {
        for call in self.lock_calls.take() {
            match call {
                LockCall::Acquire(queues) => self.acquire(queues),
                LockCall::Release(queues) => {
                    queues.into_iter().for_each(|queue| self.locks.release(queue));
                }
            }
        }
        self.give_back_locks();
    }

    pub(super) fn acquire(&mut self, queues: Vec<QueueId>) {
        let mut by_broker: BTreeMap<String, Vec<QueueId>> = BTreeMap::new();
        let mut failed = Vec::new();
        for queue in queues {
            if !self.locks.asking(queue) {
                continue; // Asked for once it has been given back.
            }
            match self.master_of(queue) {
                Ok(address) => by_broker.entry(address).or_default().push(queue),
                Err(error) => failed.push((queue, error)),
            }
        }
        for (queue, error) in failed {
            let _ = self.outbox.send(Incoming::Locked { queues: vec![queue], answer: Err(error) });
        }
        for (address, queues) in by_broker {
            let request = request::lock(&self.config.group, &self.client_id, &queues);
            let outbox = self.outbox.clone();
            self.client.ask(&address, request, reply::locked, move |answer| {
                let _ = outbox.send(Incoming::Locked { queues, answer });
            });
        }
    }

    pub(super) fn give_back_locks(&mut self) {
        let committing = &self.committing;
        let queues = self.locks.take_returnable(|queue| committing.contains_key(&queue));
        let mut by_broker: BTreeMap<String, Vec<QueueId>> = BTreeMap::new();
        for queue in queues {
            match self.master_of(queue) {
                Ok(address) => by_broker.entry(address).or_default().push(queue),
                Err(error) => {
                    let (queues, answer) = (vec![queue], Err(error));
                    let _ = self.outbox.send(Incoming::Unlocked { queues, answer });
                }
            }
        }
        for (address, queues) in by_broker {
            let request = request::unlock(&self.config.group, &self.client_id, &queues);
            let outbox = self.outbox.clone();
            self.client.ask(&address, request, reply::done, move |answer| {
                let _ = outbox.send(Incoming::Unlocked { queues, answer });
            });
        }
    }

    pub(super) fn ask_unregister(&mut self, address: &str) {
        let request = request::unregister(&self.client_id, &self.config.group);
        let outbox = self.outbox.clone();
        self.client.ask(address, request, reply::done, move |answer| {
            let _ = outbox.send(Incoming::Unregistered { answer });
        });
    }

    fn master_of(&self, queue: QueueId) -> Result<String, Error> {
        self.group.master_of(queue).map(str::to_owned).ok_or_else(|| {
            let broker = queue.broker().unwrap_or_default();
            Error::unreachable(format!("broker {broker:?} has no master at present"))
        })
    }
}
