//! The calls that wait for an answer on one connection. No thread, no clock.
//!
//! A call leaves the table exactly once, by its answer, its deadline or the connection's end; who
//! takes it out is who reports, so that each call is reported once.

use std::collections::HashMap;
use std::time::Instant;

use crate::Error;
use crate::wire::Frame;

type Outcome = Result<Frame, Error>;

/// What is done with the outcome of a call, exactly once: dropped unused, it reports that the
/// client is closed. Must not wait.
pub(crate) struct Reply(Option<Box<dyn FnOnce(Outcome) + Send>>);

impl Reply {
    pub(crate) fn new(report: impl FnOnce(Outcome) + Send + 'static) -> Self {
        Self(Some(Box::new(report)))
    }

    pub(crate) fn give(mut self, outcome: Outcome) {
        if let Some(report) = self.0.take() {
            report(outcome);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(report) = self.0.take() {
            report(Err(Error::closed()));
        }
    }
}

pub(crate) struct Call {
    pub(crate) sent: Instant,
    pub(crate) deadline: Instant,
    pub(crate) reply: Reply,
}

/// Which of a link's connections: they are counted, so that the end of an old one is not taken for
/// the end of the present one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionId(u64);

pub(crate) struct Calls {
    /// The connection in use, if there is one.
    connection: Option<ConnectionId>,
    connections: u64,
    waiting: HashMap<i32, Call>,
    next_opaque: i32,
    /// Not later than the earliest deadline: answers do not move it, the next look does.
    look_at: Option<Instant>,
    /// When something arrived last.
    heard: Option<Instant>,
}

impl Calls {
    pub(crate) fn new() -> Self {
        Self {
            connection: None,
            connections: 0,
            waiting: HashMap::new(),
            next_opaque: 0,
            look_at: None,
            heard: None,
        }
    }

    pub(crate) fn connected(&mut self) -> ConnectionId {
        self.connections += 1;
        self.connection = Some(ConnectionId(self.connections));
        self.heard = None;
        ConnectionId(self.connections)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// The connection is gone: gives out what waited for it. `None` if it was not the present one.
    pub(crate) fn disconnected(&mut self, connection: ConnectionId) -> Option<Vec<Call>> {
        if self.connection != Some(connection) {
            return None;
        }
        self.connection = None;
        self.look_at = None;
        Some(self.waiting.drain().map(|(_, call)| call).collect())
    }

    /// The number for a new request, not in use by another one.
    pub(crate) fn number(&mut self) -> i32 {
        loop {
            self.next_opaque = self.next_opaque.wrapping_add(1);
            if !self.waiting.contains_key(&self.next_opaque) {
                return self.next_opaque;
            }
        }
    }

    /// A call waits from now on; back if the connection is gone meanwhile.
    pub(crate) fn register(&mut self, opaque: i32, call: Call) -> Result<(), Call> {
        if self.connection.is_none() {
            return Err(call);
        }
        let deadline = call.deadline;
        self.look_at = Some(self.look_at.map_or(deadline, |at| at.min(deadline)));
        self.waiting.insert(opaque, call);
        Ok(())
    }

    /// An answer came. `None`: nobody waits for it, it is too late.
    pub(crate) fn answered(&mut self, opaque: i32, now: Instant) -> Option<Call> {
        self.heard = Some(now);
        self.waiting.remove(&opaque)
    }

    /// Something came that is no answer.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = Some(now);
    }

    /// When to look for calls whose time is up.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// The calls whose time is up, and whether the connection seems dead: nothing at all has
    /// arrived since one of them was sent.
    pub(crate) fn expire(&mut self, now: Instant) -> (Vec<Call>, bool) {
        if self.look_at.is_none_or(|at| now < at) {
            return (Vec::new(), false);
        }
        let late = |call: &Call| call.deadline <= now;
        let expired: Vec<Call> =
            self.waiting.extract_if(|_, call| late(call)).map(|(_, call)| call).collect();
        self.look_at = self.waiting.values().map(|call| call.deadline).min();
        let silent = expired.iter().any(|call| self.heard.is_none_or(|heard| heard < call.sent));
        (expired, silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn call(sent: Instant, seconds: u64) -> Call {
        let deadline = sent + Duration::from_secs(seconds);
        Call { sent, deadline, reply: Reply::new(|_| {}) }
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    fn register(calls: &mut Calls, call: Call) -> i32 {
        let opaque = calls.number();
        assert!(calls.register(opaque, call).is_ok());
        opaque
    }

    #[test]
    fn a_call_leaves_once() {
        let start = Instant::now();
        let mut calls = Calls::new();
        let connection = calls.connected();
        let (first, second) =
            (register(&mut calls, call(start, 1)), register(&mut calls, call(start, 1)));
        assert_ne!(first, second);
        assert!(calls.answered(first, start).is_some());
        assert!(calls.answered(first, start).is_none());
        assert_eq!(calls.expire(at(start, 1)).0.len(), 1);
        assert!(calls.answered(second, start).is_none());
        assert_eq!(calls.disconnected(connection).map(|left| left.len()), Some(0));
    }

    #[test]
    fn without_a_connection_a_call_comes_back() {
        let mut calls = Calls::new();
        assert!(calls.register(1, call(Instant::now(), 1)).is_err());
    }

    #[test]
    fn the_end_of_an_old_connection_is_not_the_end_of_the_new_one() {
        let mut calls = Calls::new();
        let old = calls.connected();
        assert!(calls.disconnected(old).is_some());
        let new = calls.connected();
        register(&mut calls, call(Instant::now(), 1));
        assert!(calls.disconnected(old).is_none());
        assert!(calls.is_connected());
        assert_eq!(calls.disconnected(new).map(|left| left.len()), Some(1));
    }

    #[test]
    fn deadlines_are_looked_at_in_time_and_not_before() {
        let start = Instant::now();
        let mut calls = Calls::new();
        calls.connected();
        register(&mut calls, call(start, 30));
        let early = register(&mut calls, call(start, 5));
        assert_eq!(calls.look_at(), Some(at(start, 5)));
        assert!(calls.expire(at(start, 4)).0.is_empty());
        calls.answered(early, start);
        assert_eq!(calls.look_at(), Some(at(start, 5)), "an answer does not search");
        assert!(calls.expire(at(start, 5)).0.is_empty());
        assert_eq!(calls.look_at(), Some(at(start, 30)));
        assert_eq!(calls.expire(at(start, 30)).0.len(), 1);
        assert_eq!(calls.look_at(), None);
    }

    #[test]
    fn a_connection_is_dead_when_nothing_came_since_the_call() {
        let start = Instant::now();
        let mut calls = Calls::new();
        calls.connected();
        register(&mut calls, call(start, 1));
        assert!(calls.expire(at(start, 1)).1, "nothing ever came");
        calls.heard(at(start, 1));
        register(&mut calls, call(at(start, 2), 1));
        assert!(calls.expire(at(start, 3)).1, "the last thing came before the call");
        register(&mut calls, call(at(start, 4), 1));
        calls.heard(at(start, 4));
        let (expired, silent) = calls.expire(at(start, 5));
        assert_eq!((expired.len(), silent), (1, false), "slow, not dead");
    }
}
