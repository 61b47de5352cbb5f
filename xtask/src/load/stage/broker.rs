//! What the brokers' stages have in common.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::brokers::Place;
use crate::flags::Broker;
use crate::outcome::{Ended, say};

/// Where the broker answers: as this variable says, or on this machine, started if need be. It goes
/// on running: `cargo xtask brokers down` ends it.
pub(super) fn address(broker: Broker, variable: &str) -> Ended<String> {
    if let Ok(address) = std::env::var(variable) {
        return Ok(address);
    }
    let running = Place::usual(broker).up()?;
    say(&running.to_string());
    Ok(running.address)
}

/// A name that no other run has, for topic and group.
pub(super) fn unique_name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("load-{}-{}", now.as_millis(), std::process::id())
}

/// When the message that was written as the `written`-th counts as produced: when it was due.
pub(super) fn produced_at(pace: Option<crate::load::pace::Pace>, written: u64) -> Instant {
    let now = Instant::now();
    pace.map_or(now, |pace| pace.due(written).min(now))
}
