//! **What does each amount of order cost?** The same messages, key-sharded, queue-locked and
//! concurrent: with a listener that does nothing, and with one that waits for a tenth of a
//! millisecond. Each benchmark is named after the question that it answers.

use std::hint::black_box;
use std::time::Duration;

use benches::topic;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use keylane::{Consumer, Mode, Outcome, listen};

const MODES: [(&str, Mode); 3] = [
    ("queue-locked", Mode::QueueLocked),
    ("key-sharded", Mode::KeySharded),
    ("concurrent", Mode::Concurrent),
];
const QUEUES: u32 = 4;
const SHARDS: usize = 16;

/// Consumes so many messages, until all of them are committed.
fn consume(mode: Mode, messages: u64, work: Duration) {
    let topic = topic(QUEUES, messages);
    let consumer = Consumer::builder(topic.source())
        .mode(mode)
        .shards(SHARDS)
        .commit_interval(Duration::from_millis(2))
        .start(listen::each(move |message, _context| {
            if !work.is_zero() {
                std::thread::sleep(work);
            }
            black_box(message.payload());
            Ok(Outcome::Done)
        }))
        .expect("the options are right");
    while !topic.is_committed() {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let report = consumer.stop(Duration::from_secs(10)).expect("it stops");
    assert_eq!((report.unfinished, report.all_committed()), (0, true));
}

fn compare(criterion: &mut Criterion, question: &str, messages: u64, work: Duration) {
    let mut group = criterion.benchmark_group(question);
    group.throughput(Throughput::Elements(messages)).sample_size(10);
    for (name, mode) in MODES {
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| consume(mode, messages, work));
        });
    }
    group.finish();
}

fn modes(criterion: &mut Criterion) {
    compare(criterion, "how many messages does the engine move by itself", 100_000, Duration::ZERO);
    compare(
        criterion,
        "how much do sixteen threads gain when the listener waits",
        4_000,
        Duration::from_micros(100),
    );
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(5));
    targets = modes
}
criterion_main!(benches);
