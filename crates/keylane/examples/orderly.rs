//! A listener in the shape of RocketMQ's MessageListenerOrderly, with order per key: the steps of a
//! transfer stay uncommitted until its last one; one transfer is rolled back and handled again.
//! `cargo run -p keylane --example orderly`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::HashMap;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use keylane::{BoxError, Consumer, Message, listen};
use keylane::{OrderlyContext, OrderlyListener, OrderlyStatus};
use keylane_log::{Log, Record};

const WAIT: Duration = Duration::from_secs(30);

/// One of these a shard: per transfer, what it comes to and how often it was rolled back.
struct Transfers(HashMap<Vec<u8>, (i64, u32)>, Sender<(String, i64, u32)>);

impl OrderlyListener for Transfers {
    fn consume(&mut self, messages: &[Message], context: &mut OrderlyContext) -> OrderlyStatus {
        context.set_auto_commit(false);
        context.set_suspend_current_queue_time(Duration::from_millis(20));
        let name = messages[0].key().unwrap_or_default(); // A call has messages of one key.
        let (sum, rollbacks) = self.0.entry(name.to_vec()).or_default();
        match messages[0].payload().unwrap_or_default() {
            b"end" => {
                let name = String::from_utf8_lossy(name).into_owned();
                let _ = self.1.send((name, *sum, *rollbacks));
                return OrderlyStatus::Commit;
            }
            b"refused once" if *rollbacks == 0 => {
                (*sum, *rollbacks) = (0, 1);
                return OrderlyStatus::Rollback; // From its first step on, in 20 ms.
            }
            step => *sum += step.len() as i64,
        }
        OrderlyStatus::Success // Kept, until Commit or Rollback.
    }
}

fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let log = Log::open(folder.path())?;
    log.create_topic("transfers", 2)?;
    let producer = log.producer("transfers")?;
    for step in ["a one", "b two", "a three", "b refused once", "a end", "b end"] {
        let (name, step) = step.split_once(' ').ok_or("name and step")?;
        producer.send(&Record::new().with_key(name).with_payload(step))?;
    }
    let (sender, ends) = mpsc::channel();
    let consumer = Consumer::builder(log.source("transfers", "bank")?)
        .batch_max(1)
        .start(listen::per_shard_orderly(move |_| Transfers(HashMap::new(), sender.clone())))?;
    let mut ended = [ends.recv_timeout(WAIT)?, ends.recv_timeout(WAIT)?];
    ended.sort();
    println!("{ended:?}; {}", consumer.stop(WAIT)?);
    assert_eq!(ended, [("a".to_owned(), 8, 0), ("b".to_owned(), 15, 1)]);
    Ok(())
}
