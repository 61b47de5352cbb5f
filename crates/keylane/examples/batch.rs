//! A listener that gets many messages a call, as one that writes to a database wants them. One
//! message fails at first: what stands before it in the call is finished, it comes again, and its
//! key's later ones behind it. `cargo run -p keylane --example batch`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use keylane::{BatchOutcome, BoxError, Consumer, listen};
use keylane_log::{Log, Record};

const WAIT: Duration = Duration::from_secs(30);

fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let log = Log::open(folder.path())?;
    log.create_topic("changes", 4)?;
    let producer = log.producer("changes")?;
    let mut batch = producer.batch();
    for n in 0..10_000 {
        let (key, value) = (format!("account-{}", n % 100), n.to_string());
        batch.push(&Record::new().with_key(&key).with_payload(&value))?;
    }
    producer.append(&mut batch)?;

    // What was stored of each account, in the order in which it was.
    let database: Arc<Mutex<HashMap<Vec<u8>, Vec<u64>>>> = Arc::default();
    let stored = Arc::clone(&database);
    let (progress, calls) = mpsc::channel();
    let listener = listen::batches(move |batch| {
        let mut database = database.lock().map_err(|_| "a call has panicked")?;
        for (index, message) in batch.iter().enumerate() {
            let value = str::from_utf8(message.payload().unwrap_or_default())?.parse()?;
            if value == 4_321 && batch.attempt(index) == 1 {
                progress.send(index)?;
                return Ok(BatchOutcome::FailedAt { index, error: "out of luck".into() });
            }
            database.entry(message.key().unwrap_or_default().to_vec()).or_default().push(value);
        }
        progress.send(batch.len())?;
        Ok(BatchOutcome::Done)
    });
    let source = log.source("changes", "database")?;
    let consumer = Consumer::builder(source).batch_max(500).start(listener)?;
    let mut finished = Vec::new();
    while finished.iter().sum::<usize>() < 10_000 {
        finished.push(calls.recv_timeout(WAIT)?);
    }
    let report = consumer.stop(WAIT)?;
    println!("{} calls, the largest of {:?}; {report}", finished.len(), finished.iter().max());

    let stored = stored.lock().map_err(|_| "a call has panicked")?;
    assert_eq!(stored.values().map(Vec::len).sum::<usize>(), 10_000);
    assert!(stored.values().all(|values| values.is_sorted()), "an account is out of order");
    Ok(())
}
