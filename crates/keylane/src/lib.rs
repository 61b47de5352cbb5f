#![forbid(unsafe_code)]
//! x
mod builder;
mod config;
mod consumer;
mod error;
mod listener;
mod metrics;
mod observer;
mod outcome;
mod pipeline;
mod report;
mod sync;
mod ticket;
mod time;

pub use builder::ConsumerBuilder;
pub use config::{Exhausted, FailurePolicy, Mode, NoKey, OutOfRange, StartFrom};
pub use consumer::{Consumer, Stopper};
pub use error::Error;
pub use listener::{
    Batch, BatchListener, Context, IntoListener, Listener, OrderlyContext, OrderlyListener,
    OrderlyStatus, listen,
};
pub use metrics::{Latency, Metrics, QueueMetrics, ShardMetrics};
pub use observer::{Event, HeldBy, Observer};
pub use outcome::{BatchHandled, BatchOutcome, BoxError, Deferred, Handled, Outcome};
pub use report::{Abandoned, Health, Holding, HoldingState, QueueReport, ShownKey, StopReport};
pub use ticket::Ticket;

pub use keylane_source as source;
pub use keylane_source::{
    Ack, DeadLetter, DeadLetterReason, DeadLetterSink, Headers, Message, Offset, Position, QueueId,
    Watermark,
};
