//! A broker that is killed and comes back, under load. `KEYLANE_KAFKA_RESTART` is a command that
//! does it (for `sh -c`), beside `KEYLANE_KAFKA`; without them the test says that it is skipped. It
//! disturbs every other test at the same broker: to be run by itself.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use keylane_kafka::Record;
use keylane_source::Source;

use crate::member::{Member, commit};
use crate::real_broker::Broker;

#[test]
fn nothing_is_lost_when_the_broker_is_killed_and_comes_back() {
    let Ok(restart) = std::env::var("KEYLANE_KAFKA_RESTART") else {
        println!("skipped: needs KEYLANE_KAFKA_RESTART, a command that kills and restarts it");
        return;
    };
    let Some(broker) = Broker::with_topic("restart", 4, &[]) else { return };
    let (sent, until) = (6_000_u64, Duration::from_secs(300));
    let producer = broker.producer();
    let mut member = Member::joined(broker.source().set("session.timeout.ms", "6000"), 4);
    let restarting = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        let status = Command::new("sh").args(["-c", &restart]).status();
        assert!(status.is_ok_and(|status| status.success()), "the restart failed");
    });
    let start = Instant::now();
    let mut next = 0;
    loop {
        while next < sent && u128::from(next) < start.elapsed().as_millis() {
            let payload = next.to_string();
            let record = Record::to(&broker.topic).key(payload.as_bytes());
            producer.send(record.payload(payload.as_bytes())).unwrap();
            next += 1;
        }
        member.poll(Duration::from_millis(5));
        for queue in member.owned.keys().copied().collect::<Vec<_>>() {
            if let Some(position) = member.positions.get(&queue)
                && position.get() % 100 < 10
            {
                member.source.commit(commit(queue, position.get(), ""));
            }
        }
        let seen: BTreeSet<_> = member.messages.values().flatten().map(|m| m.key()).collect();
        if seen.len() as u64 == sent {
            break;
        }
        let errors = &member.errors;
        assert!(start.elapsed() < until, "{} of {sent}, {errors:?}", seen.len());
    }
    restarting.join().unwrap();
    producer.flush(Duration::from_secs(30)).unwrap();
    // Commits work again, and a restart finds them.
    let ends: Vec<_> = member.positions.iter().map(|(queue, at)| (*queue, *at)).collect();
    for (queue, end) in &ends {
        member.source.commit(commit(*queue, end.get(), "end"));
    }
    member.until("the ends are committed", |m| {
        let stored =
            m.results.iter().filter(|(commit, result)| commit.metadata == "end" && result.is_ok());
        stored.count() == ends.len()
    });
    member.close().unwrap();
    let mut again = Member::joined(broker.source(), 4);
    again.until("the ends are told", |m| m.positions.len() == 4);
    assert_eq!(again.count(), 0);
    again.close().unwrap();
}
