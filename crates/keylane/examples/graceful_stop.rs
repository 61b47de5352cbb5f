//! Ctrl-C: what has begun is finished and committed, then the program ends, and the next run would
//! go on from there. Without a terminal it stops by itself after a while.
//! `cargo run -p keylane --example graceful_stop`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::io::{IsTerminal, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use keylane::{BoxError, Consumer, Outcome, listen};
use keylane_log::{Log, Record};

const MESSAGES: u64 = 200_000;

fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let log = Log::open(folder.path())?;
    log.create_topic("changes", 4)?;
    let producer = log.producer("changes")?;
    let mut batch = producer.batch();
    for n in 0..MESSAGES {
        batch.push(&Record::new().with_key(&(n % 1_000).to_be_bytes()).with_payload("+1"))?;
    }
    producer.append(&mut batch)?;

    let most = if stdin().is_terminal() { MESSAGES } else { 5_000 };
    let handled = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&handled);
    let consumer = Consumer::builder(log.source("changes", "billing")?)
        .stop_timeout(Duration::from_secs(10)) // The deadline of a stop by a stopper or a listener.
        .start(listen::each(move |_message, context| {
            work();
            if count.fetch_add(1, Relaxed) + 1 == most {
                context.request_stop();
            }
            Ok(Outcome::Done)
        }))?;
    let stopper = consumer.stopper();
    ctrlc::set_handler(move || stopper.stop())?;
    println!("{MESSAGES} messages; Ctrl-C ends it early");
    let report = consumer.wait()?;

    println!("{report}");
    let committed: u64 =
        report.queues.iter().filter_map(|queue| queue.committed).map(|at| at.get()).sum();
    let again: u64 = report.queues.iter().map(|queue| queue.finished_above).sum();
    println!("{} handled, {committed} committed, {again} would come again", handled.load(Relaxed));
    assert_eq!(committed + again, handled.load(Relaxed));
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "it stands for a millisecond's work")]
fn work() {
    std::thread::sleep(Duration::from_millis(1));
}
