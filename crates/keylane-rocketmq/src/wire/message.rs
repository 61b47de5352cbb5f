//! Messages as a broker stores and sends them, one behind the other without anything in between.

use bytes::{BufMut, Bytes};

use super::compression::Compression;
use super::properties;
use super::read::{Reader, WireError};
use crate::Outgoing;

const MAGIC_V1: i32 = 0xDAA3_20A7_u32 as i32;
/// Topic names longer than 127 bytes: their length takes two bytes.
const MAGIC_V2: i32 = 0xDAA3_20AB_u32 as i32;

/// Bits of a message's flags.
pub(crate) const COMPRESSED: i32 = 0x1;
const BORN_ON_IPV6: i32 = 0x10;
const STORED_ON_IPV6: i32 = 0x20;
const NEED_UNWRAP: i32 = 0x40;
const INNER_BATCH: i32 = 0x80;

/// The shortest message: without body, topic and properties, with IPv4 hosts.
const LENGTH_MIN: usize = 91;
/// The shortest message of a batch: without body and properties.
const INNER_LENGTH_MIN: usize = 22;

/// The most that the compressed bodies of one answer may come to, decompressed.
const PLAIN_MAX: usize = 256 * 1024 * 1024;

/// A message of a pull. Bytes are slices of the answer, except a body that was compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) queue_id: i32,
    pub(crate) offset: i64,
    pub(crate) commit_log_offset: i64,
    pub(crate) store_host: Bytes,
    pub(crate) store_timestamp_ms: i64,
    pub(crate) reconsume_times: i32,
    /// The producer's own flag; means nothing here.
    pub(crate) flag: i32,
    pub(crate) topic: Bytes,
    pub(crate) properties: Bytes,
    pub(crate) body: Bytes,
}

/// All messages of a pull's body; those that were stored as one batch come one by one.
pub(crate) fn decode_all(body: Bytes) -> Result<Vec<Stored>, WireError> {
    let mut messages = Vec::with_capacity(body.len() / 256);
    let mut reader = Reader::new(body);
    let mut plain_left = PLAIN_MAX;
    while reader.left() > 0 {
        let at = messages.len();
        let one = decode_into(&mut reader, &mut plain_left, &mut messages);
        one.map_err(|error| error.inside(format_args!("message {at} of the answer")))?;
    }
    Ok(messages)
}

fn decode_into(
    reader: &mut Reader,
    plain_left: &mut usize,
    messages: &mut Vec<Stored>,
) -> Result<(), WireError> {
    let total = reader.i32("message length")?;
    let length = usize::try_from(total).unwrap_or(0);
    if length < LENGTH_MIN {
        return Err(WireError::new(format!("a message of {total} bytes")));
    }
    let mut reader = Reader::new(reader.slice(length - 4, "message")?);
    let magic = reader.i32("magic")?;
    if magic != MAGIC_V1 && magic != MAGIC_V2 {
        return Err(WireError::new(format!("begins with {magic:#010x}")));
    }
    let checksum = reader.u32("checksum")?;
    let queue_id = reader.i32("queue")?;
    let flag = reader.i32("flag")?;
    let offset = reader.i64("offset")?;
    let commit_log_offset = reader.i64("commit log offset")?;
    let flags = reader.i32("flags")?;
    let _born_timestamp_ms = reader.i64("born timestamp")?;
    reader.slice(host_length(flags & BORN_ON_IPV6 != 0), "born host")?;
    let store_timestamp_ms = reader.i64("store timestamp")?;
    let store_host = reader.slice(host_length(flags & STORED_ON_IPV6 != 0), "store host")?;
    let reconsume_times = reader.i32("reconsume times")?;
    let _prepared_transaction = reader.i64("prepared transaction")?;
    let body_length = reader.length("body length")?;
    let body = reader.slice(body_length, "body")?;
    let topic_length = match magic {
        MAGIC_V1 => usize::from(reader.u8("topic length")?),
        _ => usize::from(reader.u16("topic length")?),
    };
    let topic = reader.slice(topic_length, "topic")?;
    let properties_length = usize::from(reader.u16("properties length")?);
    let properties = reader.slice(properties_length, "properties")?;
    reader.finish("message")?;
    let body = plain_body(body, checksum, flags, plain_left)
        .map_err(|error| error.inside(format_args!("offset {offset}")))?;
    let message = Stored {
        queue_id,
        offset,
        commit_log_offset,
        store_host,
        store_timestamp_ms,
        reconsume_times,
        flag,
        topic,
        properties,
        body,
    };
    if flags & INNER_BATCH != 0 && flags & NEED_UNWRAP != 0 {
        return unwrap(&message, messages);
    }
    messages.push(message);
    Ok(())
}

fn host_length(ipv6: bool) -> usize {
    if ipv6 { 16 + 4 } else { 4 + 4 }
}

/// Checks the body and decompresses it.
fn plain_body(
    body: Bytes,
    checksum: u32,
    flags: i32,
    plain_left: &mut usize,
) -> Result<Bytes, WireError> {
    // Brokers store 31 bits of it, and nothing (zero) in some set-ups.
    let found = crc32fast::hash(&body) & 0x7fff_ffff;
    if checksum != 0 && checksum != found {
        let error = format!("the body's checksum is {found:#x}, {checksum:#x} was announced");
        return Err(WireError::new(error));
    }
    if flags & COMPRESSED == 0 || body.is_empty() {
        return Ok(body);
    }
    let plain = Compression::from_flags(flags)?.decompress(&body, *plain_left)?;
    *plain_left -= plain.len();
    Ok(plain)
}

/// The messages of a batch: offsets count from the batch's own, all else is the batch's.
fn unwrap(batch: &Stored, messages: &mut Vec<Stored>) -> Result<(), WireError> {
    let mut reader = Reader::new(batch.body.clone());
    let mut offset = batch.offset;
    while reader.left() > 0 {
        let inner = decode_inner(&mut reader)
            .map_err(|error| error.inside(format_args!("batch at offset {}", batch.offset)))?;
        let Inner { flag, body, properties } = inner;
        messages.push(Stored { offset, flag, body, properties, ..batch.clone() });
        offset = offset
            .checked_add(1)
            .ok_or_else(|| WireError::new(format!("a batch that ends behind {offset}")))?;
    }
    let announced = properties::decode(&batch.properties)
        .find(|(name, _)| name == properties::INNER_COUNT)
        .and_then(|(_, count)| std::str::from_utf8(&count).ok()?.parse::<i64>().ok());
    match announced {
        Some(count) if count != offset - batch.offset => Err(WireError::new(format!(
            "batch at offset {}: {count} messages announced, {} there",
            batch.offset,
            offset - batch.offset
        ))),
        _ => Ok(()),
    }
}

struct Inner {
    flag: i32,
    body: Bytes,
    properties: Bytes,
}

fn decode_inner(reader: &mut Reader) -> Result<Inner, WireError> {
    let total = reader.i32("message length")?;
    let length = usize::try_from(total).unwrap_or(0);
    if length < INNER_LENGTH_MIN {
        return Err(WireError::new(format!("a message of {total} bytes")));
    }
    let mut reader = Reader::new(reader.slice(length - 4, "message")?);
    let _magic = reader.i32("magic")?;
    let _checksum = reader.i32("checksum")?;
    let flag = reader.i32("flag")?;
    let body_length = reader.length("body length")?;
    let body = reader.slice(body_length, "body")?;
    let properties_length = usize::from(reader.u16("properties length")?);
    let properties = reader.slice(properties_length, "properties")?;
    reader.finish("message")?;
    Ok(Inner { flag, body, properties })
}

/// The body of a batch to be sent.
pub(crate) fn encode_batch(messages: &[Outgoing]) -> Result<Bytes, WireError> {
    let mut batch = Vec::new();
    for message in messages {
        let properties = properties::encode(&message.properties);
        let length = INNER_LENGTH_MIN + message.body.len() + properties.len();
        let (Ok(total), Ok(body), Ok(properties_length)) = (
            i32::try_from(length),
            i32::try_from(message.body.len()),
            i16::try_from(properties.len()),
        ) else {
            let error = format!(
                "a message with {} bytes of body and {} of properties",
                message.body.len(),
                properties.len()
            );
            return Err(WireError::new(error));
        };
        batch.put_i32(total);
        batch.put_i32(0); // magic
        batch.put_i32(0); // checksum
        batch.put_i32(message.flag);
        batch.put_i32(body);
        batch.put_slice(&message.body);
        batch.put_i16(properties_length);
        batch.put_slice(properties.as_bytes());
    }
    Ok(batch.into())
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod written;
