use super::*;
use proptest::prelude::*;

/// A frame as the broker's JSON has it, without its own length.
fn json(header: &str, body: &[u8]) -> Bytes {
    let mut bytes = u32::try_from(header.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(body);
    bytes.into()
}

fn request(code: i32) -> Request {
    Request { code, one_way: false, fields: BTreeMap::new(), body: Bytes::new() }
}

#[test]
fn an_answer_of_a_broker() {
    let header = r#"{"code":0,"extFields":{"offset":"41","gone":null},"flag":1,"language":"JAVA",
        "opaque":7,"serializeTypeCurrentRPC":"JSON","version":479,"new":[1]}"#;
    let frame = Frame::decode(json(header, b"body")).unwrap();
    assert!(frame.is_response() && !frame.is_one_way());
    assert_eq!((frame.code, frame.opaque), (0, 7));
    assert_eq!(frame.number("offset"), Ok(41));
    assert_eq!(frame.field("gone").unwrap_err().to_string(), "the answer has no gone");
    assert_eq!(frame.body, &b"body"[..]);
    assert_eq!(frame.remark(), "no reason given");
}

#[test]
fn a_binary_notification_of_a_broker() {
    let mut header = Vec::new();
    header.extend_from_slice(&40i16.to_be_bytes());
    header.push(0); // language
    header.extend_from_slice(&479i16.to_be_bytes());
    header.extend_from_slice(&9i32.to_be_bytes());
    header.extend_from_slice(&2i32.to_be_bytes());
    header.extend_from_slice(&0i32.to_be_bytes()); // no remark
    header.extend_from_slice(&18i32.to_be_bytes());
    header.extend_from_slice(&11i16.to_be_bytes());
    header.extend_from_slice(b"consumerGro");
    header.extend_from_slice(&1i32.to_be_bytes());
    header.extend_from_slice(b"g");
    let mut bytes = vec![1, 0, 0, u8::try_from(header.len()).unwrap()];
    bytes.extend_from_slice(&header);
    let frame = Frame::decode(bytes.clone().into()).unwrap();
    assert_eq!((frame.code, frame.opaque, frame.is_one_way()), (40, 9, true));
    assert_eq!(frame.field("consumerGro"), Ok("g"));
    assert_eq!(frame.remark, None);
    // Each cut is an error, none a panic.
    for end in 4..bytes.len() {
        assert!(Frame::decode(bytes[..end].to_vec().into()).is_err(), "cut at {end}");
    }
}

#[test]
fn a_request_as_brokers_want_it() {
    let mut request = request(31);
    request.fields.insert("topic", "t".to_owned());
    request.body = Bytes::from_static(b"xy");
    let bytes = request.encode(5).unwrap();
    let header = r#"{"code":31,"flag":0,"language":"JAVA","opaque":5,"version":479,"#.to_owned()
        + r#""serializeTypeCurrentRPC":"JSON","extFields":{"topic":"t"}}"#;
    assert_eq!(bytes[4..8], u32::try_from(header.len()).unwrap().to_be_bytes());
    assert_eq!(&bytes[8..8 + header.len()], header.as_bytes());
    assert_eq!(&bytes[8 + header.len()..], b"xy");
    assert_eq!(bytes[..4], u32::try_from(4 + header.len() + 2).unwrap().to_be_bytes());
}

#[test]
fn frames_come_one_by_one_and_an_end_between_them_is_an_end() {
    let mut bytes = request(1).encode(1).unwrap();
    bytes.extend(request(2).encode(2).unwrap());
    let mut stream = &bytes[..];
    assert_eq!(Frame::read_from(&mut stream).unwrap().unwrap().opaque, 1);
    assert_eq!(Frame::read_from(&mut stream).unwrap().unwrap().opaque, 2);
    assert_eq!(Frame::read_from(&mut stream).unwrap(), None);
    for end in 1..10 {
        let error = Frame::read_from(&mut &bytes[..end]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "cut at {end}");
    }
}

#[test]
fn a_length_beyond_the_limit_is_refused_before_memory_is_set_aside() {
    let length = u32::try_from(FRAME_MAX + 1).unwrap().to_be_bytes();
    let error = Frame::read_from(&mut &length[..]).unwrap_err();
    assert_eq!(error.to_string(), "a frame of 16777217 bytes, the limit is 16777216");
    let mut big = request(1);
    big.body = vec![0; FRAME_MAX].into();
    assert!(big.encode(1).unwrap_err().to_string().contains("the limit is 16777216"));
}

#[test]
fn an_unknown_way_to_write_headers_is_an_error() {
    let error = Frame::decode(Bytes::from_static(&[2, 0, 0, 0])).unwrap_err();
    assert_eq!(error.to_string(), "header written in an unknown way (2)");
}

#[test]
fn what_cannot_be_fulfilled_is_answered() {
    let frame = Frame::decode(json(r#"{"code":307,"opaque":12,"flag":0}"#, b"")).unwrap();
    let answer = not_supported(&frame).unwrap();
    let answer = Frame::read_from(&mut &answer[..]).unwrap().unwrap();
    assert_eq!((answer.code, answer.opaque, answer.is_response()), (3, 12, true));
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        code in 0..400i32,
        opaque: i32,
        topic in "\\PC*",
        body in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut request = request(code);
        request.fields.insert("topic", topic.clone());
        request.body = body.clone().into();
        let bytes = request.encode(opaque).unwrap();
        let frame = Frame::read_from(&mut &bytes[..]).unwrap().unwrap();
        prop_assert_eq!(frame.field("topic"), Ok(&topic[..]));
        prop_assert_eq!((frame.code, frame.opaque), (code, opaque));
        prop_assert_eq!(&frame.body[..], &body[..]);
    }

    #[test]
    fn no_bytes_make_it_panic(
        kind in 0..3u8,
        bytes in proptest::collection::vec(any::<u8>(), 0..96),
    ) {
        let mut frame = vec![kind, 0, 0, u8::try_from(bytes.len() / 2).unwrap()];
        frame.extend_from_slice(&bytes);
        let _ = Frame::decode(frame.into());
        let _ = Frame::decode(bytes.into());
    }
}
