//! Where fuzzers enter. Not part of the public API.

use std::collections::BTreeMap;

use rdkafka::ClientConfig;
use rdkafka::config::NativeClientConfig;

use crate::config::{FIXED, OWNED};
use crate::{Error, KafkaProducer, KafkaSource, producer};

const SERVERS: &str = "127.0.0.1:1";
const GROUP: &str = "fuzz";

/// Properties as from a file, lines `name=value`, for a consumer and for a producer. librdkafka
/// takes them or refuses them; no client is made.
///
/// # Panics
///
/// What is refused is not named, one that is ours is not refused, or librdkafka has taken something
/// else than was set, than is fixed, or than the source believes.
pub fn properties(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    // A plugin is a library that librdkafka would load.
    let lines = text.lines().filter(|line| !line.contains("plugin"));
    let set: BTreeMap<_, _> = lines.filter_map(|line| line.split_once('=')).collect();

    let builder = KafkaSource::builder(SERVERS, GROUP).subscribe(["t"]);
    let builder = set.iter().fold(builder, |builder, (name, value)| builder.set(*name, *value));
    let options = builder.options();
    let config = options.as_ref().map(|_| builder.client_config()).map_err(Clone::clone);
    if let (Some(taken), Ok(options)) = (taken(&set, OWNED, config), options) {
        for (name, value) in FIXED.iter().chain(&[("group.id", GROUP)]) {
            assert_eq!(taken.get(name).as_deref(), Ok(*value), "{name} after {set:?}");
        }
        let is = |name: &str, value: &str| taken.get(name).as_deref() == Ok(value);
        assert_eq!(options.read_committed, is("isolation.level", "read_committed"), "{set:?}");
        let limit = |name: &str| taken.get(name).ok().and_then(|ms| ms.parse::<u128>().ok());
        let poll = limit("max.poll.interval.ms").unwrap_or_default();
        assert!(options.park_max.as_millis() < poll, "{options:?}: {set:?}");
        let bound = options.revoke_bound.as_micros();
        assert!(bound < poll * 1_000, "{options:?}: {set:?}");
        let session = limit("session.timeout.ms").unwrap_or_default();
        let has_session = is("group.protocol", "classic");
        assert!(!has_session || bound < session * 1_000, "{options:?}: {set:?}");
    }

    let builder = KafkaProducer::builder(SERVERS);
    let builder = set.iter().fold(builder, |builder, (name, value)| builder.set(*name, *value));
    taken(&set, producer::OWNED, builder.client_config());
}

/// What librdkafka made of it, if it was refused by neither side.
fn taken(
    set: &BTreeMap<&str, &str>,
    owned: &[(&str, &str)],
    config: Result<ClientConfig, Error>,
) -> Option<NativeClientConfig> {
    let refused = |error: String| {
        let is_named = |name: &&str| error.contains(*name) || error.contains(&format!("{name:?}"));
        assert!(set.keys().any(is_named), "{error}: {set:?}");
    };
    let config = config.map_err(|error| refused(error.to_string())).ok()?;
    for name in set.keys() {
        let plain = name.trim().to_ascii_lowercase();
        let plain = plain.strip_prefix("topic.").unwrap_or(&plain);
        let ours = owned.iter().find(|(known, _)| *known == plain);
        assert!(ours.is_none(), "{name:?} was accepted: {set:?}");
    }
    let native = config.create_native_config();
    let native = native.map_err(|error| refused(error.to_string())).ok()?;
    assert_eq!(native.get("bootstrap.servers").as_deref(), Ok(SERVERS), "{set:?}");
    for (name, value) in set {
        // Alone, nothing else can have changed it.
        let alone = ClientConfig::new().set(*name, *value).create_native_config();
        let alone = alone.map(|alone| stands(&alone, name));
        assert_eq!(Ok(stands(&native, name)), alone, "{name}={value} among {set:?}");
    }
    Some(native)
}

/// A property of topics is asked for without the prefix.
fn stands(native: &NativeClientConfig, name: &str) -> Option<String> {
    let of_topics = |_| native.get(name.strip_prefix("topic.").unwrap_or(name));
    native.get(name).or_else(of_topics).ok()
}
