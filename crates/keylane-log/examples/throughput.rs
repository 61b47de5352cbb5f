//! How fast the log appends and reads: `cargo run --release -p keylane-log --example throughput`.
//!
//! 100-byte records in 4 queues, in batches of 256 and of 1024, under each fsync policy; then all
//! of them through a `Source`, as the engine reads. CPU time is that of the whole process, the
//! store's own threads included; on a busy machine it tells more than the rate.
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

/// CPU time of this process so far, in ns, by hundredths of a second; 0 where `/proc` is missing.
fn cpu_ns() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 1e7
}

fn append(log: &Log, size: u32, records: u32) -> Result<(), Box<dyn Error>> {
    let producer = log.producer("t")?;
    let payload = [7; 92];
    let mut times = Vec::new();
    let mut batch = producer.batch();
    let (start, cpu) = (Instant::now(), cpu_ns());
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
    let cpu = (cpu_ns() - cpu) / f64::from(records);
    println!(
        "{:.2} M records/s, CPU {cpu:.0} ns a record, batch p99 {p99:.0?}, max {max:.0?}",
        rate / 1e6
    );
    Ok(())
}

fn scan(log: &Log, records: u32) -> Result<(), Box<dyn Error>> {
    let mut source = log.source("t", "g")?;
    let limits = FetchLimits { messages: 1024, bytes: 1 << 20 };
    let (mut seen, mut bytes, mut events) = (0, 0, Vec::new());
    let (start, cpu) = (Instant::now(), cpu_ns());
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
    let (cpu, mega) = ((cpu_ns() - cpu) / f64::from(records), bytes / 1_000_000);
    println!("{:>16}read {:.2} M records/s ({mega} MB), CPU {cpu:.0} ns a record", "", rate / 1e6);
    Ok(())
}
