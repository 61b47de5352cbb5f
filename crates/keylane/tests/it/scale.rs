//! One shard, two, three hundred; and the types that users hold.

use keylane::{
    Abandoned, Consumer, ConsumerBuilder, Context, Error, Event, FailurePolicy, Health, Holding,
    Metrics, Outcome, StopReport, Stopper, Ticket,
};
use keylane_testkit::script::ScriptedSource;

use crate::support::{Rig, eventually, q, threads_named};

fn works_with(shards: usize, name: &str) {
    let rig = Rig::with_queues(5);
    for index in 0..5 {
        rig.produce_all(q(index), (0..400).map(|n| (n * 7 % 311).to_string()));
    }
    let listener = rig.each(|message, context| {
        let fails = message.offset().get() % 50 == 3 && context.attempt() == 1;
        if fails { Err("once".into()) } else { Ok(Outcome::Done) }
    });
    let builder = rig.builder().shards(shards).thread_name(name).stack_size(64 << 10);
    let consumer = builder.start(listener).unwrap();
    (0..5).for_each(|index| rig.wait_for_commit(q(index), 400));
    assert_eq!(consumer.metrics().shards.len(), shards);
    assert_eq!(threads_named(name), shards + 1);
    rig.stop(&consumer);
    assert_eq!(rig.recorder.verdict().delivered, 2_000);
    eventually("all threads end", || threads_named(name) == 0);
}

#[test]
fn one_shard() {
    works_with(1, "one-of-it");
}

#[test]
fn two_shards() {
    works_with(2, "two-of-it");
}

#[test]
fn three_hundred_shards() {
    works_with(300, "many-of-it");
}

#[test]
fn channels_and_batches_of_one() {
    let rig = Rig::with_queues(2);
    (0..2).for_each(|index| {
        rig.produce_all(q(index), (0..500).map(|n| (n % 13).to_string()));
    });
    let builder = rig.builder().shards(3).channel_capacity(1).batch_max(1);
    let consumer = builder.start(rig.done()).unwrap();
    (0..2).for_each(|index| rig.wait_for_commit(q(index), 500));
    rig.stop(&consumer);
}

#[test]
fn two_consumers_in_one_process_do_not_meet() {
    let (first, second) = (Rig::with_queues(1), Rig::with_queues(1));
    first.produce_all(q(0), (0..100).map(|_| "K"));
    second.produce_all(q(0), (0..50).map(|_| "K"));
    let one = first.builder().start(first.done()).unwrap();
    let two = second.builder().start(second.done()).unwrap();
    first.wait_for_commit(q(0), 100);
    second.wait_for_commit(q(0), 50);
    first.stop(&one);
    second.produce(q(0), "K");
    second.wait_for_commit(q(0), 51);
    second.stop(&two);
}

#[test]
fn public_types_may_be_sent_shared_and_shown() {
    fn all<T: Send + Sync + std::fmt::Debug + 'static>() {}
    fn shown<T: std::fmt::Debug>() {}
    all::<Consumer>();
    all::<Stopper>();
    all::<Ticket>();
    all::<Error>();
    all::<Event>();
    all::<Metrics>();
    all::<Health>();
    all::<Holding>();
    all::<Abandoned>();
    all::<StopReport>();
    all::<FailurePolicy>();
    shown::<ConsumerBuilder<ScriptedSource>>();
    shown::<Context<'_>>();
    shown::<Outcome>();
    let rig = Rig::new();
    let consumer = rig.builder().start(rig.done()).unwrap();
    assert_eq!(format!("{consumer:?}"), "Consumer { .. }");
    assert_eq!(format!("{:?}", consumer.stopper()), "Stopper");
    rig.stop(&consumer);
}
