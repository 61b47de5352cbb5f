//! RocketMQ's remoting protocol as values: bytes in, values or an error out. No I/O but reading a
//! frame from a stream, no clock, no thread.
//!
//! Invariants:
//!
//! 1. Every length that comes from outside is checked against what is there, and against a limit,
//!    before it is used or memory is set aside for it.
//! 2. A decoder uses up exactly the bytes that were announced to it; one byte more or less is an
//!    error. Nothing undecodable is skipped.
//! 3. Bodies, properties and topics of messages are slices of the frame that they came in; only
//!    compressed bodies are copied.

pub(crate) mod body;
pub(crate) mod code;
pub(crate) mod compression;
pub(crate) mod frame;
pub(crate) mod message;
pub(crate) mod properties;
pub(crate) mod read;
pub(crate) mod reply;
pub(crate) mod request;

pub(crate) use frame::Frame;
pub(crate) use read::WireError;
