//! Membership: which brokers have to hear of this member, who the others are, and which queues
//! follow from that. No thread, no clock, no I/O: it says what is to be asked, and is told the
//! answers.
//!
//! Invariants:
//!
//! 1. A topic's queues are allocated only from a route and a list of members that were both
//!    received; what fails changes nothing.
//! 2. A member list without this member in it is not acted upon before the broker has been told
//!    again that this member lives, and has been asked again.
//! 3. A notification that comes while the answer to a question is under way is not lost: the
//!    question is asked again.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keylane_source::QueueId;

use crate::allocate::averagely;
use crate::client::Route;
use crate::{Config, Error};

/// After a failure: this long, then twice as long, and so on up to the longest.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_LONGEST: Duration = Duration::from_secs(5);

/// Something to be asked or told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    AskRoute { topic: String },
    Heartbeat { address: String },
    AskMembers { topic: String, address: String },
    AskSubscriptions { address: String },
}

/// What a list of members means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// These queues of the topic are this member's.
    Allocated(Vec<QueueId>),
    /// The broker has given this member up: the others have its queues.
    Expelled,
    /// Nothing yet.
    Unclear,
}

pub(crate) struct Group {
    own: String,
    topics: BTreeMap<String, Topic>,
    brokers: BTreeMap<String, Broker>,
    heartbeat_every: Duration,
    rebalance_every: Duration,
    route_every: Duration,
}

struct Topic {
    /// The group's own retry topic: a broker creates it when it first hears of the group.
    is_retry: bool,
    route: Option<Arc<Route>>,
    route_due: Timer,
    members_due: Timer,
    /// Counts questions, to ask another broker each time.
    turn: usize,
    /// This member was missing in the last list.
    missing: bool,
}

struct Broker {
    due: Timer,
    /// It knows of this member.
    joined: bool,
}

/// When something is due next. While the answer is under way, nothing is.
#[derive(Debug, Default)]
struct Timer {
    at: Option<Instant>,
    waiting: bool,
    failures: u32,
}

impl Timer {
    fn at(at: Instant) -> Self {
        Self { at: Some(at), ..Self::default() }
    }

    /// Takes the turn if it is due; the next one is after `every`.
    fn take(&mut self, now: Instant, every: Duration) -> bool {
        if self.waiting || self.at.is_none_or(|at| at > now) {
            return false;
        }
        (self.waiting, self.at) = (true, Some(now + every));
        true
    }

    /// Not later than `at`.
    fn pull_in(&mut self, at: Instant) {
        self.at = Some(self.at.map_or(at, |known| known.min(at)));
    }

    fn succeeded(&mut self) {
        (self.waiting, self.failures) = (false, 0);
    }

    fn failed(&mut self, now: Instant) {
        let wait = RETRY_FIRST * 2u32.saturating_pow(self.failures.min(10));
        self.waiting = false;
        self.failures += 1;
        self.pull_in(now + wait.min(RETRY_LONGEST));
    }

    fn next(&self) -> Option<Instant> {
        if self.waiting { None } else { self.at }
    }
}

impl Topic {
    /// The brokers of this topic that know of this member.
    fn joined(&self, brokers: &BTreeMap<String, Broker>) -> Vec<String> {
        let masters = self.route.iter().flat_map(|route| route.masters());
        let joined = masters.filter(|(_, address)| brokers.get(*address).is_some_and(|b| b.joined));
        joined.map(|(_, address)| address.to_owned()).collect()
    }
}

impl Group {
    pub(crate) fn new(config: &Config, own: String, now: Instant) -> Self {
        let topic = |is_retry| Topic {
            is_retry,
            route: None,
            route_due: Timer::at(now),
            members_due: Timer::default(),
            turn: 0,
            missing: false,
        };
        let subscribed = config.subscriptions.iter().map(|(name, _)| (name.clone(), topic(false)));
        let retry = config.retries.then(|| (config.retry_topic(), topic(true)));
        Self {
            own,
            topics: subscribed.chain(retry).collect(),
            brokers: BTreeMap::new(),
            heartbeat_every: config.heartbeat_every,
            rebalance_every: config.rebalance_every,
            route_every: config.route_every,
        }
    }

    /// What is due.
    pub(crate) fn steps(&mut self, now: Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        for (name, topic) in &mut self.topics {
            if topic.route_due.take(now, self.route_every) {
                steps.push(Step::AskRoute { topic: name.clone() });
            }
        }
        for (address, broker) in &mut self.brokers {
            if broker.due.take(now, self.heartbeat_every) {
                steps.push(Step::Heartbeat { address: address.clone() });
            }
        }
        let mut asked = HashSet::new();
        for (name, topic) in &mut self.topics {
            let joined = topic.joined(&self.brokers);
            if joined.is_empty() || !topic.members_due.take(now, self.rebalance_every) {
                continue;
            }
            let address = joined[topic.turn % joined.len()].clone();
            topic.turn = topic.turn.wrapping_add(1);
            if asked.insert(address.clone()) {
                steps.push(Step::AskSubscriptions { address: address.clone() });
            }
            steps.push(Step::AskMembers { topic: name.clone(), address });
        }
        steps
    }

    /// When something will be due without anything happening.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let topics = self.topics.values().flat_map(|topic| {
            // Without a broker to ask the time may pass.
            let can_ask = !topic.joined(&self.brokers).is_empty();
            [topic.route_due.next(), topic.members_due.next().filter(|_| can_ask)]
        });
        let brokers = self.brokers.values().map(|broker| broker.due.next());
        topics.chain(brokers).flatten().min()
    }

    /// Where the broker of this queue is.
    pub(crate) fn master_of(&self, queue: QueueId) -> Option<&str> {
        let route = self.topics.get(queue.topic())?.route.as_ref()?;
        route.master(queue.broker()?)
    }

    /// The brokers that know of this member, or may do so.
    pub(crate) fn brokers(&self) -> impl Iterator<Item = &str> {
        self.brokers.keys().map(String::as_str)
    }

    /// A route came; `Err`: what is to be reported. A topic that nobody knows keeps the route that
    /// it had.
    pub(crate) fn route_came(
        &mut self,
        name: &str,
        answer: Result<Option<Route>, Error>,
        now: Instant,
    ) -> Result<(), Error> {
        let Some(topic) = self.topics.get_mut(name) else { return Ok(()) };
        let route = match answer {
            Ok(Some(route)) => route,
            Ok(None) => {
                topic.route_due.failed(now);
                if topic.is_retry {
                    return Ok(());
                }
                return Err(Error::unreachable(format!("no name server knows topic {name}")));
            }
            Err(error) => {
                topic.route_due.failed(now);
                return Err(error);
            }
        };
        topic.route_due.succeeded();
        for (_, address) in route.masters() {
            self.brokers
                .entry(address.to_owned())
                .or_insert_with(|| Broker { due: Timer::at(now), joined: false });
        }
        if topic.route.as_deref() != Some(&route) {
            topic.route = Some(Arc::new(route));
            topic.members_due.pull_in(now);
            self.forget_brokers();
        }
        Ok(())
    }

    /// Brokers that no route names any more are not told anything any more.
    fn forget_brokers(&mut self) {
        let routes = self.topics.values().filter_map(|topic| topic.route.as_deref());
        let named: HashSet<&str> = routes.flat_map(|r| r.masters().map(|(_, a)| a)).collect();
        self.brokers.retain(|address, _| named.contains(&address[..]));
    }

    /// A heartbeat was answered; `true`: the broker did not know of this member before.
    pub(crate) fn heartbeat_came(&mut self, address: &str, heard: bool, now: Instant) -> bool {
        let Some(broker) = self.brokers.get_mut(address) else { return false };
        if !heard {
            broker.joined = false;
            broker.due.failed(now);
            return false;
        }
        broker.due.succeeded();
        if std::mem::replace(&mut broker.joined, true) {
            return false;
        }
        for topic in self.topics.values_mut() {
            match &topic.route {
                Some(route) if route.masters().any(|(_, master)| master == address) => {
                    topic.members_due.pull_in(now);
                }
                // It is being created just now.
                None if topic.is_retry => topic.route_due.pull_in(now),
                _ => {}
            }
        }
        true
    }

    /// The connection to a broker is lost, and with it the membership there.
    pub(crate) fn disconnected(&mut self, address: &str, now: Instant) {
        if let Some(broker) = self.brokers.get_mut(address)
            && std::mem::replace(&mut broker.joined, false)
        {
            broker.due.pull_in(now);
        }
    }

    /// A broker does not know of this member, or not of what it reads: it is told again.
    pub(crate) fn forgotten(&mut self, address: &str, now: Instant) {
        self.disconnected(address, now);
    }

    /// A broker refuses what the route promises.
    pub(crate) fn doubt_route(&mut self, topic: &str, now: Instant) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.route_due.pull_in(now);
        }
    }

    /// The members have changed.
    pub(crate) fn notified(&mut self, now: Instant) {
        for topic in self.topics.values_mut() {
            topic.members_due.pull_in(now);
        }
    }

    /// A list of members came.
    pub(crate) fn members_came(
        &mut self,
        name: &str,
        address: &str,
        answer: Result<Vec<String>, Error>,
        now: Instant,
    ) -> Verdict {
        let Some(topic) = self.topics.get_mut(name) else { return Verdict::Unclear };
        let (members, route) = match (answer, &topic.route) {
            (Ok(members), Some(route)) => (members, route),
            (answer, _) => {
                if let Err(error) = answer {
                    log::warn!("members of the group for topic {name}, at {address}: {error}");
                }
                topic.members_due.failed(now);
                return Verdict::Unclear;
            }
        };
        if !members.contains(&self.own) {
            let again = std::mem::replace(&mut topic.missing, true);
            topic.members_due.failed(now);
            self.forgotten(address, now);
            return if again { Verdict::Expelled } else { Verdict::Unclear };
        }
        topic.missing = false;
        topic.members_due.succeeded();
        let members = members.iter().map(String::as_str).collect();
        Verdict::Allocated(averagely(route.readable().to_vec(), members, &self.own))
    }
}

#[cfg(test)]
mod tests;
