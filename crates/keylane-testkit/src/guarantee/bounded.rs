//! G5: what was read and is not finished stays within a limit.
//!
//! Counted are messages that a fetch brought and that are not finished in their epoch: what the
//! engine has admitted, and what waits in its stash. The right limit is therefore the budget plus
//! one fetch for each queue. Bytes are not checked: an event has no sizes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use roaring::RoaringTreemap;

use super::event::{Event, Settled};
use super::tenure::{PerQueue, follow};
use super::violation::{Findings, Violation};
use super::{Guarantee, Moment};

/// The name in violations.
pub const NAME: &str = "bounded";

/// The checker of G5. Several of them, each for some of the queues, share one [`Gauge`].
#[derive(Debug)]
pub struct Bounded {
    queues: PerQueue<State>,
    gauge: Arc<Gauge>,
    limit: Option<u64>,
    findings: Findings,
}

/// How many messages are in flight, and the most that ever were.
#[derive(Debug, Default)]
pub struct Gauge {
    now: AtomicI64,
    most: AtomicI64,
}

#[derive(Debug, Default)]
struct State {
    open: RoaringTreemap,
    read_to: u64,
}

impl Gauge {
    /// The most messages that were in flight at any time.
    pub fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed).unsigned_abs()
    }

    fn add(&self, messages: u64) -> u64 {
        let messages = i64::try_from(messages).unwrap_or(i64::MAX);
        let now = self.now.fetch_add(messages, Ordering::Relaxed) + messages;
        self.most.fetch_max(now, Ordering::Relaxed);
        u64::try_from(now).unwrap_or(0)
    }

    fn remove(&self, messages: u64) {
        self.now.fetch_sub(i64::try_from(messages).unwrap_or(i64::MAX), Ordering::Relaxed);
    }
}

impl Default for Bounded {
    fn default() -> Self {
        Self::new(None, Arc::default())
    }
}

impl Bounded {
    /// A checker of this limit; `None`: it only measures.
    pub fn new(limit: Option<u64>, gauge: Arc<Gauge>) -> Self {
        Self { queues: PerQueue::default(), gauge, limit, findings: Findings::new(NAME) }
    }

    /// The most messages that were in flight at any time.
    pub fn most(&self) -> u64 {
        self.gauge.most()
    }
}

impl Guarantee for Bounded {
    fn name(&self) -> &'static str {
        NAME
    }

    fn observe(&mut self, event: &Event<'_>) {
        follow(&mut self.queues, event);
        match event {
            Event::Fetched { queue, epoch, messages, position } => {
                let known = self.queues.entry(*queue).or_default();
                if !known.is_current(*epoch) {
                    return;
                }
                let State { open, read_to } = &mut known.state;
                let new = messages.iter().map(|m| m.offset().get()).filter(|o| o >= read_to);
                let added = new.filter(|offset| open.insert(*offset)).count() as u64;
                *read_to = (*read_to).max(position.get());
                let now = self.gauge.add(added);
                if let Some(limit) = self.limit.filter(|limit| now > *limit && added > 0) {
                    self.findings.add(|| {
                        let happened = format!("{now} messages are in flight after a fetch");
                        Violation::new(happened, format!("{limit}")).at(*queue, position.get())
                    });
                }
            }
            Event::Settled(settled) => self.settle(settled),
            // An epoch that is over or begins has nothing in flight.
            Event::Assigned { queue, .. }
            | Event::Revoked { queue, .. }
            | Event::Lost { queue, .. }
            | Event::Reset { queue, .. } => {
                if let Some(known) = self.queues.get_mut(queue) {
                    self.gauge.remove(known.state.open.len());
                    known.state = State::default();
                }
            }
            Event::Crashed { .. } | Event::Stopped { .. } => {
                for known in self.queues.values_mut().filter(|known| known.ended().is_some()) {
                    self.gauge.remove(known.state.open.len());
                    known.state = State::default();
                }
            }
            _ => {}
        }
    }

    fn verify(&self, _moment: Moment) -> Findings {
        self.findings.clone()
    }
}

impl Bounded {
    fn settle(&mut self, settled: &Settled<'_>) {
        let known = self.queues.entry(settled.queue).or_default();
        let counts = settled.outcome.finishes() && known.is_current(settled.epoch);
        if counts && known.state.open.remove(settled.offset.get()) {
            self.gauge.remove(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::History;
    use super::*;

    fn most_and_broken(history: &str, limit: u64) -> (u64, u64) {
        let mut checker = Bounded::new(Some(limit), Arc::default());
        History::parse(history).feed(|event| checker.observe(event));
        (checker.most(), checker.verify(Moment::Running).count)
    }

    #[test]
    fn what_is_read_and_not_finished_is_in_flight() {
        assert_eq!(most_and_broken("E0 q0-4 d0 s0 d1 s1 q4-6", 4), (4, 0));
        assert_eq!(most_and_broken("E0 q0-4 d0 s0 d1 f1 q4-6", 4), (5, 1));
        assert_eq!(most_and_broken("E0 q0-4 d0 h0 q4-5", 4), (5, 1), "held ones are in flight");
        assert_eq!(most_and_broken("E0 q0-4 q2-4", 4), (4, 0), "an overlap is not counted twice");
        assert_eq!(most_and_broken("E0 q0-4 d0 s0 d0 s0 q4-6", 4), (5, 1), "finished only once");
    }

    #[test]
    fn an_epoch_takes_its_messages_with_it() {
        for end in ["V", "L", "Z", "X", "S"] {
            assert_eq!(most_and_broken(&format!("E0 q0-4 {end} E0 q0-4"), 4), (4, 0), "{end}");
        }
        assert_eq!(most_and_broken("E0 q0-4 d0 V E0 q0-4 s0 q4-5", 4), (5, 1), "late: ignored");
    }
}
