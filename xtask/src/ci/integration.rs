//! The tests that need a real broker, as `cargo xtask integration` runs them.

use super::{Depth, Done, is_gate};
use crate::brokers::Place;
use crate::flags::{Broker, RocketmqVersion};
use crate::integration::{self, Tls};
use crate::outcome::Ended;

/// In the short form without TLS where OpenSSL would have to be compiled for it.
pub(super) fn kafka(depth: Depth) -> Ended<Done> {
    let tls = if depth == Depth::Deep { Tls::Always } else { Tls::WhereItIs };
    against(Place::usual(Broker::Kafka), tls)
}

/// In the long form also on a broker of the line before.
pub(super) fn rocketmq(depth: Depth) -> Ended<Done> {
    let versions = match depth {
        Depth::Short => &[RocketmqVersion::Latest][..],
        Depth::Deep => &[RocketmqVersion::Latest, RocketmqVersion::Before5],
    };
    for version in versions {
        let place = Place::of_version(Broker::Rocketmq, *version);
        let done = against(place, Tls::Always)?;
        if !matches!(done, Done::Passed) {
            return Ok(done);
        }
    }
    Ok(Done::Passed)
}

/// Where the broker cannot be started, for want of Java or Maven say, this is skipped; in the gate
/// it has failed.
fn against(place: Place, tls: Tls) -> Ended<Done> {
    match integration::start(place) {
        Ok(started) => integration::test(started, tls).map(|()| Done::Passed),
        Err(failure) if is_gate() => Err(failure),
        Err(failure) => Ok(Done::Skipped(failure.to_string())),
    }
}
