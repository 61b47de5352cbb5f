//! The brokers' locks, and the order in which a member leaves.

use std::time::Duration;

use keylane_source::{LockReply, QueueId, Source, SourceEvent};

use crate::broker::{Cluster, What};
use crate::member::{Member, commit, config, queue};

fn two_members() -> (Cluster, [QueueId; 2], Member, Member) {
    let cluster = Cluster::start(&["a"]);
    cluster.topic("a", "t", 2);
    let mut first = Member::join(config(&cluster).client_id("m1"));
    first.assigned(2);
    let mut second = Member::join(config(&cluster).client_id("m2"));
    second.assigned(1);
    first.revoking();
    (cluster, [queue("a", 0), queue("a", 1)], first, second)
}

fn ask(member: &mut Member, queue: QueueId) -> &'static str {
    member.source.locks().unwrap().acquire(&[queue]);
    let (answered, reply) = member.lock_reply();
    assert_eq!(answered, queue);
    match reply {
        LockReply::Held => "held",
        LockReply::Refused => "refused",
        LockReply::Lost => "lost",
        LockReply::Failed(_) => "failed",
        other => panic!("{other:?}"),
    }
}

/// The codes of the requests that a broker got, in order, of these.
fn seen(cluster: &Cluster, codes: &[i32]) -> Vec<i32> {
    cluster.state().seen.iter().map(|(_, code, _)| *code).filter(|c| codes.contains(c)).collect()
}

#[test]
fn a_lock_excludes_until_it_is_given_back() {
    let (_cluster, [_, shared], mut first, mut second) = two_members();
    assert_eq!(ask(&mut first, shared), "held");
    assert_eq!(ask(&mut first, shared), "held");
    assert_eq!(ask(&mut second, shared), "refused");
    first.source.locks().unwrap().release(&[shared]);
    second.until_so("it is free", |second| {
        first.poll();
        ask(second, shared) == "held"
    });
    assert_eq!(ask(&mut first, shared), "refused");
}

#[test]
fn a_lock_expires_at_the_broker_and_is_lost() {
    let (cluster, [_, shared], mut first, mut second) = two_members();
    assert_eq!(ask(&mut first, shared), "held");
    cluster.state().lock_lease = Duration::ZERO;
    assert_eq!(ask(&mut second, shared), "held");
    cluster.state().lock_lease = Duration::from_secs(60);
    assert_eq!(ask(&mut first, shared), "lost");
}

#[test]
fn a_lock_request_without_an_answer_changes_nothing() {
    let (cluster, [_, shared], mut first, _second) = two_members();
    assert_eq!(ask(&mut first, shared), "held");
    cluster.fault("a", 41, 1, What::Refuse(1));
    first.source.locks().unwrap().acquire(&[shared]);
    let (_, reply) = first.lock_reply();
    let LockReply::Failed(error) = reply else { panic!("{reply:?}") };
    assert_eq!(error.to_string(), "lock t@a/1: refused with code 1: as told");
    assert_eq!(ask(&mut first, shared), "held");
}

#[test]
fn locks_of_several_brokers_are_asked_for_at_each() {
    let cluster = Cluster::start(&["a", "b"]);
    cluster.topic("a", "t", 1);
    cluster.topic("b", "t", 1);
    let mut member = Member::join(config(&cluster));
    member.assigned(2);
    let queues = [queue("a", 0), queue("b", 0)];
    member.source.locks().unwrap().acquire(&queues);
    let mut held = [member.lock_reply(), member.lock_reply()];
    held.sort_by_key(|(queue, _)| *queue);
    assert!(matches!(held, [(a, LockReply::Held), (b, LockReply::Held)] if [a, b] == queues));
    assert_eq!((cluster.count("a", 41), cluster.count("b", 41)), (1, 1));
}

#[test]
fn the_lease_is_the_configured_one() {
    let cluster = Cluster::start(&["a"]);
    let lease = Duration::from_millis(1_500);
    let mut member = Member::join(config(&cluster).lock_lease(lease));
    assert_eq!(member.source.locks().unwrap().lease(), lease);
}

#[test]
fn a_lock_is_not_given_back_before_the_commit_is_answered() {
    let (cluster, [_, shared], mut first, mut second) = two_members();
    assert_eq!(ask(&mut first, shared), "held");
    cluster.fault("a", 15, 1, What::Ignore);
    first.source.commit(commit(shared, 5, 1));
    first.source.locks().unwrap().release(&[shared]);
    // Whatever else is answered meanwhile: the lock is still there.
    first.source.look_up_committed(queue("a", 0));
    first.until("another answer", |event| {
        matches!(event, SourceEvent::LookedUp { .. }).then_some(())
    });
    assert_eq!(cluster.count("a", 42), 0);
    assert_eq!(ask(&mut second, shared), "refused");
    // Its connection ends, and with it the wait for the answer.
    cluster.cut("a");
    assert!(first.commit_result().1.is_err());
    first.until_so("it is given back", |_| cluster.count("a", 42) == 1);
}

#[test]
fn a_lock_is_not_asked_for_again_before_it_has_been_given_back() {
    let (cluster, [own, _], mut first, _second) = two_members();
    assert_eq!(ask(&mut first, own), "held");
    cluster.fault("a", 42, 1, What::Ignore);
    first.source.locks().unwrap().release(&[own]);
    first.until_so("it is being given back", |_| cluster.count("a", 42) == 1);
    first.source.locks().unwrap().acquire(&[own]);
    // Whatever else is answered meanwhile.
    first.source.look_up_committed(own);
    first.until("another answer", |event| {
        matches!(event, SourceEvent::LookedUp { .. }).then_some(())
    });
    assert_eq!(cluster.count("a", 41), 1);
    cluster.cut("a");
    assert!(matches!(first.lock_reply(), (queue, LockReply::Held) if queue == own));
    assert_eq!(cluster.count("a", 41), 2);
}

#[test]
fn leaving_commits_then_unlocks_then_says_so() {
    let (cluster, [own, _], mut first, _second) = two_members();
    assert_eq!(ask(&mut first, own), "held");
    first.source.commit(commit(own, 5, 1));
    first.source.locks().unwrap().release(&[own]);
    let (events, result) = first.close();
    assert!(result.is_ok(), "{result:?}");
    assert!(
        matches!(&events[..], [SourceEvent::CommitResult { commit: c, result: Ok(()) }]
            if *c == commit(own, 5, 1)),
        "{events:?}"
    );
    assert_eq!(seen(&cluster, &[15, 42, 35]), [15, 42, 35]);
    assert_eq!(cluster.committed("a", "g", "t", 0), Some(5));
    let state = cluster.state();
    assert!(state.brokers["a"].locks.is_empty());
    assert_eq!(state.brokers["a"].members["g"].keys().collect::<Vec<_>>(), ["m2"]);
}

#[test]
fn a_lock_that_the_engine_keeps_is_not_given_back_by_leaving() {
    let (cluster, [own, _], mut first, _second) = two_members();
    assert_eq!(ask(&mut first, own), "held");
    assert!(first.close().1.is_ok());
    assert_eq!(cluster.count("a", 42), 0, "a call may still be running: it has to expire");
}

#[test]
fn leaving_keeps_to_its_time_and_leaves_even_if_the_commit_is_not_answered() {
    let (cluster, [own, _], mut first, mut second) = two_members();
    cluster.fault("a", 15, 1, What::Ignore);
    first.source.commit(commit(own, 5, 1));
    let mut events = Vec::new();
    let result = first.source.close(Duration::from_millis(400), &mut events);
    let error = result.unwrap_err().to_string();
    assert!(error.contains("close member m1 of group g: "), "{error}");
    assert!(error.contains("the commit of t@a/0 is not answered"), "{error}");
    assert!(
        matches!(&events[..], [SourceEvent::CommitResult { result: Err(_), .. }]),
        "{events:?}"
    );
    second.until_so("it has left", |_| {
        seen(&cluster, &[35]) == [35] && cluster.state().brokers["a"].members["g"].len() == 1
    });
}
