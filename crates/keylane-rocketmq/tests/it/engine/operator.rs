//! What happens to the broker, to offsets and to locks while messages flow.

use std::time::{Duration, Instant};

use keylane::Mode;
use keylane_rocketmq::RocketMqSource;
use keylane_testkit::guarantee::Scope;
use keylane_testkit::tap::Tap;
use serde_json::json;

use super::lossy::{Losses, Lossy};
use super::{Filler, Stage, start, under_load, until, until_handled, until_reading, until_within};
use crate::apache::Apache;
use crate::broker::frame::Frame;
use crate::real::ask;

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
    let member = start(source, &stage.recorder, Mode::KeySharded, MS);
    until_reading(&member, 4);
    let mut filler = Filler::new(&stage, 400);
    under_load(
        &mut filler,
        || member.metrics().succeeded,
        || {
            for _ in 0..2 {
                until_handled(&member, 500);
                apache.kill();
                apache.restart();
            }
            until_handled(&member, 500);
        },
    );
    let (sent, ends) = (filler.sent, filler.ends);
    stage.until_committed(&ends);
    stage.end(vec![member], sent);
}

#[test]
fn offsets_that_the_operators_tool_resets_are_read_again() {
    let name = "offsets_that_the_operators_tool_resets_are_read_again";
    let Some(apache) = Apache::start(name, Duration::from_secs(60)) else { return };
    let stage = Stage::at(apache.address(), 4, Scope::key());
    // The broker would hold a pull for a minute, and not look at the offset meanwhile.
    let config = stage.config().hold(Duration::from_secs(60));
    let source = RocketMqSource::new(config).unwrap();
    let member = start(source, &stage.recorder, Mode::KeySharded, Duration::ZERO);
    until_reading(&member, 4);
    let mut filler = Filler::new(&stage, 400);
    filler.send(2_000);
    let (sent, ends) = (filler.sent, filler.ends);
    stage.until_committed(&ends);
    assert_eq!(member.metrics().succeeded, sent);
    let (topic, group) = (&stage.topic[..], &stage.group[..]);
    apache.mqadmin(&["resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "-f", "true"]);
    until_within(Duration::from_secs(30), "everything has come again", || {
        let done = member.metrics().succeeded;
        if done == 2 * sent { Ok(()) } else { Err(done.to_string()) }
    });
    stage.until_committed(&ends);
    // The reset explains them.
    let verdict = stage.end(vec![member], sent);
    assert_eq!(verdict.duplicates, sent, "{verdict}");
}

#[test]
fn a_lock_that_runs_out_stops_its_queue_until_it_is_held_again() {
    let name = "a_lock_that_runs_out_stops_its_queue_until_it_is_held_again";
    let Some(apache) = Apache::start(name, Duration::from_secs(8)) else { return };
    let stage = Stage::at(apache.address(), 2, Scope::key());
    let config = stage.config().lock_lease(Duration::from_secs(4));
    let losses = Losses::default();
    let source = Lossy::new(&losses).on(RocketMqSource::new(config).unwrap());
    let member = start(source, &stage.recorder, Mode::KeySharded, MS);
    until_reading(&member, 2);
    let mut filler = Filler::new(&stage, 40);
    under_load(
        &mut filler,
        || stage.recorder.verdict_so_far().delivered,
        || {
            until_handled(&member, 200);
            losses.set(true);
            // Another one gets them only when the broker takes them for given up, and by then no call
            // of ours runs any more.
            until("somebody else has the locks", || match lock(&stage, 41) {
                2 => Ok(()),
                locked => Err(format!("{locked} of them")),
            });
            let then = delivered(&stage);
            losses.set(false);
            for _ in 0..20 {
                assert_eq!(lock(&stage, 41), 2, "renewed");
                assert_eq!(delivered(&stage), then, "messages were handled without a lock");
            }
            lock(&stage, 42);
            let free = Instant::now();
            until_handled(&member, 1);
            println!("messages flow {:.1?} after the locks were free", free.elapsed());
            until_handled(&member, 200);
        },
    );
    let (sent, ends) = (filler.sent, filler.ends);
    stage.until_committed(&ends);
    // What was finished and not committed comes again; that the lock was lost explains it.
    let verdict = stage.end(vec![member], sent);
    println!("{} messages came twice", verdict.duplicates);
}

/// How many messages have been handled, those twice that came twice.
fn delivered(stage: &Stage) -> u64 {
    let verdict = stage.recorder.verdict_so_far();
    verdict.delivered + verdict.duplicates
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
