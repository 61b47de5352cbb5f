//! Reads a topic to its end as a group's only member, and says how fast that went.
//!
//! `cargo run --release -p keylane-rocketmq --example drain -- 127.0.0.1:9876 TOPIC QUEUES [MESSAGES]`
//!
//! With a number of messages it first creates the topic and fills it: 100 bytes each, 1,000 keys.
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use keylane_rocketmq::{Client, Config, Outgoing, RocketMqSource};
use keylane_source::{EndOffset, FetchLimits, SeekTo, Source, SourceEvent};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, topic, queues, fill @ ..] = &arguments[..] else {
        return Err("wanted: NAME_SERVER TOPIC QUEUES [MESSAGES]".into());
    };
    let queues: u32 = queues.parse()?;
    if let [messages] = fill {
        write(server, topic, queues, messages.parse()?)?;
    }
    let group = format!("drain-{}", std::process::id());
    let config = Config::new([server.clone()], group).subscribe(topic.clone(), "*").retries(false);
    let mut source = RocketMqSource::new(config)?;
    let limits = FetchLimits { messages: 1_024, bytes: 1 << 20 };
    let (mut events, mut messages, mut bytes, mut finished) = (Vec::new(), 0, 0, BTreeSet::new());
    let mut start = Instant::now();
    while finished.len() < queues as usize {
        source.poll(limits, Duration::from_secs(1), &mut events)?;
        for event in events.drain(..) {
            match event {
                SourceEvent::Assigned { queue, .. } => {
                    source.seek(queue, SeekTo::Earliest);
                    start = Instant::now();
                }
                SourceEvent::Fetched(fetch) => {
                    messages += fetch.messages.len();
                    bytes += fetch.messages.iter().map(|message| message.size()).sum::<usize>();
                    if fetch.end == EndOffset::At(fetch.position) {
                        finished.insert(fetch.queue);
                    }
                }
                SourceEvent::End { queue, .. } => {
                    finished.insert(queue);
                }
                SourceEvent::QueueError { error, .. } => return Err(error.into()),
                _ => {}
            }
        }
    }
    let elapsed = start.elapsed();
    let rate = messages as f64 / elapsed.as_secs_f64();
    println!("{messages} messages, {bytes} bytes in {elapsed:.2?}: {rate:.0} a second");
    source.close(Duration::from_secs(5), &mut events)?;
    Ok(())
}

fn write(
    server: &str,
    topic: &str,
    queues: u32,
    messages: u32,
) -> Result<(), keylane_rocketmq::Error> {
    let client = Client::new([server])?;
    let route = client.create_topic(topic, queues)?;
    let start = Instant::now();
    let body = "x".repeat(100);
    let numbers: Vec<u32> = (0..messages).collect();
    for (index, numbers) in numbers.chunks(500).enumerate() {
        let queue = route.writable()[index % route.writable().len()];
        let message = |n: &u32| Outgoing::new(body.clone()).key(format!("k{}", n % 1_000));
        let batch: Vec<Outgoing> = numbers.iter().map(message).collect();
        client.send_batch(queue, &batch)?;
    }
    println!("{messages} messages written in {:.2?}", start.elapsed());
    Ok(())
}
