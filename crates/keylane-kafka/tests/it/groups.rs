//! Several members of a group: what each protocol does, and what a revoke waits for.

use std::time::{Duration, Instant};

use keylane_source::{Committed, QueueId, Source};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::cluster::Cluster;
use crate::fetch::COOPERATIVE;
use crate::member::{Member, both_until, commit, queue};

const RANGE: (&str, &str) = ("partition.assignment.strategy", "range");

/// A second member joins, the queues are split, everything is read by one of them, in order, and
/// what moved goes on at the commit.
fn a_split(first: (&str, &str), more: &[(&str, &str)]) -> (Member, Member, Cluster) {
    let cluster = Cluster::new(4);
    for index in 0..4 {
        cluster.fill(index, 0..20);
    }
    let source = || {
        let builder = cluster.source().set(first.0, first.1);
        more.iter().fold(builder, |builder, (name, value)| builder.set(*name, *value))
    };
    let mut a = Member::joined(source(), 4);
    a.until("all is read", |m| m.count() == 80);
    for index in 0..4 {
        a.commit(commit(queue(index), 15, "")).unwrap();
    }
    let mut b = Member::new(source());
    both_until(&mut a, &mut b, "the queues are split", |a, b| {
        a.owned.len() == 2 && b.owned.len() == 2
    });
    both_until(&mut a, &mut b, "the second has read its part", |_, b| b.count() == 10);
    for queue in b.owned.keys() {
        assert!(!a.owned.contains_key(queue), "{queue} is owned twice");
        assert_eq!(b.offsets(*queue), [15, 16, 17, 18, 19]);
    }
    // A commit that comes too late is not even sent: the coordinator would store it.
    let moved = *b.owned.keys().next().unwrap();
    let error = a.commit(commit(moved, 1, "")).unwrap_err();
    assert!(error.to_string().ends_with("not this member's any more"), "{error}");
    for index in 0..4 {
        cluster.fill(index, 20..22);
    }
    both_until(&mut a, &mut b, "both go on", |a, b| tails(a) + tails(b) == 8);
    (a, b, cluster)
}

/// Messages of owned queues from offset 20 on, each of which must have come once.
fn tails(member: &Member) -> usize {
    let of = |queue: &QueueId| member.offsets(*queue).into_iter().filter(|offset| *offset >= 20);
    let all: Vec<_> = member.owned.keys().flat_map(of).collect();
    all.len()
}

#[test]
fn eager_members_split_the_queues_and_take_over_what_is_left() {
    let (mut a, mut b, _cluster) = a_split(RANGE, &[]);
    // Eager: everything is given back first. (A slow machine may need a second round.)
    let mut first = a.revoking[..4].to_vec();
    first.sort();
    assert_eq!(first, [0, 1, 2, 3].map(queue));
    a.close().unwrap();
    b.until("the rest is taken over", |b| b.owned.len() == 4);
    b.close().unwrap();
}

#[test]
fn cooperative_members_keep_what_stays() {
    let (mut a, mut b, _cluster) = a_split(COOPERATIVE, &[]);
    let kept = a.owned.keys().filter(|queue| a.revoking.contains(queue)).count();
    assert_eq!(kept, 0, "cooperative: only what moves is given back");
    for queue in a.owned.keys() {
        // Never given back: no message twice.
        assert_eq!(a.offsets(*queue), (0..22).collect::<Vec<_>>());
    }
    b.close().unwrap();
    a.until("the rest is taken over", |a| a.owned.len() == 4);
    a.close().unwrap();
}

#[test]
fn a_static_member_comes_back_to_its_queues() {
    let cluster = Cluster::new(2);
    let source = |id: &str| cluster.source().set(RANGE.0, RANGE.1).set("group.instance.id", id);
    let mut a = Member::joined(source("a"), 2);
    let mut b = Member::new(source("b"));
    both_until(&mut a, &mut b, "split", |a, b| a.owned.len() == 1 && b.owned.len() == 1);
    let theirs: Vec<_> = b.owned.keys().copied().collect();
    // A static member does not leave when it closes: its queues wait for it.
    b.close().unwrap();
    // (That the other is not disturbed is Kafka's doing; the mock does rebalance.)
    let mut b = Member::new(source("b"));
    both_until(&mut a, &mut b, "it is back", |a, b| a.owned.len() == 1 && b.owned.len() == 1);
    assert_eq!(b.owned.keys().copied().collect::<Vec<_>>(), theirs);
    a.close().unwrap();
    b.close().unwrap();
}

#[test]
fn the_new_group_protocol_assigns_reads_and_commits() {
    let cluster = Cluster::new(2);
    cluster.fill(0, 0..5);
    cluster.fill(1, 0..5);
    let source = || {
        keylane_kafka::KafkaSource::builder(cluster.servers(), "g")
            .subscribe(["t"])
            .set("group.protocol", "consumer")
            .set("fetch.wait.max.ms", "20")
    };
    let mut a = Member::joined(source(), 2);
    a.until("all is read", |m| m.count() == 10);
    a.commit(commit(queue(1), 3, "beside")).unwrap();
    let mut b = Member::new(source());
    both_until(&mut a, &mut b, "split", |a, b| a.owned.len() == 1 && b.owned.len() == 1);
    assert_eq!(a.revoking.len(), 1);
    a.close().unwrap();
    b.until("the rest is taken over", |b| b.owned.len() == 2);
    let Committed::At { watermark, metadata } = &b.owned[&queue(1)] else {
        panic!("{:?}", b.owned);
    };
    assert_eq!((watermark.get(), metadata.as_str()), (3, "beside"));
    b.close().unwrap();
}

#[test]
fn a_revoke_waits_for_the_release() {
    for settings in [RANGE, COOPERATIVE] {
        let cluster = Cluster::new(2);
        cluster.fill(0, 0..10);
        cluster.fill(1, 0..10);
        let source = || cluster.source().set(settings.0, settings.1);
        let mut a = Member::joined(source(), 2);
        a.until("all is read", |m| m.count() == 20);
        a.releases = false;
        let mut b = Member::new(source());
        both_until(&mut a, &mut b, "the revoke begins", |a, _| !a.revoking.is_empty());
        assert_eq!(b.owned.len(), 0);
        // (What finished meanwhile is committed now. The mock refuses that in some states in which
        // Kafka takes it, so it is seen in `real_broker.rs`.)
        for queue in a.revoking.clone() {
            a.release(queue);
        }
        a.releases = true;
        both_until(&mut a, &mut b, "split", |a, b| a.owned.len() == 1 && b.owned.len() == 1);
        assert_eq!(a.lost, []);
        a.close().unwrap();
        b.close().unwrap();
    }
}

#[test]
fn a_revoke_that_is_never_answered_ends_at_its_bound_as_lost() {
    for settings in [RANGE, COOPERATIVE] {
        let cluster = Cluster::new(2);
        let bound = Duration::from_millis(500);
        let source = || cluster.source().set(settings.0, settings.1).revoke_bound(bound);
        let mut a = Member::joined(source(), 2);
        a.releases = false;
        let mut b = Member::new(source());
        both_until(&mut a, &mut b, "the revoke begins", |a, _| !a.revoking.is_empty());
        let start = Instant::now();
        both_until(&mut a, &mut b, "it is lost", |a, _| a.lost.len() == a.revoking.len());
        assert!(start.elapsed() >= bound - Duration::from_millis(50), "{:?}", start.elapsed());
        a.releases = true;
        both_until(&mut a, &mut b, "split", |a, b| a.owned.len() == 1 && b.owned.len() == 1);
        a.close().unwrap();
        b.close().unwrap();
    }
}

#[test]
fn polling_keeps_the_membership_whatever_the_engine_does() {
    let cluster = Cluster::new(1);
    cluster.fill(0, 0..10);
    let source =
        || cluster.source().set("max.poll.interval.ms", "2500").set("session.timeout.ms", "2000");
    let mut member = Member::joined(source(), 1);
    member.until("all is read", |m| m.count() == 10);
    // The engine is full: it pauses, and polls on for longer than the limit.
    member.source.pause(queue(0));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        member.poll(Duration::from_millis(200));
    }
    assert_eq!((member.lost.len(), member.revoking.len()), (0, 0));
    member.commit(commit(queue(0), 10, "")).unwrap();
    member.source.resume(queue(0));
    cluster.fill(0, 10..11);
    member.until("it goes on", |m| m.count() == 11);
    assert_eq!(member.offsets(queue(0)), (0..11).collect::<Vec<_>>());
    member.close().unwrap();
}

#[test]
fn without_polls_the_queues_are_lost() {
    let cluster = Cluster::new(1);
    let source =
        || cluster.source().set("max.poll.interval.ms", "2100").set("session.timeout.ms", "2000");
    let mut a = Member::joined(source(), 1);
    a.releases = false;
    let mut b = Member::new(source());
    b.until("somebody else has it", |b| b.owned.len() == 1);
    a.until("it is told", |a| a.lost == [queue(0)]);
    a.until("the reason is told", |a| !a.errors.is_empty());
    assert!(a.errors[0].to_string().contains("poll interval"), "{:?}", a.errors);
    a.close().unwrap();
    b.close().unwrap();
}

#[test]
fn a_queue_that_the_engine_gives_up_brings_nothing_more() {
    let cluster = Cluster::new(2);
    let mut member = Member::joined(cluster.source().set(RANGE.0, RANGE.1), 2);
    member.source.release(queue(0));
    cluster.fill(0, 0..5);
    cluster.fill(1, 0..5);
    member.until("the other is read", |m| m.offsets(queue(1)).len() == 5);
    assert!(member.offsets(queue(0)).is_empty());
    // The group takes it back one day; the engine has forgotten it by then.
    member.owned.remove(&queue(0));
    let mut other = Member::new(cluster.source().set(RANGE.0, RANGE.1));
    both_until(&mut member, &mut other, "split", |a, b| a.owned.len() == 1 && b.owned.len() == 1);
    // (Dealt out anew it may come again, and go again where the group needs two rounds.)
    assert_eq!(member.revoking[0], queue(1));
    assert!(member.lost.is_empty());
    member.close().unwrap();
    other.close().unwrap();
}

#[test]
fn a_session_that_ran_out_is_a_loss_without_a_revoke() {
    for settings in [RANGE, COOPERATIVE] {
        let cluster = Cluster::new(1);
        let mut member = Member::joined(cluster.source().set(settings.0, settings.1), 1);
        let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID;
        cluster.fail(RDKafkaApiKey::Heartbeat, &[unknown]);
        member.until("it is lost and comes again", |m| m.lost == [queue(0)] && m.owned.len() == 1);
        assert!(member.revoking.is_empty(), "{:?}", member.revoking);
        member.close().unwrap();
    }
}
