//! Commits: their results are read, and a restart begins where they are.

use keylane_source::{Committed, Source, SourceEvent};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::member::{Member, commit, position, queue};

#[test]
fn a_restart_begins_at_the_commit_with_its_metadata() {
    let cluster = Cluster::new(2);
    cluster.fill(0, 0..10);
    let mut member = Member::joined(cluster.source(), 2);
    assert!(matches!(member.owned[&queue(0)], Committed::None));
    member.until("it is read", |m| m.count() == 10);
    member.commit(commit(queue(0), 6, "done=8,9")).unwrap();
    member.source.look_up_committed(queue(0));
    member.until("it is looked up", |m| !m.looked_up.is_empty());
    let (looked_up, committed) = &member.looked_up[0];
    assert_eq!(*looked_up, queue(0));
    assert_at(committed, 6, "done=8,9");
    member.close().unwrap();

    let mut next = Member::joined(cluster.source(), 2);
    assert_at(&next.owned[&queue(0)], 6, "done=8,9");
    assert!(matches!(next.owned[&queue(1)], Committed::None));
    next.until("the rest is read", |m| m.count() == 4);
    assert_eq!(next.offsets(queue(0)), [6, 7, 8, 9]);
    next.close().unwrap();
}

fn assert_at(committed: &Committed, at: u64, beside: &str) {
    let Committed::At { watermark, metadata } = committed else { panic!("{committed:?}") };
    assert_eq!((watermark.get(), metadata.as_str()), (at, beside));
}

#[test]
fn a_refused_commit_says_so_and_the_next_one_works() {
    let cluster = Cluster::new(1);
    cluster.fill(0, 0..10);
    let mut member = Member::joined(cluster.source(), 1);
    // Not retried by librdkafka: the group does not allow it.
    let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
    cluster.fail(RDKafkaApiKey::OffsetCommit, &[refused]);
    let error = member.commit(commit(queue(0), 3, "")).unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(
        error.to_string(),
        "commit t/0 at 3 for group g: Broker: Group authorization failed"
    );
    member.commit(commit(queue(0), 4, "")).unwrap();
    member.close().unwrap();
    let next = Member::joined(cluster.source(), 1);
    assert_at(&next.owned[&queue(0)], 4, "");
}

#[test]
fn a_commit_that_a_rebalance_refuses_is_sent_again_and_given_up_one_day() {
    let cluster = Cluster::new(1);
    cluster.fill(0, 0..10);
    let mut member = Member::joined(cluster.source(), 1);
    let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS;
    cluster.fail(RDKafkaApiKey::OffsetCommit, &[refused; 3]);
    member.commit(commit(queue(0), 3, "")).unwrap();
    // Once, and twenty times more.
    cluster.fail(RDKafkaApiKey::OffsetCommit, &[refused; 21]);
    let error = member.commit(commit(queue(0), 4, "")).unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(
        error.to_string(),
        "commit t/0 at 4 for group g: Broker: Group rebalance in progress"
    );
    // Nothing else has noticed: messages come, and commits work.
    cluster.fill(0, 10..12);
    member.until("it goes on", |m| m.count() == 12);
    member.commit(commit(queue(0), 12, "")).unwrap();
    assert!(member.lost.is_empty() && member.revoking.is_empty());
    member.close().unwrap();
}

#[test]
fn a_failed_look_up_is_neither_a_commit_nor_none() {
    let cluster = Cluster::new(1);
    let mut member = Member::joined(cluster.source(), 1);
    member.commit(commit(queue(0), 7, "m")).unwrap();
    let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
    cluster.fail(RDKafkaApiKey::OffsetFetch, &[refused]);
    member.source.look_up_committed(queue(0));
    member.until("it is looked up", |m| !m.looked_up.is_empty());
    let (_, committed) = member.looked_up.pop().unwrap();
    let Committed::Failed(error) = committed else { panic!("{committed:?}") };
    assert!(
        error.to_string().starts_with("look up what group g has committed for t/0: "),
        "{error}"
    );
    member.source.look_up_committed(queue(0));
    member.until("it is looked up again", |m| !m.looked_up.is_empty());
    assert_at(&member.looked_up[0].1, 7, "m");
    member.close().unwrap();
}

#[test]
fn commits_that_are_asked_for_together_are_each_answered() {
    let cluster = Cluster::new(4);
    let mut member = Member::joined(cluster.source(), 4);
    for index in 0..4 {
        member.source.commit(commit(queue(index), u64::from(index) * 10, "m"));
    }
    member.until("all are answered", |m| m.results.len() == 4);
    for (commit, result) in &member.results {
        assert_eq!(commit.watermark.get(), u64::from(commit.queue.index()) * 10);
        result.as_ref().unwrap();
    }
    member.close().unwrap();
    let next = Member::joined(cluster.source(), 4);
    for index in 0..4 {
        assert_at(&next.owned[&queue(index)], u64::from(index) * 10, "m");
    }
}

#[test]
fn a_close_waits_for_the_last_commit_and_tells_its_result() {
    let cluster = Cluster::new(1);
    cluster.fill(0, 0..5);
    let mut member = Member::joined(cluster.source(), 1);
    member.source.commit(commit(queue(0), 5, "last"));
    let mut events = Vec::new();
    member.source.close(Duration::from_secs(10), &mut events).unwrap();
    let [SourceEvent::CommitResult { commit, result: Ok(()) }] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(commit.watermark, position(5).into());
    let next = Member::joined(cluster.source(), 1);
    assert_at(&next.owned[&queue(0)], 5, "last");
}
