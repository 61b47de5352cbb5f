//! What a broker's queue locks cost: how long a renewal takes, by how many queues it names.
//!
//! `cargo run --release -p keylane-rocketmq --example locks -- 127.0.0.1:9876`
//!
//! Creates a topic for each number of queues, and is its group's only member.
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use std::time::{Duration, Instant};

use keylane_rocketmq::{Client, Config, RocketMqSource};
use keylane_source::{FetchLimits, LockReply, QueueId, Source, SourceEvent};

const QUEUES: [u32; 5] = [1, 4, 16, 64, 256];
const RENEWALS: usize = 200;
const LIMITS: FetchLimits = FetchLimits { messages: 1, bytes: 1 };

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::args().nth(1).ok_or("wanted: NAME_SERVER")?;
    let client = Client::new([server.clone()])?;
    println!("{:>7} {:>12} {:>12} {:>18}", "queues", "median", "99 of 100", "median per queue");
    for queues in QUEUES {
        let name = format!("locks-{queues}-{}", std::process::id());
        client.create_topic(&name, queues)?;
        let config = Config::new([server.clone()], name.clone()).subscribe(name, "*");
        let mut source = RocketMqSource::new(config.retries(false))?;
        let assigned = assigned(&mut source, queues as usize)?;
        let mut took = Vec::with_capacity(RENEWALS);
        for _ in 0..=RENEWALS {
            took.push(renew(&mut source, &assigned)?);
        }
        // The first one is no renewal.
        took.remove(0);
        took.sort();
        let (median, late) = (took[RENEWALS / 2], took[RENEWALS * 99 / 100]);
        println!("{queues:>7} {median:>12.1?} {late:>12.1?} {:>18.1?}", median / queues);
        source.locks().ok_or("no locks")?.release(&assigned);
        source.close(Duration::from_secs(5), &mut Vec::new())?;
    }
    Ok(())
}

fn assigned(
    source: &mut RocketMqSource,
    count: usize,
) -> Result<Vec<QueueId>, Box<dyn std::error::Error>> {
    let (mut queues, mut events) = (Vec::new(), Vec::new());
    while queues.len() < count {
        source.poll(LIMITS, Duration::from_secs(1), &mut events)?;
        queues.extend(events.drain(..).filter_map(|event| match event {
            SourceEvent::Assigned { queue, .. } => Some(queue),
            _ => None,
        }));
    }
    Ok(queues)
}

/// Asks for all locks in one request a broker, and waits for each queue's answer.
fn renew(
    source: &mut RocketMqSource,
    queues: &[QueueId],
) -> Result<Duration, Box<dyn std::error::Error>> {
    let start = Instant::now();
    source.locks().ok_or("no locks")?.acquire(queues);
    let (mut held, mut events) = (0, Vec::new());
    while held < queues.len() {
        source.poll(LIMITS, Duration::from_secs(1), &mut events)?;
        for event in events.drain(..) {
            match event {
                SourceEvent::Lock { reply: LockReply::Held, .. } => held += 1,
                SourceEvent::Lock { queue, reply } => {
                    return Err(format!("{queue}: {reply:?}").into());
                }
                _ => {}
            }
        }
    }
    Ok(start.elapsed())
}
