//! The group: who reads what, and how that changes.

use std::collections::BTreeSet;
use std::time::Duration;

use keylane_rocketmq::Config;
use keylane_source::{QueueId, SeekTo, Source, SourceEvent};

use crate::broker::{Cluster, Put};
use crate::member::{Member, commit, config, queue};

fn four_queues() -> (Cluster, Vec<QueueId>) {
    let cluster = Cluster::start(&["a"]);
    cluster.topic("a", "t", 4);
    (cluster, (0..4).map(|index| queue("a", index)).collect())
}

fn named(cluster: &Cluster, id: &str) -> Member {
    Member::join(config(cluster).client_id(id))
}

/// Releases what is revoked, until this many have been.
fn give_up(member: &mut Member, count: usize) -> BTreeSet<QueueId> {
    let mut released = BTreeSet::new();
    while released.len() < count {
        let queue = member.revoking();
        member.source.release(queue);
        released.insert(queue);
    }
    released
}

#[test]
fn members_share_by_notification_and_take_over_from_one_that_leaves() {
    let (cluster, queues) = four_queues();
    let mut first = named(&cluster, "m1");
    assert_eq!(first.assigned(4).into_keys().collect::<Vec<_>>(), queues);
    let mut second = named(&cluster, "m2");
    // The timer is at ten minutes: only the broker's notification can do this.
    second.until_so("the second is assigned", |second| {
        first.poll();
        second.events.len() == 2
    });
    assert_eq!(second.assigned(2).into_keys().collect::<Vec<_>>(), queues[2..]);
    assert_eq!(give_up(&mut first, 2), queues[2..].iter().copied().collect());
    let (_, result) = second.close();
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(first.assigned(2).into_keys().collect::<Vec<_>>(), queues[2..]);
}

#[test]
fn a_queue_that_comes_back_begins_anew_after_its_release() {
    let (cluster, queues) = four_queues();
    let mut first = named(&cluster, "m1");
    first.assigned(4);
    let mut second = named(&cluster, "m2");
    second.assigned(2);
    assert_eq!(first.revoking(), queues[2]);
    assert_eq!(first.revoking(), queues[3]);
    assert!(second.close().1.is_ok());
    let assigned = |event: &SourceEvent| matches!(event, SourceEvent::Assigned { .. });
    first.none("assigned before it is released", assigned);
    first.source.commit(commit(queues[2], 5, 1));
    assert!(first.commit_result().1.is_ok());
    first.source.release(queues[2]);
    assert_eq!(first.assigned(1).into_keys().collect::<Vec<_>>(), queues[2..3]);
    first.source.release(queues[3]);
    assert_eq!(first.assigned(1).into_keys().collect::<Vec<_>>(), queues[3..]);
}

#[test]
fn a_revoked_queue_brings_nothing_more() {
    let (cluster, queues) = four_queues();
    let mut first = Member::reading(config(&cluster).client_id("m1"), &queues);
    let mut second = named(&cluster, "m2");
    second.assigned(2);
    first.revoking();
    first.revoking();
    // It is too late for a seek.
    first.source.seek(queues[2], SeekTo::Earliest);
    first.events.clear();
    for index in 0..4 {
        cluster.put("a", "t", index, Put::new("x"));
    }
    assert_eq!(first.read(2).into_keys().collect::<Vec<_>>(), queues[..2]);
    first.none("a fetch of a revoked queue", |event| matches!(event, SourceEvent::Fetched(_)));
}

#[test]
fn a_member_that_vanishes_is_replaced() {
    let (cluster, queues) = four_queues();
    let mut first = named(&cluster, "m1");
    first.assigned(4);
    let mut second = named(&cluster, "m2");
    second.assigned(2);
    give_up(&mut first, 2);
    // As by kill -9: no farewell, its connections end.
    drop(second);
    assert_eq!(first.assigned(2).into_keys().collect::<Vec<_>>(), queues[2..]);
}

#[test]
fn a_queue_that_the_engine_gives_up_does_not_come_back() {
    let (cluster, queues) = four_queues();
    let mut first = named(&cluster, "m1");
    first.assigned(4);
    first.source.release(queues[1]);
    cluster.change(|state| state.brokers["a"].notify("g"));
    first.until_so("it has asked again", |_| cluster.count("a", 38) >= 2);
    first.none("a queue that was given up", |e| matches!(e, SourceEvent::Assigned { .. }));
}

#[test]
fn a_member_that_the_broker_has_expelled_loses_its_queues() {
    let (cluster, queues) = four_queues();
    let mut first = named(&cluster, "m1");
    first.assigned(4);
    // A broker that takes heartbeats and forgets them.
    cluster.fault("a", 34, 100, crate::broker::What::Refuse(1));
    cluster.change(|state| {
        let broker = state.brokers.get_mut("a").unwrap();
        let members = broker.members.get_mut("g").unwrap();
        let connection = members.remove("m1").unwrap();
        members.insert("m9".to_owned(), connection);
        broker.notify("g");
    });
    // One look is not enough: it is told again, and asked again.
    first.until_so("it is told again", |_| cluster.count("a", 34) >= 2);
    assert!(first.events.is_empty(), "{:?}", first.events);
    cluster.state().faults.clear();
    cluster.change(|state| {
        state.faults.push(crate::broker::Fault {
            broker: "a",
            code: 38,
            queue: None,
            times: 100,
            what: crate::broker::What::Spoil(|body| {
                *body = br#"{"consumerIdList":["m9"]}"#.to_vec();
            }),
        });
    });
    let mut lost = Vec::new();
    for _ in 0..4 {
        lost.push(first.until("loss", |event| match event {
            SourceEvent::Lost { queue } => Some(*queue),
            _ => None,
        }));
    }
    assert_eq!(lost, queues);
    first.source.commit(commit(queues[0], 1, 1));
    assert!(first.commit_result().1.is_err(), "nothing is committed for a lost queue");
}

#[test]
fn a_broker_that_forgets_the_member_hears_of_it_again() {
    let (cluster, queues) = four_queues();
    let mut first = Member::reading(config(&cluster).client_id("m1"), &queues);
    first.until_so("it reads", |_| cluster.count("a", 11) >= 4);
    cluster.cut("a");
    first.until_so("it is a member again", |_| {
        cluster.state().brokers["a"].members.get("g").is_some_and(|members| members.len() == 1)
            && cluster.count("a", 34) >= 2
    });
    cluster.put("a", "t", 3, Put::new("x"));
    assert_eq!(first.read(1)[&queues[3]], ["x"]);
    let lost = |event: &SourceEvent| {
        matches!(event, SourceEvent::Lost { .. } | SourceEvent::Revoking { .. })
    };
    assert!(!first.events.iter().any(lost), "{:?}", first.events);
}

#[test]
fn a_topic_that_grows_is_noticed() {
    let (cluster, queues) = four_queues();
    let every = Duration::from_millis(50);
    let mut first = Member::join(config(&cluster).route_every(every).rebalance_every(every));
    first.assigned(4);
    cluster.topic("a", "t", 5);
    assert_eq!(first.assigned(1).into_keys().collect::<Vec<_>>(), [queue("a", 4)]);
    cluster.topic("a", "t", 4);
    assert_eq!(first.revoking(), queue("a", 4));
    assert_eq!(queues.len(), 4);
}

#[test]
fn a_topic_that_does_not_exist_is_reported_until_it_does() {
    let cluster = Cluster::start(&["a"]);
    let mut member = Member::join(config(&cluster));
    member.until_so("an error", |member| !member.errors.is_empty());
    assert_eq!(member.errors[0].to_string(), "no name server knows topic t");
    assert!(member.errors[0].is_retryable());
    cluster.topic("a", "t", 1);
    member.assigned(1);
}

#[test]
fn the_retry_topic_is_read_too() {
    let (cluster, _) = four_queues();
    let mut member = Member::join(config(&cluster).retries(true));
    let retry = QueueId::on_broker("%RETRY%g", "a", 0);
    assert!(member.assigned(5).contains_key(&retry));
    cluster.put("a", "%RETRY%g", 0, Put::new("again").with("RETRY_TOPIC", "t"));
    member.source.seek(retry, SeekTo::Earliest);
    let fetch = member.fetch();
    assert_eq!(fetch.queue, retry);
    assert_eq!(fetch.messages[0].headers().get("RETRY_TOPIC"), Some(Some(&b"t"[..])));
}

#[test]
fn a_subscription_that_differs_is_reported_once() {
    let (cluster, _) = four_queues();
    let mut first = named(&cluster, "m1");
    first.assigned(4);
    let other = Config::new([cluster.name_server.clone()], "g")
        .subscribe("t", "x")
        .retries(false)
        .client_id("m2");
    let mut second = Member::join(other);
    second.assigned(2);
    first.until_so("it is reported", |member| !member.errors.is_empty());
    cluster.change(|state| state.brokers["a"].notify("g"));
    for _ in 0..5 {
        first.poll();
    }
    let errors: Vec<String> = first.errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        ["group g: another member subscribes to t \"x\"; this one to t \"*\". All must subscribe \
          alike, or some queues are read by nobody"]
    );
}

#[test]
fn a_client_id_that_is_there_twice_is_reported_once() {
    let (cluster, queues) = four_queues();
    let twice: fn(&mut Vec<u8>) = |body| *body = br#"{"consumerIdList":["m1","m1"]}"#.to_vec();
    cluster.fault("a", 38, usize::MAX, crate::broker::What::Spoil(twice));
    let mut member = named(&cluster, "m1");
    assert_eq!(member.assigned(2).into_keys().collect::<Vec<_>>(), queues[..2], "as in Java");
    cluster.change(|state| state.brokers["a"].notify("g"));
    member.until_so("it has asked again", |_| cluster.count("a", 38) >= 2);
    for _ in 0..5 {
        member.poll();
    }
    let errors: Vec<String> = member.errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        ["group g: another member has the client id \"m1\", too. Each must have its own, or \
          queues are read by both or by nobody"]
    );
}
