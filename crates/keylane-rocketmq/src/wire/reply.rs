//! What answers say.

use keylane_source::Position;

use super::body::{self, Cluster, Connections, Locked, Members, MessageQueue, RouteData};
use super::code::answer;
use super::{Frame, WireError};

/// An answer that is neither success nor anything that the caller expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The broker said no.
    Refused { code: i32, remark: String },
    /// It said something that cannot be understood.
    Unreadable(WireError),
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Self::Unreadable(error)
    }
}

impl Failure {
    pub(crate) fn refused(frame: &Frame) -> Self {
        Self::Refused { code: frame.code, remark: frame.remark().to_owned() }
    }
}

/// An answer without content.
pub(crate) fn done(frame: &Frame) -> Result<(), Failure> {
    if frame.code == answer::SUCCESS { Ok(()) } else { Err(Failure::refused(frame)) }
}

/// An offset that must be there.
pub(crate) fn offset(frame: &Frame) -> Result<Position, Failure> {
    done(frame)?;
    Ok(position(frame, "offset")?)
}

/// What a group has committed: `None` where it never did.
///
/// A negative number is how brokers write "none" where they have no code for it.
pub(crate) fn committed(frame: &Frame) -> Result<Option<Position>, Failure> {
    if frame.code == answer::QUERY_NOT_FOUND {
        return Ok(None);
    }
    done(frame)?;
    Ok(Position::from_i64(frame.number("offset")?))
}

pub(crate) fn route(frame: &Frame) -> Result<Option<RouteData>, Failure> {
    if frame.code == answer::TOPIC_NOT_EXIST {
        return Ok(None);
    }
    done(frame)?;
    let route: RouteData = body::from_json(&frame.body)?;
    let mapped = route.topic_queue_mapping_by_broker.as_ref();
    if mapped.and_then(|value| value.as_object()).is_some_and(|map| !map.is_empty()) {
        return Err(
            WireError::new("a static topic (queues mapped to brokers): not supported").into()
        );
    }
    Ok(Some(route))
}

pub(crate) fn cluster(frame: &Frame) -> Result<Cluster, Failure> {
    done(frame)?;
    Ok(body::from_json(&frame.body)?)
}

pub(crate) fn members(frame: &Frame) -> Result<Vec<String>, Failure> {
    done(frame)?;
    Ok(body::from_json::<Members>(&frame.body)?.client_ids)
}

pub(crate) fn connections(frame: &Frame) -> Result<Connections, Failure> {
    done(frame)?;
    Ok(body::from_json(&frame.body)?)
}

pub(crate) fn locked(frame: &Frame) -> Result<Vec<MessageQueue>, Failure> {
    done(frame)?;
    Ok(body::from_json::<Locked>(&frame.body)?.queues)
}

/// Where a message was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) message_id: String,
    pub(crate) queue: u32,
    pub(crate) offset: Position,
}

/// The codes between success and failure say that the message is stored, but not yet as safely as
/// the broker's own settings ask for; the Java client takes them for sent, too.
pub(crate) fn sent(frame: &Frame) -> Result<Sent, Failure> {
    use answer::{FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE, SUCCESS};
    match frame.code {
        SUCCESS => {}
        FLUSH_DISK_TIMEOUT | SLAVE_NOT_AVAILABLE | FLUSH_SLAVE_TIMEOUT => {
            log::warn!("a message was stored, but: {} (code {})", frame.remark(), frame.code);
        }
        _ => return Err(Failure::refused(frame)),
    }
    let queue = frame.number("queueId")?;
    Ok(Sent {
        message_id: frame.field("msgId")?.to_owned(),
        queue: u32::try_from(queue).map_err(|_| WireError::new(format!("queueId is {queue}")))?,
        offset: position(frame, "queueOffset")?,
    })
}

/// A field that must be there and be a position.
pub(crate) fn position(frame: &Frame, name: &'static str) -> Result<Position, WireError> {
    let number = frame.number(name)?;
    Position::from_i64(number).ok_or_else(|| WireError::new(format!("{name} is {number}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn frame(code: i32, fields: &[(&str, &str)], body: &'static [u8]) -> Frame {
        let fields = fields.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let body = Bytes::from_static(body);
        Frame { code, opaque: 1, flag: 1, remark: Some("because".to_owned()), fields, body }
    }

    #[test]
    fn none_and_failed_are_two_things() {
        let none = committed(&frame(22, &[], b""));
        assert_eq!(none, Ok(None));
        assert_eq!(committed(&frame(0, &[("offset", "-1")], b"")), Ok(None));
        assert_eq!(committed(&frame(0, &[("offset", "0")], b"")), Ok(Some(Position::ZERO)));
        let failed = committed(&frame(1, &[("offset", "0")], b""));
        assert_eq!(failed, Err(Failure::Refused { code: 1, remark: "because".to_owned() }));
        assert!(committed(&frame(0, &[], b"")).is_err());
        assert!(committed(&frame(0, &[("offset", "x")], b"")).is_err());
    }

    #[test]
    fn an_offset_is_never_negative() {
        let error = offset(&frame(0, &[("offset", "-1")], b"")).unwrap_err();
        assert_eq!(error, Failure::Unreadable(WireError::new("offset is -1")));
    }

    #[test]
    fn a_message_stored_less_safely_is_sent() {
        let fields = [("msgId", "7F"), ("queueId", "3"), ("queueOffset", "9")];
        let stored =
            Sent { message_id: "7F".to_owned(), queue: 3, offset: Position::new(9).unwrap() };
        for code in [0, 10, 11, 12] {
            assert_eq!(sent(&frame(code, &fields, b"")), Ok(stored.clone()), "{code}");
        }
        assert!(sent(&frame(13, &fields, b"")).is_err());
    }

    #[test]
    fn a_static_topic_is_refused_by_name() {
        let plain = br#"{"queueDatas":[],"brokerDatas":[],"topicQueueMappingByBroker":{}}"#;
        assert!(route(&frame(0, &[], plain)).unwrap().is_some());
        let mapped = br#"{"queueDatas":[],"brokerDatas":[],"topicQueueMappingByBroker":{"a":{}}}"#;
        let Failure::Unreadable(error) = route(&frame(0, &[], mapped)).unwrap_err() else {
            panic!("readable");
        };
        assert!(error.to_string().contains("static topic"), "{error}");
        assert!(route(&frame(17, &[], b"")).unwrap().is_none());
    }
}
