//! The messages of one queue, kept as the bytes that a pull sends.

/// What is stored.
#[derive(Debug, Clone, Default)]
pub(crate) struct Put {
    pub(crate) body: Vec<u8>,
    /// Flags of the message: compressed, and how.
    pub(crate) flags: i32,
    pub(crate) properties: String,
    pub(crate) reconsume_times: i32,
    pub(crate) stored_ms: i64,
}

impl Put {
    pub(crate) fn new(body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.properties.push_str(&format!("{name}\u{1}{value}\u{2}"));
        self
    }

    pub(crate) fn property(&self, name: &str) -> Option<&str> {
        let pairs = self.properties.split('\u{2}').filter_map(|pair| pair.split_once('\u{1}'));
        pairs.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Log {
    /// The first offset that is still there.
    pub(crate) first: i64,
    /// Holes are offsets that no pull brings.
    pub(crate) messages: Vec<Option<Put>>,
}

impl Log {
    pub(crate) fn put(&mut self, put: Put) -> i64 {
        self.messages.push(Some(put));
        self.end() - 1
    }

    pub(crate) fn end(&self) -> i64 {
        self.first + i64::try_from(self.messages.len()).unwrap()
    }

    pub(crate) fn get(&self, offset: i64) -> Option<&Put> {
        let index = usize::try_from(offset - self.first).ok()?;
        self.messages.get(index)?.as_ref()
    }

    /// Forgets everything below `first`.
    pub(crate) fn trim(&mut self, first: i64) {
        self.messages.drain(..usize::try_from(first - self.first).unwrap());
        self.first = first;
    }

    /// Messages from `from` on whose tag is wanted, and where to read on.
    pub(crate) fn read(
        &self,
        topic: &str,
        queue: i32,
        from: i64,
        max: usize,
        tags: &[&str],
    ) -> (Vec<u8>, i64) {
        let (mut bytes, mut next, mut count) = (Vec::new(), from, 0);
        while next < self.end() && count < max {
            if let Some(put) = self.get(next) {
                let tag = put.property("TAGS").unwrap_or("");
                if tags.is_empty() || tags.iter().any(|wanted| hash(wanted) == hash(tag)) {
                    bytes.extend(put.encode(topic, queue, next));
                    count += 1;
                }
            }
            next += 1;
        }
        (bytes, next)
    }
}

/// Java's hash of a string, by which brokers compare tags.
fn hash(text: &str) -> u32 {
    text.encode_utf16().fold(0u32, |hash, unit| hash.wrapping_mul(31).wrapping_add(unit.into()))
}

impl Put {
    fn encode(&self, topic: &str, queue: i32, offset: i64) -> Vec<u8> {
        let mut rest = Vec::new();
        rest.extend(0xDAA3_20A7_u32.to_be_bytes());
        rest.extend(0u32.to_be_bytes()); // no checksum
        rest.extend(queue.to_be_bytes());
        rest.extend(0i32.to_be_bytes()); // flag
        rest.extend(offset.to_be_bytes());
        rest.extend((offset * 100).to_be_bytes()); // commit log
        rest.extend(self.flags.to_be_bytes());
        rest.extend(self.stored_ms.to_be_bytes());
        rest.extend([127, 0, 0, 1, 0, 0, 0, 9]);
        rest.extend(self.stored_ms.to_be_bytes());
        rest.extend([127, 0, 0, 1, 0, 0, 0, 9]);
        rest.extend(self.reconsume_times.to_be_bytes());
        rest.extend(0i64.to_be_bytes());
        rest.extend(u32::try_from(self.body.len()).unwrap().to_be_bytes());
        rest.extend(&self.body);
        rest.push(u8::try_from(topic.len()).unwrap());
        rest.extend(topic.as_bytes());
        rest.extend(u16::try_from(self.properties.len()).unwrap().to_be_bytes());
        rest.extend(self.properties.as_bytes());
        let mut all = u32::try_from(rest.len() + 4).unwrap().to_be_bytes().to_vec();
        all.extend(rest);
        all
    }
}
