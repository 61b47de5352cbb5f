//! Writes keyed messages to a topic and reads them back as a member of a group.
//!
//! ```text
//! cargo run -p keylane-kafka --example orders -- 127.0.0.1:9092
//! ```
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::time::Duration;

use keylane_kafka::{KafkaProducer, KafkaSource, Record};
use keylane_source::{FetchLimits, SeekTo, Source, SourceEvent};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let servers = std::env::args().nth(1).ok_or("the servers are missing: host:port")?;
    let producer = KafkaProducer::builder(&servers).build()?;
    for n in 0..10 {
        let (account, payload) = (format!("account-{}", n % 3), format!("withdraw {n}"));
        let record = Record::to("orders").key(account.as_bytes()).payload(payload.as_bytes());
        producer.send(record)?;
    }
    producer.flush(Duration::from_secs(10))?;

    let mut source = KafkaSource::builder(&servers, "billing").subscribe(["orders"]).build()?;
    let limits = FetchLimits { messages: 100, bytes: 1 << 20 };
    let (mut read, mut events) = (0, Vec::new());
    while read < 10 {
        source.poll(limits, Duration::from_millis(500), &mut events)?;
        for event in events.drain(..) {
            match event {
                SourceEvent::Assigned { queue, .. } => source.seek(queue, SeekTo::Earliest),
                SourceEvent::Fetched(fetch) => {
                    read += fetch.messages.len();
                    fetch.messages.iter().for_each(|message| println!("{message:?}"));
                }
                SourceEvent::Revoking { queue } => source.release(queue),
                other => println!("{other:?}"),
            }
        }
    }
    source.close(Duration::from_secs(5), &mut events)?;
    Ok(())
}
