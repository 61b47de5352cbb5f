//! What a consumer says about itself: numbers in the text form that Prometheus scrapes, its health,
//! and what holds a watermark back. `cargo run -p keylane --example metrics`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::mpsc;
use std::time::Duration;

use keylane::{BoxError, Consumer, Event, FailurePolicy, Health, Metrics, Outcome, listen};
use keylane_log::{Log, Record};

const WAIT: Duration = Duration::from_secs(30);

fn prometheus(metrics: &Metrics) -> String {
    let plain = [
        ("succeeded_total counter", metrics.succeeded),
        ("failed_total counter", metrics.failed),
        ("in_flight gauge", metrics.in_flight),
        ("lanes_held gauge", metrics.lanes_held),
    ];
    let line = |(name, value): (&str, u64)| {
        format!(
            "# TYPE keylane_{name}\nkeylane_{} {value}\n",
            name.split(' ').next().unwrap_or(name)
        )
    };
    let lags = metrics.queues.iter().filter_map(|queue| Some((queue.queue, queue.lag?)));
    let lag = |(queue, lag)| format!("keylane_lag{{queue=\"{queue}\"}} {lag}\n");
    plain.map(line).concat() + "# TYPE keylane_lag gauge\n" + &lags.map(lag).collect::<String>()
}

fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let log = Log::open(folder.path())?;
    log.create_topic("changes", 2)?;
    let producer = log.producer("changes")?;
    for n in 0..100 {
        producer.send(&Record::new().with_key(&format!("account-{}", n % 10)))?;
    }

    let (sender, seen) = mpsc::channel();
    let failures = sender.clone();
    let consumer = Consumer::builder(log.source("changes", "billing")?)
        .failure(FailurePolicy::default().backoff(WAIT, WAIT)) // One key waits all the while.
        .observer(move |event: &Event| {
            let _ = matches!(event, Event::Failed { .. }).then(|| failures.send(()));
        })
        .start(listen::each(move |message, _context| match message.key() {
            Some(b"account-7") => Err("no such account".into()),
            _ => Ok(sender.send(()).map(|()| Outcome::Done)?),
        }))?;
    (0..91).try_for_each(|_| seen.recv_timeout(WAIT))?; // 90 messages and a failure.
    let health = consumer.health();
    println!("{}{health}", prometheus(&consumer.metrics()));
    consumer.holding().iter().for_each(|holding| println!("{holding}"));
    println!("{}", consumer.stop(WAIT)?);
    assert_eq!((consumer.metrics().succeeded, consumer.metrics().failed), (90, 1));
    assert!(matches!(health, Health::Degraded(_)));
    Ok(())
}
