//! Rows of a CSV file, plain or gzip, as messages. The bytes are somebody else's: whatever is wrong
//! with them is an error that names file and row.
//!
//! A file is read twice, once to learn its queues and once to write them, so that memory does not
//! grow with it, and so that a bad row is found before anything was written.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use csv::ByteRecord;
use flate2::bufread::MultiGzDecoder;

use crate::outcome::{Ended, Failure};

/// As many as a topic of the embedded log can have.
const QUEUES_MAX: usize = 65_536;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Rows, one after the other, with the columns that matter.
pub(super) struct Rows {
    reader: csv::Reader<Box<dyn Read>>,
    file: String,
    header: ByteRecord,
    key: usize,
    queue: usize,
    row: u64,
    record: ByteRecord,
}

/// What one pass over a file tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Survey {
    /// The queues' names, sorted: a queue's index is its place here.
    pub(super) queues: Vec<Vec<u8>>,
    pub(super) rows: u64,
    /// Distinct keys, and rows without one.
    pub(super) keys: u64,
    pub(super) keyless: u64,
}

impl Rows {
    /// Opens a file with a header that has these columns.
    pub(super) fn open(path: &Path, key: &str, queue: &str) -> Ended<Self> {
        let shown = path.display().to_string();
        let file = File::open(path);
        let file = file.map_err(|error| Failure::other(format!("read {shown}"), error))?;
        Self::read(file, &shown, key, queue)
    }

    /// Reads what a file holds, which is called `shown` where something is wrong with it.
    pub(super) fn read(
        bytes: impl Read + 'static,
        shown: &str,
        key: &str,
        queue: &str,
    ) -> Ended<Self> {
        let open = || -> std::io::Result<Box<dyn Read>> {
            let mut bytes = BufReader::with_capacity(1 << 16, bytes);
            if bytes.fill_buf()?.starts_with(&GZIP_MAGIC) {
                return Ok(Box::new(MultiGzDecoder::new(bytes)));
            }
            Ok(Box::new(bytes))
        };
        let reader = open().map_err(|error| Failure::other(format!("read {shown}"), error))?;
        let mut reader = csv::ReaderBuilder::new().from_reader(reader);
        let header = reader.byte_headers().cloned();
        let header = header.map_err(|error| describe(shown, 0, &error))?;
        let column = |name: &str| {
            header.iter().position(|column| column == name.as_bytes()).ok_or_else(|| {
                let there: Vec<_> = header.iter().map(String::from_utf8_lossy).collect();
                Failure::usage(format!(
                    "{shown} has no column {name:?}; its columns are: {}",
                    there.join(", ")
                ))
            })
        };
        let (key, queue) = (column(key)?, column(queue)?);
        Ok(Self {
            reader,
            file: shown.to_owned(),
            header,
            key,
            queue,
            row: 0,
            record: ByteRecord::new(),
        })
    }

    /// Where this column is.
    pub(super) fn column(&self, name: &str) -> Option<usize> {
        self.header.iter().position(|column| column == name.as_bytes())
    }

    /// The next row; `None` at the end.
    pub(super) fn next(&mut self) -> Ended<Option<Row<'_>>> {
        self.row += 1;
        match self.reader.read_byte_record(&mut self.record) {
            Ok(false) => Ok(None),
            Ok(true) => Ok(Some(Row { record: &self.record, key: self.key, queue: self.queue })),
            Err(error) => Err(describe(&self.file, self.row, &error)),
        }
    }
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    record: &'a ByteRecord,
    key: usize,
    queue: usize,
}

impl<'a> Row<'a> {
    /// The key; an empty field is none.
    pub(super) fn key(&self) -> Option<&'a [u8]> {
        self.record.get(self.key).filter(|key| !key.is_empty())
    }

    pub(super) fn queue(&self) -> &'a [u8] {
        self.record.get(self.queue).unwrap_or_default()
    }

    /// The row as text, without its line end.
    pub(super) fn write_to(&self, text: &mut Vec<u8>) {
        text.clear();
        let mut writer = csv::Writer::from_writer(&mut *text);
        // Writing into memory does not fail.
        drop(writer.write_byte_record(self.record).and_then(|()| Ok(writer.flush()?)));
        drop(writer);
        if text.last() == Some(&b'\n') {
            text.pop();
        }
    }
}

/// Reads the first rows (all, without a number) to learn what is in them.
pub(super) fn survey(path: &Path, key: &str, queue: &str, limit: Option<u64>) -> Ended<Survey> {
    let mut rows = Rows::open(path, key, queue)?;
    let mut queues = BTreeSet::new();
    let mut keys = HashSet::new();
    let hasher = RandomState::new();
    let (mut count, mut keyless) = (0, 0);
    while limit.is_none_or(|limit| count < limit) {
        let Some(row) = rows.next()? else { break };
        count += 1;
        match row.key() {
            None => keyless += 1,
            Some(key) => drop(keys.insert(hasher.hash_one(key))),
        }
        if !queues.contains(row.queue()) {
            queues.insert(row.queue().to_vec());
        }
        if queues.len() > QUEUES_MAX {
            return Err(Failure::usage(format!(
                "{}: column {queue:?} has more than {QUEUES_MAX} different values in its first \
                 {count} rows, and a topic at most so many queues",
                path.display()
            )));
        }
    }
    if count == 0 {
        return Err(Failure::usage(format!("{} has no rows", path.display())));
    }
    let queues = queues.into_iter().collect();
    Ok(Survey { queues, rows: count, keys: keys.len() as u64, keyless })
}

/// An error of the file, with the row that it was found in. Row 1 is the one behind the header.
fn describe(file: &str, row: u64, error: &csv::Error) -> Failure {
    let at = if row == 0 { "header".to_owned() } else { format!("row {row}") };
    let what = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, pos } => {
            let line = pos.as_ref().map_or_else(String::new, |p| format!(" (line {})", p.line()));
            format!("has {len} fields where the header has {expected_len}{line}")
        }
        csv::ErrorKind::Io(error) => format!("cannot be read: {error}"),
        _ => format!("is not CSV: {error}"),
    };
    Failure::Other(format!("{file}: {at} {what}"))
}
