//! An Apache RocketMQ consumer group as a [`Source`](keylane_source::Source).
#![forbid(unsafe_code)]
