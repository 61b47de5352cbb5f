//! Listeners of all kinds: their state, their hooks, and what a panic does to both.

use keylane::{
    Batch, BatchHandled, BatchListener, BatchOutcome, Context, Event, Handled, Listener, Message,
    Outcome, QueueId, listen,
};

use crate::support::{Log, Rig, SECOND, by_number, eventually, q};

/// What an instance has lived through: its shard, its number among all, and what happened.
type Lives = Log<(usize, usize, String)>;

struct Instance {
    shard: usize,
    number: usize,
    handled: usize,
    lives: Lives,
    panics_at: &'static str,
}

impl Instance {
    fn new(shard: usize, lives: &Lives, panics_at: &'static str) -> Self {
        let number = lives.count(|(_, _, what)| what == "made");
        lives.push((shard, number, "made".to_owned()));
        Self { shard, number, handled: 0, lives: lives.clone(), panics_at }
    }

    fn lived(&self, what: &str) {
        self.lives.push((self.shard, self.number, what.to_owned()));
        if what == self.panics_at && self.number < 2 {
            std::panic::resume_unwind(Box::new("as planned"));
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.lived(&format!("dropped after {}", self.handled));
    }
}

impl Listener for Instance {
    fn on_message(&mut self, message: &Message, _: &mut Context<'_>) -> Handled {
        if message.key() == Some(b"panic") && self.number == 0 {
            std::panic::resume_unwind(Box::new("as planned"));
        }
        self.handled += 1;
        Ok(Outcome::Done)
    }
    fn on_revoked(&mut self, queue: QueueId) {
        self.lived(&format!("revoked {queue}"));
    }
    fn on_stop(&mut self) {
        self.lived("stopped");
    }
}

impl BatchListener for Instance {
    fn on_batch(&mut self, batch: &Batch<'_>) -> BatchHandled {
        self.handled += batch.len();
        Ok(BatchOutcome::Done)
    }
    fn on_revoked(&mut self, queue: QueueId) {
        self.lived(&format!("revoked {queue}"));
    }
    fn on_stop(&mut self) {
        self.lived("stopped");
    }
}

fn words(lives: &Lives, shard: usize) -> Vec<String> {
    let of_shard = lives.all().into_iter().filter(|(at, ..)| *at == shard);
    of_shard.map(|(_, number, what)| format!("{number} {what}")).collect()
}

#[test]
fn one_instance_per_shard_keeps_its_state_and_is_told_of_the_end() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), (0..10).map(|_| "0"));
    let lives = Lives::default();
    let listener = listen::per_shard({
        let lives = lives.clone();
        move |shard| Instance::new(shard, &lives, "")
    });
    let consumer = rig.builder().shards(1).start(listener).unwrap();
    rig.wait_for_commit(q(0), 10);
    consumer.stop(SECOND).unwrap();
    eventually("its thread ends", || lives.len() == 3);
    assert_eq!(words(&lives, 0), ["0 made", "0 stopped", "0 dropped after 10"]);
}

#[test]
fn one_batch_instance_per_shard_is_told_of_revoked_queues_and_of_the_end() {
    let rig = Rig::with_queues(2);
    rig.produce_all(q(0), (0..10).map(|_| "0"));
    let lives = Lives::default();
    let listener = listen::per_shard_batches({
        let lives = lives.clone();
        move |shard| Instance::new(shard, &lives, "")
    });
    let consumer = rig.builder().shards(1).start(listener).unwrap();
    rig.wait_for_commit(q(0), 10);
    rig.script.begin_revoke(q(0));
    lives.wait_for_len(2);
    rig.produce(q(1), "0");
    rig.wait_for_commit(q(1), 1);
    consumer.stop(SECOND).unwrap();
    eventually("its thread ends", || lives.len() == 4);
    let expected = ["0 made", "0 revoked it/0", "0 stopped", "0 dropped after 11"];
    assert_eq!(words(&lives, 0), expected);
}

#[test]
fn every_shard_is_told_of_a_queue_that_ended_before_it_comes_again() {
    let rig = Rig::with_queues(1);
    let lives = Lives::default();
    let listener = listen::per_shard({
        let lives = lives.clone();
        move |shard| Instance::new(shard, &lives, "")
    });
    let consumer = rig.builder().shards(3).hasher(by_number).start(listener).unwrap();
    rig.produce_all(q(0), ["0", "1", "2"]);
    rig.wait_for_commit(q(0), 3);
    rig.script.lose(q(0));
    rig.events.wait_for("the loss", |event| matches!(event, Event::Lost { .. }));
    rig.script.assign(q(0));
    rig.produce_all(q(0), ["0", "1", "2"]);
    rig.wait_for_commit(q(0), 6);
    let told = lives.count(|(_, _, what)| what == "revoked it/0");
    assert_eq!(told, 3, "{:?}", lives.all());
    consumer.stop(SECOND).unwrap();
}

#[test]
fn after_a_panic_the_instance_is_dropped_and_made_anew() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["a", "a", "panic", "a", "a"]);
    let lives = Lives::default();
    let listener = listen::per_shard({
        let lives = lives.clone();
        move |shard| Instance::new(shard, &lives, "")
    });
    let consumer = rig.builder().shards(1).start(listener).unwrap();
    rig.wait_for_commit(q(0), 5);
    assert_eq!(consumer.metrics().panicked, 1);
    consumer.stop(SECOND).unwrap();
    eventually("its thread ends", || lives.len() == 5);
    let expected = ["0 made", "0 dropped after 2", "1 made", "1 stopped", "1 dropped after 3"];
    assert_eq!(words(&lives, 0), expected);
}

#[test]
fn hooks_and_drops_may_panic_and_are_reported() {
    for (panics_at, what) in [
        ("revoked it/0", "on_revoked panicked: as planned"),
        ("stopped", "on_stop panicked: as planned"),
        ("dropped after 0", "dropping the listener panicked: as planned"),
    ] {
        let rig = Rig::with_queues(2);
        let lives = Lives::default();
        let listener = listen::per_shard({
            let lives = lives.clone();
            move |shard| Instance::new(shard, &lives, panics_at)
        });
        let consumer = rig.builder().shards(1).start(listener).unwrap();
        rig.produce(q(0), "panic");
        rig.wait_for_commit(q(0), 1);
        rig.script.begin_revoke(q(0));
        rig.script.wait_for("the release", |state| state.is_released(q(0)));
        rig.produce(q(1), "a");
        rig.wait_for_commit(q(1), 1);
        consumer.stop(SECOND).unwrap();
        let event = rig.events.wait_for("it", |event| matches!(event, Event::HookPanicked { .. }));
        assert_eq!(event.to_string(), what);
    }
}

#[test]
fn a_factory_that_panics_fails_the_messages_until_it_does_not() {
    let rig = Rig::with_queues(1);
    rig.produce_all(q(0), ["a", "b"]);
    let made = Log::default();
    let lives = Lives::default();
    let listener = listen::per_shard({
        let (made, lives) = (made.clone(), lives.clone());
        move |shard| {
            made.push(shard);
            if made.len() < 4 {
                std::panic::resume_unwind(Box::new("no connection"));
            }
            Instance::new(shard, &lives, "")
        }
    });
    let consumer = rig.builder().shards(1).start(listener).unwrap();
    rig.wait_for_commit(q(0), 2);
    consumer.stop(SECOND).unwrap();
    let event = rig.events.wait_for("it", |event| matches!(event, Event::HookPanicked { .. }));
    assert_eq!(event.to_string(), "the listener's factory panicked: no connection");
    assert!(made.len() >= 4);
}

#[test]
fn what_a_call_may_know() {
    let rig = Rig::with_queues(1);
    let seen = Log::default();
    let listener = listen::each({
        let seen = seen.clone();
        move |message, context| {
            let (shard, attempt) = (context.shard(), context.attempt());
            seen.push((message.offset().get(), shard, attempt, context.is_cancelled()));
            assert!(format!("{context:?}").starts_with("Context {"));
            if attempt == 1 { Err("once".into()) } else { Ok(Outcome::Done) }
        }
    });
    rig.produce_all(q(0), ["0", "1"]);
    let builder = rig.builder().shards(2).hasher(by_number).thread_name("known");
    let consumer = builder.start(listener).unwrap();
    rig.wait_for_commit(q(0), 2);
    consumer.stop(SECOND).unwrap();
    let mut seen = seen.all();
    seen.sort_unstable();
    assert_eq!(seen, [(0, 0, 1, false), (0, 0, 2, false), (1, 1, 1, false), (1, 1, 2, false)]);
}
