//! The smallest consumer: twenty changes of five accounts, each account's in order, accounts at the
//! same time. `cargo run -p keylane --example hello`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use keylane::{Consumer, Outcome, listen};
use keylane_log::{Log, Record};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let log = Log::open(folder.path())?;
    log.create_topic("changes", 4)?;
    let producer = log.producer("changes")?;
    for n in 0..20 {
        let (account, change) = (format!("account-{}", n % 5), format!("change {}", n / 5));
        producer.send(&Record::new().with_key(&account).with_payload(&change))?;
    }

    let left = AtomicU64::new(20);
    let consumer = Consumer::builder(log.source("changes", "billing")?).shards(8).start(
        listen::each(move |message, context| {
            let account = str::from_utf8(message.key().unwrap_or_default())?;
            let change = str::from_utf8(message.payload().unwrap_or_default())?;
            println!("shard {}: {account}, {change}", context.shard());
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                context.request_stop(); // A service would go on until it is told to stop.
            }
            Ok(Outcome::Done)
        }),
    )?;
    let report = consumer.wait()?;
    println!("{report}");
    assert!(report.all_committed() && report.unfinished == 0);
    Ok(())
}
