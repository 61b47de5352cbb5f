//! Brokers that refuse, are silent, send rubbish, or die.

use std::time::Duration;

use keylane_rocketmq::Config;
use keylane_source::{QueueId, SeekTo, Source, SourceEvent};

use crate::broker::{Cluster, Fault, Put, What};
use crate::member::{Member, at, commit, config, queue};

fn one_queue(messages: u32) -> (Cluster, QueueId) {
    let cluster = Cluster::start(&["a"]);
    cluster.topic("a", "t", 1);
    for number in 0..messages {
        cluster.put("a", "t", 0, Put::new(number.to_string()));
    }
    (cluster, queue("a", 0))
}

fn two_brokers() -> (Cluster, [QueueId; 2]) {
    let cluster = Cluster::start(&["a", "b"]);
    cluster.topic("a", "t", 1);
    cluster.topic("b", "t", 1);
    (cluster, [queue("a", 0), queue("b", 0)])
}

fn is_error(event: &SourceEvent) -> bool {
    matches!(event, SourceEvent::QueueError { .. })
}

#[test]
fn a_refused_pull_is_reported_and_tried_again() {
    let (cluster, queue) = one_queue(3);
    cluster.fault("a", 11, 2, What::Refuse(14));
    let mut member = Member::reading(config(&cluster), &[queue]);
    let report = (queue, "pull t@a/0 at 0: refused with code 14: as told".to_owned());
    assert_eq!(member.queue_error(), report);
    assert_eq!(member.queue_error(), report);
    assert_eq!(member.read(3)[&queue], ["0", "1", "2"]);
    assert!(!member.events.iter().any(is_error));
}

#[test]
fn a_broker_that_knows_no_subscription_is_told_again() {
    for code in [24, 25, 26] {
        let (cluster, queue) = one_queue(1);
        cluster.fault("a", 11, 1, What::Refuse(code));
        let mut member = Member::reading(config(&cluster), &[queue]);
        assert!(member.queue_error().1.contains(&format!("code {code}")));
        assert_eq!(member.read(1)[&queue], ["0"]);
        assert_eq!(cluster.count("a", 34), 2, "code {code}");
    }
}

#[test]
fn flow_control_is_no_trouble() {
    let (cluster, queue) = one_queue(1);
    cluster.fault("a", 11, 3, What::Refuse(215));
    let mut member = Member::reading(config(&cluster), &[queue]);
    assert_eq!(member.read(1)[&queue], ["0"]);
    assert_eq!(cluster.count("a", 11), 4);
    assert!(!member.events.iter().any(is_error), "{:?}", member.events);
}

#[test]
fn what_cannot_be_decoded_is_reported_and_nothing_is_skipped() {
    let spoils: [fn(&mut Vec<u8>); 3] = [
        |body| body.truncate(body.len() - 1),
        |body| body[5] ^= 1, // the magic number
        |body| body.push(0),
    ];
    for spoil in spoils {
        let (cluster, queue) = one_queue(3);
        cluster.fault("a", 11, 1, What::Spoil(spoil));
        let mut member = Member::reading(config(&cluster), &[queue]);
        let (_, error) = member.queue_error();
        assert!(error.starts_with("pull t@a/0 at 0: message "), "{error}");
        assert_eq!(member.read(3)[&queue], ["0", "1", "2"]);
    }
}

#[test]
fn a_connection_that_breaks_is_made_again() {
    let (cluster, queue) = one_queue(3);
    cluster.fault("a", 11, 1, What::HangUp);
    let mut member = Member::reading(config(&cluster), &[queue]);
    assert_eq!(member.read(3)[&queue], ["0", "1", "2"]);
}

#[test]
fn a_seek_that_fails_is_tried_again() {
    let (cluster, queue) = one_queue(3);
    cluster.fault("a", 31, 1, What::Refuse(1));
    let mut member = Member::reading(config(&cluster), &[queue]);
    let report = "seek t@a/0 to Earliest: refused with code 1: as told".to_owned();
    assert_eq!(member.queue_error(), (queue, report));
    assert_eq!(member.read(3)[&queue], ["0", "1", "2"]);
}

#[test]
fn a_silent_broker_leaves_the_queues_of_others_alone() {
    let (cluster, [good, silent]) = two_brokers();
    for code in [11, 15] {
        cluster.fault("b", code, 1_000, What::Ignore);
    }
    let mut member = Member::reading(config(&cluster), &[good, silent]);
    member.source.commit(commit(silent, 1, 1));
    for number in 0..50 {
        cluster.put("a", "t", 0, Put::new(number.to_string()));
        assert_eq!(member.read(1)[&good], [number.to_string()]);
        member.source.commit(commit(good, number + 1, number));
        assert!(member.commit_result().1.is_ok());
    }
    assert!(!member.events.iter().any(is_error), "{:?}", member.events);
    cluster.down("b");
    let (answered, result) = member.commit_result();
    assert_eq!((answered, result.is_err()), (commit(silent, 1, 1), true));
}

#[test]
fn a_dead_broker_leaves_the_queues_of_others_alone_and_comes_back() {
    let (cluster, [good, dead]) = two_brokers();
    let mut member = Member::reading(config(&cluster), &[good, dead]);
    cluster.put("b", "t", 0, Put::new("before"));
    assert_eq!(member.read(1)[&dead], ["before"]);
    cluster.down("b");
    let (queue, error) = member.queue_error();
    assert_eq!(queue, dead);
    assert!(error.starts_with("pull t@b/0 at 1: "), "{error}");
    for number in 0..20 {
        cluster.put("a", "t", 0, Put::new(number.to_string()));
        assert_eq!(member.read(1)[&good], [number.to_string()]);
    }
    assert!(member.errors.is_empty(), "{:?}", member.errors);
    cluster.up("b");
    cluster.put("b", "t", 0, Put::new("after"));
    assert_eq!(member.read(1)[&dead], ["after"]);
    cluster.put("b", "t", 0, Put::new("later"));
    assert_eq!(member.read(1)[&dead], ["later"]);
}

#[test]
fn the_next_name_server_is_asked() {
    let (cluster, queue) = one_queue(1);
    // Nobody listens there any more.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let servers = [gone.to_string(), cluster.name_server.clone()];
    let config = Config::new(servers, "g").subscribe("t", "*").retries(false);
    let mut member = Member::reading(config, &[queue]);
    assert_eq!(member.read(1)[&queue], ["0"]);
}

#[test]
fn a_name_server_that_does_not_know_the_topic_is_not_the_last_word() {
    let ignorant = Cluster::start(&["a"]);
    let (cluster, queue) = one_queue(1);
    let servers = [ignorant.name_server.clone(), cluster.name_server.clone()];
    let config = Config::new(servers, "g").subscribe("t", "*").retries(false);
    let mut member = Member::reading(config, &[queue]);
    assert_eq!(member.read(1)[&queue], ["0"]);
}

#[test]
fn a_connection_on_which_nothing_comes_is_given_up() {
    let (cluster, _) = one_queue(0);
    for code in 0..400 {
        cluster.fault("a", code, usize::MAX, What::Ignore);
    }
    let impatient = config(&cluster).call_timeout(Duration::from_millis(100));
    let mut member = Member::join(impatient);
    // One to the name server, and one after the other to the broker.
    member.until_so("it connects again", |_| cluster.connections() >= 3);
}

#[test]
fn no_name_server_at_all_is_reported() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = Config::new([gone.to_string()], "g").subscribe("t", "*").retries(false);
    let mut member = Member::join(config);
    member.until_so("an error", |member| !member.errors.is_empty());
    let error = member.errors[0].to_string();
    assert!(error.starts_with(&format!("route of topic t: connect to {gone}: ")), "{error}");
}

#[test]
fn closing_without_any_broker_keeps_to_its_time() {
    let (cluster, queue) = one_queue(0);
    let mut member = Member::reading(config(&cluster), &[queue]);
    member.until_so("it reads", |_| cluster.count("a", 11) > 0);
    cluster.down("a");
    let (_, result) = member.close();
    let error = result.unwrap_err().to_string();
    assert!(error.contains("leave the group: "), "{error}");
}

#[test]
fn one_queue_with_trouble_does_not_hold_up_another_of_the_same_broker() {
    let cluster = Cluster::start(&["a"]);
    cluster.topic("a", "t", 2);
    let (good, bad) = (queue("a", 0), queue("a", 1));
    let what = What::Ignore;
    cluster.state().faults.push(Fault { broker: "a", code: 11, queue: Some(1), times: 99, what });
    let impatient = config(&cluster).call_timeout(Duration::from_secs(2));
    let mut member = Member::reading(impatient, &[good, bad]);
    for number in 0..20 {
        cluster.put("a", "t", 0, Put::new(number.to_string()));
        assert_eq!(member.read(1)[&good], [number.to_string()]);
    }
    member.source.seek(bad, SeekTo::Position(at(0)));
    assert_eq!(member.queue_error().0, bad);
}
