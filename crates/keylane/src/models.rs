//! Models of what threads share, for `loom`: the production code on a few threads, with one or two
//! messages, in every order of what they do to each other (up to a bound, where one is given).
//!
//! There is one [`Model`] a question. Each names the *transitions* without which it has to fail:
//! places in the engine that are marked `removed!`, and that are as if they were not there once
//! [`without`] was called. A model that does not fail then would have shown nothing.
//!
//! The locks and channels of the engine are stand-ins here (`sync/stand_in.rs`), time stands still,
//! and a wait ends only when somebody wakes: a wake-up that is lost is a loop without an end, on
//! which `loom` gives up.

use std::sync::atomic::{AtomicU64, Ordering};

mod consumer;
mod counts;
mod revoke;
mod source;

/// One question.
#[derive(Debug)]
pub struct Model {
    /// How it is called.
    pub name: &'static str,
    /// What holds in every order.
    pub what: &'static str,
    /// Without any of these it fails.
    pub transitions: &'static [&'static str],
    /// How often a thread may be interrupted where it could have gone on; `None`: in every way.
    pub preemptions: Option<usize>,
    run: fn(),
}

/// All of them.
pub const MODELS: [Model; 11] = [
    Model {
        name: "tracker",
        what: "the watermark passes no message whose listener's work is not seen",
        transitions: &["release a bit"],
        preemptions: None,
        run: counts::tracker,
    },
    Model {
        name: "budget",
        what: "what shards give back is noted, and counted whole",
        transitions: &["order the note"],
        preemptions: None,
        run: counts::budget,
    },
    Model {
        name: "gate",
        what: "a stop that has begun is never taken back by a pause",
        transitions: &["pause and go on only where it stands so"],
        preemptions: None,
        run: counts::gate,
    },
    Model {
        name: "room",
        what: "the router hears of room in a full channel",
        transitions: &["look at the room again"],
        preemptions: None,
        run: counts::room,
    },
    Model {
        name: "consume",
        what: "a source thread that waits for budget and a parked shard wake each other",
        transitions: &["look at the notes again", "wake for budget"],
        preemptions: Some(2),
        run: consumer::consume,
    },
    Model {
        name: "pool",
        what: "a message that comes while its queue's task ends is handled",
        transitions: &["look for work again"],
        preemptions: Some(2),
        run: consumer::pool,
    },
    Model {
        name: "stop",
        what: "a stop at any moment ends, and what was sent to a shard before it is handled",
        transitions: &["ring when the gate moves", "read the gate before the channel"],
        preemptions: Some(2),
        run: consumer::stop,
    },
    Model {
        name: "revoke",
        what: "no call runs or begins once its queue is released, and its end is heard of",
        transitions: &[
            "end a tenure before its calls are looked for",
            "a call asks for its tenure",
            "attend before the shards are looked at",
        ],
        preemptions: None,
        run: revoke::revoke,
    },
    Model {
        name: "pause",
        what: "once a paused consumer was seen to run nothing, nothing is called",
        transitions: &["read the gate under the mutex"],
        preemptions: None,
        run: revoke::pause,
    },
    Model {
        name: "ticket",
        what: "a ticket that another thread settles lets the message behind it go on",
        transitions: &["ring when a ticket is settled"],
        preemptions: None,
        run: revoke::ticket,
    },
    Model {
        name: "leave",
        what: "a queue is released once the ticket of its call is settled, which counts",
        transitions: &["tell of a settled ticket"],
        preemptions: None,
        run: revoke::leave,
    },
];

/// Takes a transition out of the engine, for the life of the process.
pub fn without(transition: &str) {
    crate::sync::remove(transition);
}

impl Model {
    /// Tries every order, and gives their number.
    ///
    /// # Panics
    ///
    /// Where the model does not hold; `loom` may end the process in place of it.
    pub fn check(&self) -> u64 {
        let orders = std::sync::Arc::new(AtomicU64::new(0));
        let (counted, run) = (std::sync::Arc::clone(&orders), self.run);
        let mut builder = loom::model::Builder::new();
        // `LOOM_MAX_PREEMPTIONS` goes before.
        builder.preemption_bound = builder.preemption_bound.or(self.preemptions);
        builder.max_branches = 20_000;
        builder.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            run();
        });
        orders.load(Ordering::Relaxed)
    }
}
