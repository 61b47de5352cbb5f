//! Which of a message's properties is its key.

use bytes::Bytes;

use crate::wire::properties::{KEYS, SHARDING_KEY};

/// Where a message's key comes from.
///
/// A message that lacks the property has no key. RocketMQ has no empty values: a key is never empty,
/// except [`FirstKey`](Self::FirstKey) of a `KEYS` that consists of spaces, which is no key either.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KeyFrom {
    /// `__SHARDINGKEY` (a producer's choice of queue, version 5's message group) where there is
    /// one, else the whole of `KEYS`.
    #[default]
    ShardingKeyOrKeys,
    /// The whole of `KEYS`, spaces and all.
    Keys,
    /// The first of `KEYS`, which are separated by spaces.
    FirstKey,
    /// The property of this name.
    Property(String),
}

impl KeyFrom {
    /// The key among these properties.
    pub(crate) fn select(&self, properties: &[(Bytes, Bytes)]) -> Option<Bytes> {
        let get = |name: &str| {
            properties.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        match self {
            Self::ShardingKeyOrKeys => get(SHARDING_KEY).or_else(|| get(KEYS)),
            Self::Keys => get(KEYS),
            Self::FirstKey => get(KEYS).and_then(|keys| first_word(&keys)),
            Self::Property(name) => get(name),
        }
    }
}

fn first_word(keys: &Bytes) -> Option<Bytes> {
    let start = keys.iter().position(|byte| *byte != b' ')?;
    let rest = keys.slice(start..);
    let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
    Some(rest.slice(..end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(from: &KeyFrom, properties: &[(&'static str, &'static str)]) -> Option<Bytes> {
        let properties: Vec<(Bytes, Bytes)> =
            properties.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        from.select(&properties)
    }

    #[test]
    fn each_way_to_a_key() {
        let both = [("KEYS", "a b"), ("__SHARDINGKEY", "s"), ("account", "9")];
        let keys = [("KEYS", "  a b"), ("account", "9")];
        let default = KeyFrom::default();
        assert_eq!(select(&default, &both), Some("s".into()));
        assert_eq!(select(&default, &keys), Some("  a b".into()));
        assert_eq!(select(&default, &[("account", "9")]), None);
        assert_eq!(select(&KeyFrom::Keys, &both), Some("a b".into()));
        assert_eq!(select(&KeyFrom::FirstKey, &both), Some("a".into()));
        assert_eq!(select(&KeyFrom::FirstKey, &keys), Some("a".into()));
        assert_eq!(select(&KeyFrom::FirstKey, &[("KEYS", "  ")]), None);
        assert_eq!(select(&KeyFrom::Property("account".into()), &both), Some("9".into()));
        assert_eq!(select(&KeyFrom::Property("none".into()), &both), None);
    }
}
