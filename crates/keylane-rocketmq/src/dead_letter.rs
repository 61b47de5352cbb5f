//! Dead letters, stored where Java's consumers store them.

use std::collections::BTreeSet;

use bytes::Bytes;
use keylane_source::{Ack, DeadLetter, DeadLetterSink, QueueId};

use crate::client::{Client, now_ms};
use crate::config::{check_name, retry_topic};
use crate::source::pull::{FLAG, MESSAGE_ID};
use crate::wire::properties::{
    DELAY, DLQ_ORIGIN_ID, DLQ_ORIGIN_TOPIC, MAX_RECONSUME_TIMES, ORIGIN_ID, RECONSUME_TIME,
    RETRY_TOPIC, TRANSACTION_PREPARED, UNIQUE_ID, is_plain,
};
use crate::wire::reply;
use crate::wire::request::{self, Tries};
use crate::{Error, Outgoing};

/// Why a message was given up, as a property of the dead letter.
const REASON: &str = "keylane.reason";
/// Set where the message had no body.
const EMPTY_BODY: &str = "keylane.empty_body";
/// Of the reason no more than this is kept: brokers limit all properties together to 32 KiB.
const REASON_MAX: usize = 1024;

/// Stores dead letters in the group's dead-letter topic, `%DLQ%group`.
///
/// As Java's orderly consumers do, a letter is sent to the group's retry topic with more tries than
/// are allowed, and the broker puts it into the dead-letter topic, which it creates when needed: on
/// the broker that the message came from, or on another one of the topic if that fails. All
/// properties are kept; `RETRY_TOPIC` and `DLQ_ORIGIN_TOPIC` name the topic, `ORIGIN_MESSAGE_ID`
/// and `DLQ_ORIGIN_MESSAGE_ID` the message, `keylane.reason` says why. A letter is acknowledged
/// once a broker has said that it is stored. Brokers take no empty body here: such a letter has a
/// body of one zero byte, and the property `keylane.empty_body`.
///
/// ```no_run
/// use keylane_rocketmq::RocketMqDeadLetters;
///
/// let sink = RocketMqDeadLetters::new(["127.0.0.1:9876"], "billing")?;
/// # Ok::<(), keylane_rocketmq::Error>(())
/// ```
#[derive(Debug)]
pub struct RocketMqDeadLetters {
    client: Client,
    group: String,
    topic: String,
}

impl RocketMqDeadLetters {
    /// A sink for the dead letters of this group. Connects with the first letter.
    ///
    /// # Errors
    ///
    /// No name server, or one that is not `host:port`; a group's name that brokers do not take.
    pub fn new<S: Into<String>>(
        name_servers: impl IntoIterator<Item = S>,
        group: impl Into<String>,
    ) -> Result<Self, Error> {
        let group = group.into();
        check_name("group", &group, crate::config::GROUP_MAX)?;
        Ok(Self { client: Client::new(name_servers)?, topic: retry_topic(&group), group })
    }

    fn store(&self, letter: &DeadLetter) -> Result<(), Error> {
        let queue = letter.message.queue();
        let message = outgoing(letter);
        // One more than is allowed, on every version.
        let made = letter.attempts.max(1);
        let tries = Tries { made, max: made - 1 };
        let mut failure = None;
        for address in self.brokers(queue)? {
            let (group, topic) = (&self.group[..], &self.topic[..]);
            let request = request::send(group, topic, None, &message, Some(tries), now_ms());
            match self.client.invoke(&address, request, reply::sent) {
                Ok(_) => return Ok(()),
                Err(error) => {
                    log::warn!("dead letter {queue} at {}: {error}", letter.message.offset());
                    failure = Some(error.doing(&address));
                }
            }
        }
        Err(failure.unwrap_or_else(|| Error::unreachable("no broker of the topic has a master")))
    }

    /// The queue's own broker, then the others of its topic.
    fn brokers(&self, queue: QueueId) -> Result<Vec<String>, Error> {
        let route = self.client.known_route(queue.topic())?;
        let own = queue.broker().and_then(|broker| route.master(broker)).map(str::to_owned);
        let others: BTreeSet<String> =
            route.masters().map(|(_, address)| address.to_owned()).collect();
        let others = others.into_iter().filter(|address| Some(address) != own.as_ref());
        Ok(own.clone().into_iter().chain(others).collect())
    }
}

impl DeadLetterSink for RocketMqDeadLetters {
    fn send(&mut self, letter: DeadLetter, ack: Ack) {
        match self.store(&letter) {
            Ok(()) => ack.done(),
            Err(error) => {
                let (queue, offset) = (letter.message.queue(), letter.message.offset());
                let place = format!("store dead letter {queue} at {offset}");
                ack.failed(error.doing(place).into());
            }
        }
    }
}

fn outgoing(letter: &DeadLetter) -> Outgoing {
    let message = &letter.message;
    let payload = message.payload_bytes().cloned().unwrap_or_default();
    let is_empty = payload.is_empty();
    let mut dead = Outgoing::new(if is_empty { Bytes::from_static(b"\0") } else { payload });
    // What would delay the letter, or be taken for the broker's own bookkeeping, stays behind.
    let dropped =
        [DELAY, TRANSACTION_PREPARED, RECONSUME_TIME, MAX_RECONSUME_TIMES, MESSAGE_ID, FLAG];
    for (name, value) in message.headers().iter() {
        let (name, value) = (text(name), text(value.unwrap_or_default()));
        if !dropped.contains(&&name[..]) && is_plain(&name) && is_plain(&value) {
            dead.properties.push((name, value));
        }
    }
    let header = |name: &str| message.headers().get(name).flatten().map(text);
    dead.flag = header(FLAG).and_then(|flag| flag.parse().ok()).unwrap_or(0);
    let topic = header(RETRY_TOPIC).unwrap_or_else(|| message.queue().topic().to_owned());
    let id = header(ORIGIN_ID).or_else(|| header(UNIQUE_ID)).or_else(|| header(MESSAGE_ID));
    let id = id.unwrap_or_default();
    let reason: String = letter.reason.to_string().chars().filter(|c| !c.is_control()).collect();
    let reason = &reason[..reason.floor_char_boundary(REASON_MAX)];
    dead.property(EMPTY_BODY, if is_empty { "true" } else { "" })
        .property(RETRY_TOPIC, &topic)
        .property(ORIGIN_ID, &id)
        .property(DLQ_ORIGIN_TOPIC, &topic)
        .property(DLQ_ORIGIN_ID, &id)
        .property(REASON, reason)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use keylane_source::{DeadLetterReason, Headers, Message, Offset};

    fn letter(headers: &[(&'static str, &'static str)], reason: &str) -> DeadLetter {
        let headers: Headers = headers.iter().map(|(name, value)| (*name, Some(*value))).collect();
        let message = Message::new(QueueId::on_broker("t", "a", 1), Offset::ZERO)
            .with_payload("withdraw 5")
            .with_headers(headers);
        DeadLetter::new(message, 4, DeadLetterReason::Listener(reason.into()))
    }

    #[test]
    fn properties_are_kept_and_origins_added() {
        let headers = [
            ("KEYS", "account-9"),
            ("UNIQ_KEY", "U"),
            ("DELAY", "3"),
            ("TRAN_MSG", "true"),
            ("RECONSUME_TIME", "3"),
            ("MAX_RECONSUME_TIMES", "3"),
            ("keylane.flag", "7"),
        ];
        let dead = outgoing(&letter(&headers, "no\u{1} such account"));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            dead.properties,
            [
                pair("KEYS", "account-9"),
                pair("UNIQ_KEY", "U"),
                pair("RETRY_TOPIC", "t"),
                pair("ORIGIN_MESSAGE_ID", "U"),
                pair("DLQ_ORIGIN_TOPIC", "t"),
                pair("DLQ_ORIGIN_MESSAGE_ID", "U"),
                pair("keylane.reason", "given up by the listener: no such account"),
            ]
        );
        assert_eq!((dead.body(), dead.flag), (&b"withdraw 5"[..], 7));
        assert_eq!(dead.fault(), None);
    }

    #[test]
    fn a_message_that_was_retried_keeps_its_first_origin() {
        let headers = [("RETRY_TOPIC", "first"), ("ORIGIN_MESSAGE_ID", "O"), ("UNIQ_KEY", "U")];
        let dead = outgoing(&letter(&headers, ""));
        assert_eq!(dead.get("RETRY_TOPIC"), Some("first"));
        assert_eq!(dead.get("DLQ_ORIGIN_TOPIC"), Some("first"));
        assert_eq!(dead.get("ORIGIN_MESSAGE_ID"), Some("O"));
        let unnamed = outgoing(&letter(&[("keylane.message_id", "M")], ""));
        assert_eq!(unnamed.get("ORIGIN_MESSAGE_ID"), Some("M"));
        assert_eq!(unnamed.get("keylane.message_id"), None);
    }

    #[test]
    fn a_long_reason_is_cut() {
        let dead = outgoing(&letter(&[], &"é".repeat(2_000)));
        let reason = dead.get("keylane.reason").unwrap();
        assert!(reason.len() <= REASON_MAX && reason.len() > REASON_MAX - 2, "{}", reason.len());
    }
}
