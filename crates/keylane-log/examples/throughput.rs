//! How fast the log appends and reads: `cargo run --release -p keylane-log --example throughput`.
//!
//! 100-byte records in 4 queues, in batches of 256 and of 1024, under each fsync policy; then all of
//! them through a `Source`, as the engine reads.
#![expect(clippy::print_stdout, reason = "an example that reports")]

use std::error::Error;
use std::time::{Duration, Instant};

use keylane_log::{Fsync, Log, Options, Record};
use keylane_source::{FetchLimits, SeekTo, Source, SourceEvent};

const QUEUES: u32 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let interval = Fsync::default();
    let runs = [
        (interval, 256, 2_000_000),
        (interval, 1024, 2_000_000),
        (Fsync::Never, 256, 2_000_000),
        (Fsync::EveryBatch, 256, 256_000),
        (Fsync::EveryBatch, 1024, 1_024_000),
        (interval, 1, 100_000),
    ];
    for (fsync, batch, records) in runs {
        let folder = tempfile::tempdir()?;
        let log = Options::new().fsync(fsync).open(folder.path())?;
        log.create_topic("t", QUEUES)?;
        print!("{fsync:?}, batches of {batch}: ");
        append(&log, batch, records)?;
        scan(&log, records)?;
        drop(log);
        let opening = Instant::now();
        let log = Log::open(folder.path())?;
        println!("{:>16}opened again in {:.1} ms", "", opening.elapsed().as_secs_f64() * 1e3);
        print!("{:>16}", "");
        scan(&log, records)?;
    }
    Ok(())
}

fn append(log: &Log, size: u32, records: u32) -> Result<(), Box<dyn Error>> {
    let producer = log.producer("t")?;
    let payload = [7; 92];
    let mut times = Vec::new();
    let mut batch = producer.batch();
    let start = Instant::now();
    for first in (0..records).step_by(size as usize) {
        let began = Instant::now();
        for n in first..first + size {
            let key = u64::from(n % 4096).to_le_bytes();
            batch.push(&Record::new().with_key(&key).with_payload(&payload))?;
        }
        producer.append(&mut batch)?;
        times.push(began.elapsed());
    }
    let rate = f64::from(records) / start.elapsed().as_secs_f64();
    times.sort();
    let (p99, max) = (times[times.len() * 99 / 100], times[times.len() - 1]);
    println!("{:.2} M records/s, batch p99 {p99:.0?}, max {max:.0?}", rate / 1e6);
    Ok(())
}

fn scan(log: &Log, records: u32) -> Result<(), Box<dyn Error>> {
    let mut source = log.source("t", "g")?;
    let limits = FetchLimits { messages: 1024, bytes: 1 << 20 };
    let (mut seen, mut bytes, mut events) = (0, 0, Vec::new());
    let start = Instant::now();
    while seen < records as usize {
        source.poll(limits, Duration::from_secs(1), &mut events)?;
        for event in events.drain(..) {
            match event {
                SourceEvent::Assigned { queue, .. } => source.seek(queue, SeekTo::Earliest),
                SourceEvent::Fetched(fetch) => {
                    seen += fetch.messages.len();
                    bytes += fetch.messages.iter().map(|message| message.size()).sum::<usize>();
                }
                SourceEvent::QueueError { error, .. } => return Err(error.into()),
                _ => {}
            }
        }
    }
    let rate = f64::from(records) / start.elapsed().as_secs_f64();
    println!("{:>16}read {:.2} M records/s ({} MB)", "", rate / 1e6, bytes / 1_000_000);
    Ok(())
}
