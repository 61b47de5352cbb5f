//! A message that cannot be handled is tried three times, then goes to a topic of its own, and its
//! key goes on. Other keys do not notice. `cargo run -p keylane --example dead_letter`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::mpsc;
use std::time::Duration;

use keylane::{Ack, DeadLetter, DeadLetterSink, source::SourceError};
use keylane::{BoxError, Consumer, FailurePolicy, Outcome, listen};
use keylane_log::{Log, Producer, Record};

const WAIT: Duration = Duration::from_secs(30);

/// Stores dead letters in a topic of the log, and tells of them.
struct ToTopic(Producer, mpsc::Sender<String>);

impl DeadLetterSink for ToTopic {
    fn send(&mut self, letter: DeadLetter, ack: Ack) {
        let (reason, message) = (letter.reason.to_string(), &letter.message);
        let headers: [(&[u8], _); 1] = [(b"reason", Some(reason.as_bytes()))];
        let record = Record::new().with_headers(&headers);
        let record = record.with_key(message.key().unwrap_or_default());
        let _ = self.1.send(format!("{message:?}: {reason}"));
        match self.0.send(&record.with_payload(message.payload().unwrap_or_default())) {
            Err(error) => ack.failed(SourceError::retryable(error.to_string())),
            Ok(_) => ack.done(), // Only now does the message count as finished.
        }
    }
}

fn main() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let log = Log::open(folder.path())?;
    log.create_topic("changes", 2)?;
    log.create_topic("changes-dead", 1)?;
    let producer = log.producer("changes")?;
    for change in ["+5", "-3", "five", "+1", "drop table"] {
        producer.send(&Record::new().with_key("account-9").with_payload(change))?;
    }

    let (finished, all) = mpsc::channel();
    let consumer = Consumer::builder(log.source("changes", "billing")?)
        .failure(FailurePolicy::default().backoff(Duration::from_millis(5), WAIT).attempts_max(3))
        .dead_letters(ToTopic(log.producer("changes-dead")?, finished.clone()))
        .start(listen::each(move |message, context| {
            let text = str::from_utf8(message.payload().unwrap_or_default())?;
            if text.contains("drop") {
                return Ok(Outcome::DeadLetter("no need to try that again".to_owned()));
            }
            let change: i64 = text.parse()?; // An error is a failed attempt.
            finished.send(format!("{change}, attempt {}", context.attempt()))?;
            Ok(Outcome::Done)
        }))?;
    let order = (0..5).map(|_| all.recv_timeout(WAIT)).collect::<Result<Vec<_>, _>>()?;
    println!("{order:#?}\n{}", consumer.stop(WAIT)?);
    assert!(order[1].starts_with("-3") && order[2].contains("invalid digit"), "{order:?}");
    assert_eq!(log.topic("changes-dead")?.queues[0].end.get(), 2);
    Ok(())
}
