//! What happens to the broker, to offsets and to locks while messages flow.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keylane::{Consumer, Outcome, listen};
use keylane_rocketmq::RocketMqSource;
use keylane_source::Message;
use keylane_testkit::guarantee::Scope;
use serde_json::json;

use super::mortal::Mortal;
use super::{Filler, STOP, Stage, until, until_handled, until_reading};
use crate::apache::Apache;
use crate::broker::frame::Frame;
use crate::real::ask;

/// The queue's number, the key, the offset.
type Handled = (u32, Vec<u8>, u64);

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_broker_that_is_killed_twice_under_load_loses_nothing() {
    let name = "a_broker_that_is_killed_twice_under_load_loses_nothing";
    // Longer than it takes to come back: a lock that had run out would have the queue begin anew,
    // at an offset that the broker may have forgotten with its death.
    let Some(mut apache) = Apache::start(name, Duration::from_secs(300)) else { return };
    let stage = Stage::at(apache.address(), 4, Scope::key());
    let config = stage.config().lock_lease(Duration::from_secs(200));
    let source = RocketMqSource::new(config).unwrap();
    let member = stage.start(source, &stage.recorder, MS);
    until_reading(&member, 4);
    let mut filler = Filler::new(&stage, 400);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let filling = scope.spawn(|| filler.send_until(&over));
        for _ in 0..2 {
            until_handled(&member, 500);
            apache.kill();
            apache.restart();
        }
        until_handled(&member, 500);
        over.store(true, Ordering::Release);
        filling.join().unwrap();
    });
    let (sent, ends) = (filler.sent, filler.ends);
    stage.until_committed(&ends);
    stage.end(vec![member], sent);
}

#[test]
fn offsets_that_the_operators_tool_resets_are_read_again() {
    let name = "offsets_that_the_operators_tool_resets_are_read_again";
    let Some(apache) = Apache::start(name, Duration::from_secs(60)) else { return };
    let stage = Stage::at(apache.address(), 4, Scope::key());
    let member = stage.member(&stage.recorder, Duration::ZERO);
    until_reading(&member, 4);
    let mut filler = Filler::new(&stage, 400);
    filler.send(2_000);
    let (sent, ends) = (filler.sent, filler.ends);
    stage.until_committed(&ends);
    assert_eq!(member.metrics().succeeded, sent);
    let (topic, group) = (&stage.topic[..], &stage.group[..]);
    apache.mqadmin(&["resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "-f", "true"]);
    until("everything has come again", || {
        let done = member.metrics().succeeded;
        if done == 2 * sent { Ok(()) } else { Err(done.to_string()) }
    });
    stage.until_committed(&ends);
    // The reset explains them.
    let verdict = stage.end(vec![member], sent);
    assert_eq!(verdict.duplicates, sent, "{verdict}");
}

/// The test kit's recorder is not told of an epoch that ends with its lock, so this keeps a list of
/// its own.
#[test]
fn a_lock_that_runs_out_stops_its_queue_until_it_is_held_again() {
    let name = "a_lock_that_runs_out_stops_its_queue_until_it_is_held_again";
    let Some(apache) = Apache::start(name, Duration::from_secs(8)) else { return };
    let stage = Stage::at(apache.address(), 2, Scope::key());
    let (source, fate) = Mortal::join(stage.config().lock_lease(Duration::from_secs(4)));
    let handled: Arc<Mutex<Vec<Handled>>> = Arc::default();
    let noted = Arc::clone(&handled);
    let listener = listen::each(move |message: &Message, _| {
        std::thread::sleep(MS);
        let (queue, key) = (message.queue().index(), message.key().unwrap().to_vec());
        noted.lock().unwrap().push((queue, key, message.offset().get()));
        Ok(Outcome::Done)
    });
    let member = Consumer::builder(source).start(listener).unwrap();
    until_reading(&member, 2);
    let mut filler = Filler::new(&stage, 40);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let filling = scope.spawn(|| filler.send_until(&over));
        until_handled(&member, 200);
        fate.lose_locks(true);
        // Another one gets them only when the broker takes them for given up, and by then no call
        // of ours runs any more.
        until("somebody else has the locks", || match lock(&stage, 41) {
            2 => Ok(()),
            locked => Err(format!("{locked} of them")),
        });
        let then = handled.lock().unwrap().len();
        fate.lose_locks(false);
        for _ in 0..20 {
            assert_eq!(lock(&stage, 41), 2, "renewed");
            let now = handled.lock().unwrap().len();
            assert_eq!(now, then, "messages were handled without a lock");
        }
        lock(&stage, 42);
        let free = Instant::now();
        until_handled(&member, 1);
        println!("messages flow {:.1?} after the locks were free", free.elapsed());
        until_handled(&member, 200);
        over.store(true, Ordering::Release);
        filling.join().unwrap();
    });
    stage.until_committed(&filler.ends);
    assert!(member.stop(STOP).unwrap().all_committed());
    let mut last: HashMap<(u32, Vec<u8>), u64> = HashMap::new();
    let mut seen: HashSet<(u32, u64)> = HashSet::new();
    let mut handled = handled.lock().unwrap();
    println!("{} messages came twice", handled.len() as u64 - filler.sent);
    for (queue, key, offset) in handled.drain(..) {
        // What was finished and not committed comes again.
        if seen.insert((queue, offset)) {
            let before = last.insert((queue, key), offset);
            assert!(before.is_none_or(|before| before < offset), "{queue}: {before:?}, {offset}");
        }
    }
    assert_eq!(seen.len() as u64, filler.sent, "messages are missing");
}

/// Locks (41) or unlocks (42) all queues as somebody else; how many were granted.
fn lock(stage: &Stage, code: i32) -> usize {
    let queues: Vec<_> = (stage.queues.iter())
        .map(|queue| {
            let broker = queue.broker().unwrap();
            json!({ "topic": stage.topic, "brokerName": broker, "queueId": queue.index() })
        })
        .collect();
    let body = json!({ "consumerGroup": stage.group, "clientId": "else", "mqSet": queues });
    let route = stage.client.route(&stage.topic).unwrap();
    let (_, address) = route.masters().next().unwrap();
    let answer = ask(address, &Frame::request(code).with_body(body.to_string()));
    assert_eq!(answer.code, 0, "{answer:?}");
    // An unlock is answered without a body.
    let granted = if code == 41 { answer.json() } else { json!({}) };
    granted["lockOKMQSet"].as_array().map_or(0, Vec::len)
}
