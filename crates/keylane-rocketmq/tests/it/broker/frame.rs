//! Frames, as the other side of the client under test writes and reads them.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;

use serde_json::{Value, json};

#[derive(Debug, Clone, Default)]
pub(crate) struct Frame {
    pub(crate) code: i32,
    pub(crate) opaque: i32,
    pub(crate) one_way: bool,
    pub(crate) fields: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Frame {
    pub(crate) fn answer(code: i32) -> Self {
        Self { code, ..Self::default() }
    }

    pub(crate) fn request(code: i32) -> Self {
        Self { code, ..Self::default() }
    }

    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.fields.insert(name.to_owned(), value.to_string());
        self
    }

    pub(crate) fn with_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn number(&self, name: &str) -> i64 {
        let value = self.fields.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name} in {self:?}"))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// `None`: the connection is gone.
    pub(crate) fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut word = [0; 4];
        stream.read_exact(&mut word).ok()?;
        let mut rest = vec![0; u32::from_be_bytes(word) as usize];
        stream.read_exact(&mut rest).ok()?;
        let header = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
        let body = rest.split_off(4 + header);
        let header: Value = serde_json::from_slice(&rest[4..]).unwrap();
        let number = |name: &str| i32::try_from(header[name].as_i64().unwrap()).unwrap();
        let fields = header["extFields"].as_object().into_iter().flatten();
        Some(Self {
            code: number("code"),
            opaque: number("opaque"),
            one_way: number("flag") & 2 != 0,
            fields: fields.map(|(k, v)| (k.clone(), v.as_str().unwrap().to_owned())).collect(),
            body,
        })
    }

    /// A peer that is gone does not matter.
    pub(crate) fn write(&self, opaque: i32, flag: i32, output: &Mutex<TcpStream>) {
        let header = json!({
            "code": self.code, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 479,
            "serializeTypeCurrentRPC": "JSON", "extFields": self.fields, "remark": "as told",
        });
        let header = serde_json::to_vec(&header).unwrap();
        let mut frame = Vec::new();
        let length = u32::try_from(4 + header.len() + self.body.len()).unwrap();
        frame.extend(length.to_be_bytes());
        frame.extend(u32::try_from(header.len()).unwrap().to_be_bytes());
        frame.extend(header);
        frame.extend(&self.body);
        let _ = output.lock().unwrap().write_all(&frame);
    }
}
