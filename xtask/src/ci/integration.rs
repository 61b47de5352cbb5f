//! The tests that need a real broker, as `cargo xtask integration` runs them.

use super::{Depth, Done, is_gate};
use crate::flags::Broker;
use crate::integration::{self, Tls};
use crate::outcome::Ended;

/// In the short form without TLS where OpenSSL would have to be compiled for it.
pub(super) fn kafka(depth: Depth) -> Ended<Done> {
    against(Broker::Kafka, if depth == Depth::Deep { Tls::Always } else { Tls::WhereItIs })
}

/// The same in both forms.
pub(super) fn rocketmq(_: Depth) -> Ended<Done> {
    against(Broker::Rocketmq, Tls::Always)
}

/// Where the broker cannot be started, for want of Java or Maven say, this is skipped; in the gate
/// it has failed.
fn against(broker: Broker, tls: Tls) -> Ended<Done> {
    match integration::start(broker) {
        Ok(started) => integration::test(started, tls).map(|()| Done::Passed),
        Err(failure) if is_gate() => Err(failure),
        Err(failure) => Ok(Done::Skipped(failure.to_string())),
    }
}
