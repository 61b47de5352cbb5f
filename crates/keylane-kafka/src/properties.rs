//! Properties of librdkafka: which are the user's to set, and what librdkafka is given.
//!
//! librdkafka takes a property by its name or an alias of it, and one that belongs to topics with
//! `topic.` before it as well. What is checked here is the property, however it is spelled, for the
//! order in which librdkafka gets different spellings of one property is nobody's choice.

use std::collections::BTreeMap;
use std::fmt;

use rdkafka::ClientConfig;

use crate::Error;

/// Other names of properties, as librdkafka's manual lists them, without those of tokens.
const ALIASES: &[(&str, &str)] = &[
    ("acks", "request.required.acks"),
    ("bootstrap.servers", "metadata.broker.list"),
    ("compression.type", "compression.codec"),
    ("delivery.timeout.ms", "message.timeout.ms"),
    ("linger.ms", "queue.buffering.max.ms"),
    ("max.in.flight", "max.in.flight.requests.per.connection"),
    ("max.partition.fetch.bytes", "fetch.message.max.bytes"),
    ("retries", "message.send.max.retries"),
    ("sasl.mechanism", "sasl.mechanisms"),
];

/// What only its owner may read is part of these names.
const SECRET: [&str; 5] = ["password", "secret", "key.pem", "private.key", "oauthbearer.config"];

/// What the user sets, by name; the last value of a name wins.
#[derive(Clone, Default)]
pub(crate) struct Properties {
    set: BTreeMap<String, String>,
}

impl Properties {
    pub(crate) fn set(&mut self, name: String, value: String) {
        self.set.insert(name, value);
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.set.get(name).map(String::as_str)
    }

    /// Rejects what is ours, what is set by two names, and what needs the `tls` feature where that
    /// is off.
    pub(crate) fn check(&self, owned: &[(&str, &str)]) -> Result<(), Error> {
        let mut named: BTreeMap<String, &str> = BTreeMap::new();
        for (name, value) in &self.set {
            check_no_nul("a property's name", name)?;
            if value.contains('\0') {
                let shown = shown(name, value);
                return Err(Error::new(format!("{name} holds a zero byte: {shown}")));
            }
            let property = property(name);
            let is_it = |known: &str| self::property(known) == property;
            if let Some((_, reason)) = owned.iter().find(|(known, _)| is_it(known)) {
                return Err(Error::new(format!("{name} cannot be set: {reason}")));
            }
            if !cfg!(feature = "tls") && needs_tls(&property, value) {
                return Err(Error::new(format!(
                    "{name} is {}: this build has no TLS; switch on the feature `tls` of \
                     keylane-kafka",
                    shown(name, value)
                )));
            }
            if property == "sasl.mechanisms" && plain(value) == "oauthbearer" {
                let text = format!("{name} is {value:?}: token refresh is not supported");
                return Err(Error::new(text));
            }
            if let Some(other) = named.insert(property, name) {
                let text = format!("{other} and {name} are one property: set one of them");
                return Err(Error::new(text));
            }
        }
        Ok(())
    }

    /// What librdkafka is given: the defaults that the user has not set, what the user has set, and
    /// at last what is fixed.
    pub(crate) fn config(&self, defaults: &[(&str, &str)], fixed: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        let is_set =
            |default: &str| self.set.keys().any(|name| property(name) == property(default));
        for (name, value) in defaults.iter().filter(|(name, _)| !is_set(name)) {
            config.set(*name, *value);
        }
        for (name, value) in &self.set {
            config.set(name, value);
        }
        for (name, value) in fixed {
            config.set(*name, *value);
        }
        config
    }

    /// librdkafka names the property whose file it could not use, not the file.
    pub(crate) fn name_files(&self, error: Error) -> Error {
        let mut text = error.to_string();
        let about = |name: &String| name.ends_with(".location") && error.to_string().contains(name);
        for (name, value) in self.set.iter().filter(|(name, _)| about(name)) {
            text += &format!("; {name} is {value:?}");
            if let Err(reason) = std::fs::metadata(value) {
                text += &format!(": {reason}");
            }
        }
        Error::new(text)
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (name, value) in &self.set {
            map.entry(name, &format_args!("{}", shown(name, value)));
        }
        map.finish()
    }
}

/// The property that a name means, or seems to mean: other spellings are unknown to librdkafka.
fn property(name: &str) -> String {
    let plain = plain(name);
    let name = plain.strip_prefix("topic.").unwrap_or(&plain);
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    alias.map_or(name, |(_, name)| name).to_owned()
}

fn plain(text: &str) -> String {
    text.trim().to_ascii_lowercase()
}

fn shown(name: &str, value: &str) -> String {
    let name = property(name);
    match SECRET.iter().any(|part| name.contains(part)) {
        true => "a secret".to_owned(),
        false => format!("{value:?}"),
    }
}

fn needs_tls(property: &str, value: &str) -> bool {
    let value = plain(value);
    match property {
        "security.protocol" => value == "ssl" || value == "sasl_ssl",
        "sasl.mechanisms" => value.starts_with("scram-"),
        // `ssl.ca.location` and `ssl_ca`; `https.ca.location`, for tokens.
        _ => ["ssl", "enable.ssl.", "https."].iter().any(|prefix| property.starts_with(prefix)),
    }
}

pub(crate) fn check_no_nul(what: &str, value: &str) -> Result<(), Error> {
    if value.contains('\0') {
        return Err(Error::new(format!("{what} holds a zero byte: {value:?}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
