//! What is sent: messages, and messages given back.

use bytes::Bytes;

use crate::wire::properties;

/// A message to be sent.
///
/// ```
/// use keylane_rocketmq::Outgoing;
///
/// let message = Outgoing::new("withdraw 5").key("account-9").property("trace", "4f");
/// assert_eq!(message.body(), b"withdraw 5");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    pub(crate) body: Bytes,
    pub(crate) properties: Vec<(String, String)>,
    pub(crate) flag: i32,
}

impl Outgoing {
    /// A message without properties.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), properties: Vec::new(), flag: 0 }
    }

    /// Sets the key: the property `KEYS`.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        self.property(properties::KEYS, key)
    }

    /// Sets the tag, which subscriptions filter by: the property `TAGS`.
    #[must_use]
    pub fn tag(self, tag: impl Into<String>) -> Self {
        self.property(properties::TAGS, tag)
    }

    /// Sets a property; one of the same name is replaced. An empty value removes it.
    ///
    /// Names and values must not contain the characters U+0001 and U+0002, which the protocol
    /// separates them by: sending such a message is an error.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        self.properties.retain(|(known, _)| *known != name);
        if !value.is_empty() {
            self.properties.push((name, value));
        }
        self
    }

    /// The body.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The value of a property.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.properties.iter().find(|(known, _)| known == name).map(|(_, value)| &value[..])
    }

    /// What makes the message impossible to send, if anything does.
    pub(crate) fn fault(&self) -> Option<String> {
        let bad = |text: &str| text.is_empty() || !properties::is_plain(text);
        let (name, _) = self.properties.iter().find(|(name, value)| bad(name) || bad(value))?;
        Some(format!("the property {name:?} contains a separator (U+0001, U+0002) or is empty"))
    }
}

/// A message given back to its broker, to be delivered again later or, with a negative
/// `delay_level` or too many tries, to be stored as a dead letter.
#[derive(Debug, Clone, Copy)]
pub struct SendBack<'a> {
    /// The topic that it was read from.
    pub topic: &'a str,
    /// Its place in the broker's commit log.
    pub commit_log_offset: i64,
    /// Its id.
    pub message_id: &'a str,
    /// When it comes again: 0 leaves that to the broker, 1 to 18 are its delay levels, a negative
    /// one makes it a dead letter at once.
    pub delay_level: i32,
    /// How often it may be given back before it becomes a dead letter.
    pub reconsume_times_max: i32,
}
