//! Members of one group that come and go while messages flow.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::{Mode, Outcome, listen};
use keylane_rocketmq::RocketMqSource;
use keylane_source::Message;
use keylane_testkit::guarantee::{self, Scope};

use super::mortal::Mortal;
use super::{Filler, STOP, Stage, reading, until, until_handled, until_reading};
use crate::apache::{self, Apache};

const MS: Duration = Duration::from_millis(1);
/// So short that a member that was killed is followed soon.
const LEASE: Duration = Duration::from_secs(6);
/// What the broker waits before it takes a lock for given up: more than the member trusts it.
const BROKER_LEASE: Duration = Duration::from_secs(10);

#[test]
fn members_that_join_and_leave_under_load_lose_nothing() {
    let name = "members_that_join_and_leave_under_load_lose_nothing";
    let Some(stage) = Stage::shared(name, 4, Scope::key()) else { return };
    let over = AtomicBool::new(false);
    let mut filler = Filler::new(&stage, 400);
    let last = std::thread::scope(|scope| {
        let filling = scope.spawn(|| filler.send_until(&over));
        let first = stage.member(&stage.recorder, MS);
        until_reading(&first, 4);
        until_handled(&first, 500);
        let second = stage.member(&stage.recorder.another_member(), MS);
        until_reading(&second, 2);
        until_handled(&second, 500);
        let third = stage.member(&stage.recorder.another_member(), MS);
        // Two, one and one.
        until("all three read", || {
            let reading = [&first, &second, &third].map(reading);
            let sum: usize = reading.iter().sum();
            if sum == 4 && !reading.contains(&0) { Ok(()) } else { Err(format!("{reading:?}")) }
        });
        until_handled(&third, 200);
        let report = first.stop(STOP).unwrap();
        assert!(report.all_committed(), "{report}");
        until_reading(&third, 2);
        let report = second.stop(STOP).unwrap();
        assert!(report.all_committed(), "{report}");
        until_reading(&third, 4);
        until_handled(&third, 500);
        over.store(true, Ordering::Release);
        filling.join().unwrap();
        third
    });
    let (sent, ends) = (filler.sent, filler.ends);
    stage.until_committed(&ends);
    // A hand-over may bring a few messages twice; whatever it does not explain is a violation.
    let verdict = stage.end(vec![last], sent);
    println!("{} of {sent} messages came twice", verdict.duplicates);
}

#[test]
fn a_killed_members_queues_go_to_its_successor_once_its_locks_have_run_out() {
    let name = "a_killed_members_queues_go_to_its_successor_once_its_locks_have_run_out";
    let Some(apache) = Apache::start(name, BROKER_LEASE) else { return };
    let stage = Stage::at(apache.address(), 4, Scope::key());
    let mut filler = Filler::new(&stage, 400);
    let over = AtomicBool::new(false);
    let successor = std::thread::scope(|scope| {
        let filling = scope.spawn(|| filler.send_until(&over));
        let config = || stage.config().lock_lease(LEASE);
        let (source, fate) = Mortal::join(config());
        let victim = stage.start(source, &stage.recorder, MS);
        until_reading(&victim, 4);
        let recorder = stage.recorder.another_member();
        let other = stage.start(RocketMqSource::new(config()).unwrap(), &recorder, MS);
        until_reading(&other, 2);
        until_reading(&victim, 2);
        until_handled(&victim, 300);
        fate.kill();
        let _ = stage.recorder.crash();
        until_reading(&other, 4);
        until_handled(&other, 500);
        over.store(true, Ordering::Release);
        filling.join().unwrap();
        // It is dead: what it says to its end is not heard.
        drop(victim);
        other
    });
    let (sent, ends) = (filler.sent, filler.ends);
    stage.until_committed(&ends);
    stage.end(vec![successor], sent);
}

/// What Java's member says that it has handled: by queue, the offsets in their order.
type Handled = Arc<Mutex<BTreeMap<u32, Vec<u64>>>>;

#[test]
fn a_java_member_and_ours_share_the_queues_without_overlap_or_gap() {
    let name = "a_java_member_and_ours_share_the_queues_without_overlap_or_gap";
    let Some(stage) = Stage::shared(name, 4, Scope::Queue) else { return };
    let class_path = match apache::peers() {
        Ok(class_path) => class_path,
        Err(why) => return apache::skip(name, &why),
    };
    let ours: Handled = Arc::default();
    let noted = Arc::clone(&ours);
    // As Java does: all members have to subscribe alike.
    let source = RocketMqSource::new(stage.config().retries(true)).unwrap();
    let recorder = stage.recorder.clone();
    let listener = listen::each(move |message: &Message, context| {
        let call = recorder.begin(message, context.shard(), context.attempt());
        std::thread::sleep(2 * MS);
        let (queue, offset) = (message.queue().index(), message.offset().get());
        noted.lock().unwrap().entry(queue).or_default().push(offset);
        call.settle(guarantee::Outcome::Done);
        Ok(Outcome::Done)
    });
    let builder = stage.builder(source, &stage.recorder, Mode::QueueLocked);
    let consumer = builder.start(listener).unwrap();
    let mut filler = Filler::new(&stage, 400);
    let over = AtomicBool::new(false);
    let theirs: Handled = Arc::default();
    std::thread::scope(|scope| {
        let filling = scope.spawn(|| filler.send_until(&over));
        until_handled(&consumer, 200);
        let mut java = apache::java(class_path, "peer.GroupMember");
        java.args([&stage.server, &stage.topic, &stage.group, "2"]);
        let mut java = java.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (output, noted) = (BufReader::new(java.stdout.take().unwrap()), &theirs);
        let listening = scope.spawn(move || listen_to(output, noted));
        until("Java has two queues, and we have two", || {
            let (java, reading) = (theirs.lock().unwrap().len(), reading(&consumer));
            if (java, reading) == (2, 2) { Ok(()) } else { Err(format!("{java}, {reading}")) }
        });
        let before = count(&theirs);
        until("messages flow through Java", || {
            let now = count(&theirs);
            if now > before + 200 { Ok(()) } else { Err(now.to_string()) }
        });
        until_handled(&consumer, 200);
        // The end of its input: it leaves, and we have all of them.
        drop(java.stdin.take());
        until_reading(&consumer, 4);
        assert!(java.wait().unwrap().success());
        assert!(listening.join().unwrap(), "Java's member has not left in peace");
        until_handled(&consumer, 200);
        over.store(true, Ordering::Release);
        filling.join().unwrap();
    });
    stage.until_committed(&filler.ends);
    let report = consumer.stop(STOP).unwrap();
    assert!(report.all_committed(), "{report}");
    compare(&filler.ends, &ours.lock().unwrap(), &theirs.lock().unwrap());
}

/// Every message was handled, in its queue's order; nothing that we had finished came to Java, and
/// nothing came to us again but what Java left without storing its offset: it unlocks first.
fn compare(ends: &[u64], ours: &BTreeMap<u32, Vec<u64>>, theirs: &BTreeMap<u32, Vec<u64>>) {
    assert_eq!(theirs.len(), 2, "{:?}", theirs.keys());
    for (queue, end) in (0..).zip(ends) {
        let ours = &ours[&queue];
        assert!(ours.is_sorted_by(|a, b| a < b), "queue {queue} came out of order, or twice");
        let Some(theirs) = theirs.get(&queue) else {
            assert_eq!(ours.len() as u64, *end, "queue {queue}");
            continue;
        };
        assert!(theirs.is_sorted_by(|a, b| a < b), "Java: queue {queue} out of order, or twice");
        let all: BTreeSet<u64> = ours.iter().chain(theirs).copied().collect();
        assert_eq!(all.len() as u64, *end, "queue {queue} has gaps");
        let (first, last) = (theirs[0], theirs[theirs.len() - 1]);
        let before: Vec<u64> = ours.iter().copied().filter(|offset| *offset <= last).collect();
        // Ours up to the hand-over, and perhaps a few of theirs again after it.
        let given = before.iter().filter(|offset| **offset < first).count() as u64;
        assert_eq!(given, first, "queue {queue}: Java began elsewhere than we had ended");
    }
}

fn listen_to(output: impl BufRead, noted: &Handled) -> bool {
    for line in output.lines() {
        let line = line.unwrap();
        if line == "left" {
            return true;
        }
        let (queue, offset) = line.split_once(' ').unwrap_or_else(|| panic!("Java says {line:?}"));
        let (queue, offset) = (queue.parse().unwrap(), offset.parse().unwrap());
        noted.lock().unwrap().entry(queue).or_default().push(offset);
    }
    false
}

fn count(handled: &Handled) -> usize {
    handled.lock().unwrap().values().map(Vec::len).sum()
}
