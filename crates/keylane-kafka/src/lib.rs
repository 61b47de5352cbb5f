//! A Kafka consumer group as a source of keylane.
