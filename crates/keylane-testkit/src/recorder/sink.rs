//! A dead-letter sink that tells the recorder what it has stored.

use keylane_source::{Ack, DeadLetter, DeadLetterSink};

use super::Recorder;
use crate::guarantee::Outcome;

/// Wraps a sink: a letter that it acknowledges is recorded as
/// [dead-lettered](Outcome::DeadLettered), before the engine hears of it.
#[derive(Debug)]
pub struct RecordedSink<S> {
    sink: S,
    recorder: Recorder,
}

impl<S: DeadLetterSink> RecordedSink<S> {
    /// The same sink, with this recorder listening.
    pub fn new(sink: S, recorder: &Recorder) -> Self {
        Self { sink, recorder: recorder.clone() }
    }
}

impl<S: DeadLetterSink> DeadLetterSink for RecordedSink<S> {
    fn send(&mut self, letter: DeadLetter, ack: Ack) {
        let later = self.recorder.later(&letter.message);
        let recorded = Ack::new(move |result| match result {
            Ok(()) => {
                later.settle(Outcome::DeadLettered);
                ack.done();
            }
            Err(error) => ack.failed(error),
        });
        self.sink.send(letter, recorded);
    }

    fn close(&mut self) {
        self.sink.close();
    }
}
