//! Writes twenty changes of five accounts and consumes them, each account's in order; what fails
//! three times goes to a topic of its own.
//!
//! ```text
//! cargo run -p keylane-kafka --example orders -- 127.0.0.1:9092
//! ```
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keylane::{Consumer, FailurePolicy, Outcome, listen};
use keylane_kafka::{KafkaDeadLetters, KafkaProducer, KafkaSource, Record};

fn main() -> Result<(), Box<dyn Error>> {
    let servers = std::env::args().nth(1).ok_or("the servers are missing: host:port")?;
    let producer = KafkaProducer::builder(&servers).build()?;
    for n in 0..20 {
        let (account, change) = (format!("account-{}", n % 5), format!("change {}", n / 5));
        producer.send(Record::to("orders").key(account.as_bytes()).payload(change.as_bytes()))?;
    }
    producer.flush(Duration::from_secs(30))?;

    let left = AtomicU64::new(20);
    let consumer =
        Consumer::builder(KafkaSource::builder(&servers, "billing").subscribe(["orders"]).build()?)
            .shards(8)
            .failure(FailurePolicy::default().attempts_max(3))
            .dead_letters(KafkaDeadLetters::new(producer, "orders-dead"))
            .start(listen::each(move |message, context| {
                let account = str::from_utf8(message.key().unwrap_or_default())?;
                let change = str::from_utf8(message.payload().unwrap_or_default())?;
                println!("shard {}: {account}, {change}", context.shard());
                if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                    context.request_stop(); // A service would go on until it is told to stop.
                }
                Ok(Outcome::Done)
            }))?;
    println!("{}", consumer.wait()?);
    Ok(())
}
