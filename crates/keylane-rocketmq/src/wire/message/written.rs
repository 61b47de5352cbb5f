//! Messages as a broker writes them, for tests.

use bytes::BufMut;

/// A message as a broker writes it; the broker's side, written apart from the decoder.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) version: u8,
    pub(crate) queue: i32,
    pub(crate) flag: i32,
    pub(crate) offset: i64,
    pub(crate) flags: i32,
    pub(crate) body: Vec<u8>,
    pub(crate) topic: String,
    pub(crate) properties: String,
    pub(crate) checksum: Option<u32>,
}

impl Default for Written {
    fn default() -> Self {
        Self {
            version: 1,
            queue: 3,
            flag: 17,
            offset: 41,
            flags: 0,
            body: b"withdraw 5".to_vec(),
            topic: "orders".to_owned(),
            properties: "KEYS\u{1}account-9\u{2}".to_owned(),
            checksum: None,
        }
    }
}

impl Written {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        rest.put_i32(if self.version == 1 { -626_843_481 } else { -626_843_477 });
        rest.put_u32(self.checksum.unwrap_or(crc32fast::hash(&self.body) & 0x7fff_ffff));
        rest.put_i32(self.queue);
        rest.put_i32(self.flag);
        rest.put_i64(self.offset);
        rest.put_i64(1_000_000); // commit log offset
        rest.put_i32(self.flags);
        rest.put_i64(1_700_000_000_000); // born
        rest.put_bytes(1, if self.flags & 0x10 == 0 { 8 } else { 20 });
        rest.put_i64(1_700_000_000_123); // stored
        rest.put_bytes(2, if self.flags & 0x20 == 0 { 8 } else { 20 });
        rest.put_i32(2); // reconsume times
        rest.put_i64(0); // prepared transaction
        rest.put_i32(i32::try_from(self.body.len()).unwrap());
        rest.put_slice(&self.body);
        if self.version == 1 {
            rest.put_u8(u8::try_from(self.topic.len()).unwrap());
        } else {
            rest.put_u16(u16::try_from(self.topic.len()).unwrap());
        }
        rest.put_slice(self.topic.as_bytes());
        rest.put_u16(u16::try_from(self.properties.len()).unwrap());
        rest.put_slice(self.properties.as_bytes());
        let mut all = u32::try_from(rest.len() + 4).unwrap().to_be_bytes().to_vec();
        all.extend(rest);
        all
    }
}
