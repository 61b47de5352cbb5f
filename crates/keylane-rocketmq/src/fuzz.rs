//! Where fuzzers enter: each takes bytes as a broker might send them, and must return. Not part of
//! the public API.

use std::collections::HashSet;

use bytes::Bytes;
use keylane_source::{Position, QueueId};

use crate::KeyFrom;
use crate::source::pull::{Gaps, Pulled, Reading};
use crate::wire::body::{Connections, Locked, Members, RouteData, from_json};
use crate::wire::{Frame, message};

/// A stream of frames, lengths included.
pub fn frames(bytes: &[u8]) {
    let mut stream = bytes;
    while let Ok(Some(_)) = Frame::read_from(&mut stream) {}
}

/// The body of a pull's answer.
pub fn messages(bytes: &[u8]) {
    let _ = message::decode_all(Bytes::copy_from_slice(bytes));
}

/// An answer to a pull: its code, where reading goes on (one byte each), and its body.
///
/// # Panics
///
/// What comes out breaks the rules for a fetch: offsets ascend, from the position asked for and
/// below the new one.
pub fn pull(bytes: &[u8]) {
    let [code, next, body @ ..] = bytes else { return };
    let fields = [("nextBeginOffset", *next), ("minOffset", 0), ("maxOffset", 255)];
    let frame = Frame {
        code: i32::from(*code % 32),
        opaque: 1,
        flag: 1,
        remark: None,
        fields: fields
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.to_string()))
            .collect(),
        body: Bytes::copy_from_slice(body),
    };
    let reading = Reading { key: KeyFrom::FirstKey, tags: HashSet::new() };
    let queue = QueueId::on_broker("t", "a", 0);
    let asked = Position::from(keylane_source::Offset::ZERO);
    let Ok(Pulled::Found(found)) = reading.read(&frame, queue, asked, Gaps::Believe) else {
        return;
    };
    let mut expected = asked;
    for message in &found.messages {
        assert!(Position::from(message.offset()) >= expected);
        expected = message.offset().next();
    }
    assert!(expected <= found.position);
}

/// Bodies that are JSON.
pub fn json(bytes: &[u8]) {
    let _ = from_json::<RouteData>(bytes);
    let _ = from_json::<Members>(bytes);
    let _ = from_json::<Locked>(bytes);
    let _ = from_json::<Connections>(bytes);
}
