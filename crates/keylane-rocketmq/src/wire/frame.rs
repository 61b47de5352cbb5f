//! Frames: a length, a header and a body.
//!
//! ```text
//! 4 bytes  length of all that follows, at most FRAME_MAX
//! 4 bytes  how the header is written (1 byte: 0 JSON, 1 binary) and its length (3 bytes)
//!          header
//!          body, the rest
//! ```
//!
//! Headers are sent as JSON. Binary ones are understood too: a broker that is set to write them
//! does so in the requests that it sends on its own, notifications above all.

use std::collections::BTreeMap;
use std::io::{self, Read};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::read::{Reader, WireError};
use super::request::Request;
use super::{code, code::answer};

/// The longest frame that is read, without its own length: the Java side's limit.
pub(crate) const FRAME_MAX: usize = 16 * 1024 * 1024;

/// The most fields that a header may have.
const FIELDS_MAX: usize = 1024;

/// What a client is written in. Brokers before 4.9.4 do not know every language, all know this one.
const LANGUAGE: &str = "JAVA";

const RESPONSE: i32 = 0b01;
const ONE_WAY: i32 = 0b10;

/// A request or an answer, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    /// What is asked, or how it ended.
    pub(crate) code: i32,
    /// Ties an answer to its request.
    pub(crate) opaque: i32,
    pub(crate) flag: i32,
    /// What went wrong, in the broker's words.
    pub(crate) remark: Option<String>,
    pub(crate) fields: BTreeMap<String, String>,
    pub(crate) body: Bytes,
}

/// A header in JSON. Unknown members are ignored, as every version has had new ones.
#[derive(Deserialize)]
struct JsonHeader {
    code: i32,
    #[serde(default)]
    opaque: i32,
    #[serde(default)]
    flag: i32,
    #[serde(default)]
    remark: Option<String>,
    #[serde(default, rename = "extFields")]
    fields: Option<BTreeMap<String, Option<String>>>,
}

impl Frame {
    pub(crate) fn is_response(&self) -> bool {
        self.flag & RESPONSE != 0
    }

    pub(crate) fn is_one_way(&self) -> bool {
        self.flag & ONE_WAY != 0
    }

    pub(crate) fn remark(&self) -> &str {
        self.remark.as_deref().unwrap_or("no reason given")
    }

    /// Reads one frame; `None` at the end of the stream.
    pub(crate) fn read_from(stream: &mut impl Read) -> io::Result<Option<Self>> {
        let mut length = [0; 4];
        if !read_or_end(stream, &mut length)? {
            return Ok(None);
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > FRAME_MAX {
            let error = format!("a frame of {length} bytes, the limit is {FRAME_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        // Memory grows with what arrives, not with what was announced.
        let mut bytes = Vec::with_capacity(length.min(64 * 1024));
        if stream.take(length as u64).read_to_end(&mut bytes)? < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let frame = Self::decode(bytes.into())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Some(frame))
    }

    /// Decodes a frame without its own length.
    pub(crate) fn decode(bytes: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let word = reader.u32("header length")?;
        let header = reader.slice((word & 0x00ff_ffff) as usize, "header")?;
        let body = reader.rest();
        match word >> 24 {
            0 => Self::from_json(&header, body),
            1 => Self::from_binary(header, body),
            other => Err(WireError::new(format!("header written in an unknown way ({other})"))),
        }
    }

    fn from_json(header: &[u8], body: Bytes) -> Result<Self, WireError> {
        let header: JsonHeader = serde_json::from_slice(header)
            .map_err(|error| WireError::new(format!("header: {error}")))?;
        let fields = header.fields.unwrap_or_default();
        let fields = fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let JsonHeader { code, opaque, flag, remark, .. } = header;
        Ok(Self { code, opaque, flag, remark, fields, body })
    }

    fn from_binary(header: Bytes, body: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::new(header);
        let code = reader.i16("code")?.into();
        let _language = reader.u8("language")?;
        let _version = reader.i16("version")?;
        let (opaque, flag) = (reader.i32("opaque")?, reader.i32("flag")?);
        let remark = reader.length("remark length")?;
        let remark = match remark {
            0 => None,
            length => Some(utf8(&reader.slice(length, "remark")?)?),
        };
        let length = reader.length("fields length")?;
        let mut rest = Reader::new(reader.slice(length, "fields")?);
        reader.finish("header")?;
        let mut fields = BTreeMap::new();
        while rest.left() > 0 {
            if fields.len() == FIELDS_MAX {
                return Err(WireError::new(format!("more than {FIELDS_MAX} fields")));
            }
            let length = rest.u16("field name length")?;
            let name = utf8(&rest.slice(length.into(), "field name")?)?;
            let length = rest.length("field value length")?;
            fields.insert(name, utf8(&rest.slice(length, "field value")?)?);
        }
        Ok(Self { code, opaque, flag, remark, fields, body })
    }

    /// A field that must be there.
    pub(crate) fn field(&self, name: &'static str) -> Result<&str, WireError> {
        match self.fields.get(name) {
            Some(value) => Ok(value),
            None => Err(WireError::new(format!("the answer has no {name}"))),
        }
    }

    /// A field that must be there and be a number.
    pub(crate) fn number(&self, name: &'static str) -> Result<i64, WireError> {
        let value = self.field(name)?;
        value.parse().map_err(|_| WireError::new(format!("{name} is {value:?}, not a number")))
    }
}

#[derive(Serialize)]
struct JsonRequest<'a> {
    code: i32,
    flag: i32,
    language: &'static str,
    opaque: i32,
    version: i32,
    #[serde(rename = "serializeTypeCurrentRPC")]
    serialize_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    remark: Option<&'a str>,
    #[serde(rename = "extFields")]
    fields: &'a BTreeMap<&'static str, String>,
}

impl Request {
    /// The request as a frame, its length in front.
    pub(crate) fn encode(&self, opaque: i32) -> Result<Vec<u8>, WireError> {
        let header = JsonRequest {
            code: self.code,
            flag: if self.one_way { ONE_WAY } else { 0 },
            language: LANGUAGE,
            opaque,
            version: code::VERSION,
            serialize_type: "JSON",
            remark: None,
            fields: &self.fields,
        };
        assemble(&header, &self.body)
    }
}

/// The answer to a request that came from a broker and that nobody here can fulfil.
pub(crate) fn not_supported(request: &Frame) -> Result<Vec<u8>, WireError> {
    let header = JsonRequest {
        code: answer::REQUEST_CODE_NOT_SUPPORTED,
        flag: RESPONSE,
        language: LANGUAGE,
        opaque: request.opaque,
        version: code::VERSION,
        serialize_type: "JSON",
        remark: Some("this client does not answer such requests"),
        fields: &BTreeMap::new(),
    };
    assemble(&header, &[])
}

fn assemble(header: &JsonRequest<'_>, body: &[u8]) -> Result<Vec<u8>, WireError> {
    let header =
        serde_json::to_vec(header).map_err(|error| WireError::new(format!("header: {error}")))?;
    let length = 4 + header.len() + body.len();
    let (Ok(word), Ok(total)) = (u32::try_from(header.len()), u32::try_from(length)) else {
        return Err(WireError::new(format!("a frame of {length} bytes")));
    };
    if length > FRAME_MAX || word > 0x00ff_ffff {
        return Err(WireError::new(format!("a frame of {length} bytes, the limit is {FRAME_MAX}")));
    }
    let mut frame = Vec::with_capacity(4 + length);
    frame.extend_from_slice(&total.to_be_bytes());
    frame.extend_from_slice(&word.to_be_bytes());
    frame.extend_from_slice(&header);
    frame.extend_from_slice(body);
    Ok(frame)
}

fn utf8(bytes: &[u8]) -> Result<String, WireError> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(WireError::new(format!("text of the header: {error}"))),
    }
}

/// Fills `buffer`; `false` if the stream ends before its first byte.
fn read_or_end(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
