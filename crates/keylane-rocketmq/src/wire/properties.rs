//! Properties: names and values, as one string with separators that are control characters.

use bytes::Bytes;

const AFTER_NAME: u8 = 1;
const AFTER_VALUE: u8 = 2;

/// The names that mean something to brokers and clients.
pub(crate) const KEYS: &str = "KEYS";
pub(crate) const SHARDING_KEY: &str = "__SHARDINGKEY";
pub(crate) const TAGS: &str = "TAGS";
pub(crate) const UNIQUE_ID: &str = "UNIQ_KEY";
pub(crate) const RETRY_TOPIC: &str = "RETRY_TOPIC";
pub(crate) const ORIGIN_ID: &str = "ORIGIN_MESSAGE_ID";
pub(crate) const DLQ_ORIGIN_TOPIC: &str = "DLQ_ORIGIN_TOPIC";
pub(crate) const DLQ_ORIGIN_ID: &str = "DLQ_ORIGIN_MESSAGE_ID";
pub(crate) const RECONSUME_TIME: &str = "RECONSUME_TIME";
pub(crate) const MAX_RECONSUME_TIMES: &str = "MAX_RECONSUME_TIMES";
pub(crate) const DELAY: &str = "DELAY";
pub(crate) const TRANSACTION_PREPARED: &str = "TRAN_MSG";
pub(crate) const INNER_COUNT: &str = "INNER_NUM";

/// The pairs of a property string, shared. Pairs without a name or a value are left out, as the
/// Java client does; so is a last piece that has no separator.
pub(crate) fn decode(properties: &Bytes) -> impl Iterator<Item = (Bytes, Bytes)> {
    let mut rest = properties.clone();
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let end = rest.iter().position(|b| *b == AFTER_VALUE).unwrap_or(rest.len());
            let mut pair = rest.split_to(end);
            if !rest.is_empty() {
                let _ = rest.split_to(1);
            }
            let Some(name) = pair.iter().position(|b| *b == AFTER_NAME) else { continue };
            let name = pair.split_to(name);
            let value = pair.slice(1..);
            if !name.is_empty() && !value.is_empty() {
                return Some((name, value));
            }
        }
        None
    })
}

/// The pairs as a property string.
pub(crate) fn encode(properties: &[(String, String)]) -> String {
    let mut text = String::new();
    for (name, value) in properties {
        text.push_str(name);
        text.push(char::from(AFTER_NAME));
        text.push_str(value);
        text.push(char::from(AFTER_VALUE));
    }
    text
}

/// Whether a name or value can be part of a property string.
pub(crate) fn is_plain(text: &str) -> bool {
    !text.bytes().any(|byte| byte == AFTER_NAME || byte == AFTER_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(text: &'static str) -> Vec<(Bytes, Bytes)> {
        decode(&Bytes::from_static(text.as_bytes())).collect()
    }

    #[test]
    fn pairs_without_name_or_value_are_left_out() {
        let pair = |name: &'static str, value: &'static str| (name.into(), value.into());
        assert_eq!(pairs("A\u{1}1\u{2}B\u{1}2\u{2}"), [pair("A", "1"), pair("B", "2")]);
        assert_eq!(pairs("A\u{1}1\u{2}B\u{1}2"), [pair("A", "1"), pair("B", "2")]);
        assert_eq!(pairs("\u{1}1\u{2}B\u{1}\u{2}C\u{2}D\u{1}\u{1}x\u{2}"), [pair("D", "\u{1}x")]);
        assert_eq!(pairs(""), []);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            list in proptest::collection::vec(("[^\u{1}\u{2}]{1,8}", "[^\u{1}\u{2}]{1,8}"), 0..8),
        ) {
            let list: Vec<(String, String)> = list;
            let text = Bytes::from(encode(&list));
            let back: Vec<(String, String)> = decode(&text)
                .map(|(name, value)| (
                    String::from_utf8(name.to_vec()).unwrap(),
                    String::from_utf8(value.to_vec()).unwrap(),
                ))
                .collect();
            prop_assert_eq!(back, list);
        }

        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(0u8..4, 0..64)) {
            let _ = decode(&Bytes::from(bytes)).count();
        }
    }
}
