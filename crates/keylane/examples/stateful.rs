//! State without a lock: each shard sums up what belongs to its keys. Queues are airports, keys are
//! aircraft; the sum comes out right only if each aircraft's flights are handled in order.
//! `cargo run --release -p keylane --example stateful`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::{atomic::AtomicU64, atomic::Ordering::Relaxed, mpsc};
use std::{collections::HashMap, fs::File, io::Read};

use keylane::{BoxError, Consumer, Context, Handled, Listener, Message, Outcome, listen};
use keylane_log::{Log, Record};

/// The flights of 2013, and a few made-up ones for where they are not at hand.
const FLIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../xtask/data/flights-2013.csv.gz");
const MADE_UP: &str = "t,origin,tailnum,c,f,d,delay\n,JFK,N1,,,,9\n,JFK,N1,,,,-12\n,JFK,N1,,,,2\n";

static LEFT: AtomicU64 = AtomicU64::new(0);
/// One of these a shard: per airport and aircraft, the minutes that it is behind.
struct Tally(HashMap<(u32, Vec<u8>), i64>, mpsc::Sender<i64>);
impl Listener for Tally {
    fn on_message(&mut self, message: &Message, context: &mut Context<'_>) -> Handled {
        let delay = str::from_utf8(message.payload().unwrap_or_default())?;
        let key = message.key().unwrap_or_default().to_vec();
        let behind = self.0.entry((message.queue().index(), key)).or_default();
        *behind = (*behind + delay.parse::<i64>().unwrap_or(0)).max(0);
        if LEFT.fetch_sub(1, Relaxed) == 1 {
            context.request_stop();
        }
        Ok(Outcome::Done)
    }
    fn on_stop(&mut self) {
        let _ = self.1.send(self.0.values().sum());
    }
}

fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let log = Log::open(folder.path())?;
    log.create_topic("flights", 3)?;
    let (rows, right): (Box<dyn Read>, i64) = match File::open(FLIGHTS) {
        Ok(file) => (Box::new(flate2::read::GzDecoder::new(file)), 4_262_753),
        Err(_) => (Box::new(MADE_UP.as_bytes()), 2),
    };
    let (producer, mut rows) = (log.producer("flights")?, csv::Reader::from_reader(rows));
    let mut batch = producer.batch();
    for row in rows.records().collect::<Result<Vec<_>, _>>()? {
        let queue = if &row[1] == "EWR" { 0 } else { 1 + u32::from(&row[1] == "LGA") };
        let record = Record::new().to_queue(queue).with_payload(&row[6]);
        batch.push(&if row[2].is_empty() { record } else { record.with_key(&row[2]) })?;
    }
    LEFT.store(batch.len() as u64, Relaxed);
    producer.append(&mut batch)?;
    let (sender, sums) = mpsc::channel();
    let listener = listen::per_shard(move |_shard| Tally(HashMap::new(), sender.clone()));
    Consumer::builder(log.source("flights", "tally")?).start(listener)?.wait()?;
    let sums = Vec::from_iter(sums); // Ends with the last shard.
    println!("minutes behind, by shard: {sums:?}");
    assert_eq!(sums.iter().sum::<i64>(), right);
    Ok(())
}
