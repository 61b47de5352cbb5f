//! The history of all rounds: a file of lines, written by processes that are killed.
//!
//! **A line is one `write`**, so that it has reached the operating system when the call returns: no
//! kill takes it back. A kill inside the call may leave a part of a line at the end of the file;
//! [`close_round`] cuts it off, which is right because of the order:
//!
//! | line | written | so that |
//! | --- | --- | --- |
//! | a queue begins, a fetch | before the engine hears of it | what the engine knows stands here |
//! | a call begins | before its work | work that was done stands here |
//! | a call ends | after its work, before the engine hears of it | a commit never precedes it |
//! | a commit is asked for | before the log gets it | what is found later stands here |
//! | a commit is answered | before the engine hears of it | the same |
//! | an append | before it, and after its acknowledgement | only what was promised is owed |
//!
//! A line that is missing belongs to something that had no consequence yet.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::str::FromStr;

use parking_lot::Mutex;

/// What one line says. Queues are given by their index, calls by a number that each process counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    /// An epoch begins; what the look-up had found, and where reading starts, where it is known.
    Begins { queue: u32, found: Looked, start: Option<u64> },
    /// These messages, and the next offset to read.
    Fetched { queue: u32, offsets: Vec<u64>, position: u64 },
    /// A call begins with these messages.
    Called { call: u64, shard: usize, messages: Vec<Message> },
    /// A call ends: so many of its messages succeeded, from the first on; the others have failed.
    Ended { call: u64, done: usize },
    /// A commit, and how far it is.
    Commit { queue: u32, watermark: u64, step: Step },
    /// The queue is released.
    Released { queue: u32 },
    /// A batch is about to be appended.
    Appending,
    /// These offsets are acknowledged.
    Appended { queue: u32, first: u64, end: u64 },
    /// The process was killed.
    Killed,
    /// The process has stopped by itself, in order.
    Stopped,
}

/// One message of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) queue: u32,
    pub(super) offset: u64,
    pub(super) attempt: u32,
    pub(super) key: String,
}

/// What the group's offset was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looked {
    At(u64),
    Nothing,
    Unknown,
}

/// The steps of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Asked,
    Stored,
    Failed,
}

impl Line {
    fn text(&self) -> String {
        match self {
            Self::Begins { queue, found, start } => {
                let found = match found {
                    Looked::At(watermark) => watermark.to_string(),
                    Looked::Nothing => "none".to_owned(),
                    Looked::Unknown => "unknown".to_owned(),
                };
                let start = start.map_or("anywhere".to_owned(), |start| start.to_string());
                format!("begins {queue} {found} {start}")
            }
            Self::Fetched { queue, offsets, position } => {
                format!("fetched {queue} {position} {}", ranges(offsets))
            }
            Self::Called { call, shard, messages } => {
                let each =
                    |m: &Message| format!("{}:{}:{}:{}", m.queue, m.offset, m.attempt, m.key);
                let messages: Vec<_> = messages.iter().map(each).collect();
                format!("called {call} {shard} {}", messages.join(","))
            }
            Self::Ended { call, done } => format!("ended {call} {done}"),
            Self::Commit { queue, watermark, step } => {
                let step = match step {
                    Step::Asked => "asked",
                    Step::Stored => "stored",
                    Step::Failed => "failed",
                };
                format!("commit {queue} {watermark} {step}")
            }
            Self::Released { queue } => format!("released {queue}"),
            Self::Appending => "appending".to_owned(),
            Self::Appended { queue, first, end } => format!("appended {queue} {first} {end}"),
            Self::Killed => "killed".to_owned(),
            Self::Stopped => "stopped".to_owned(),
        }
    }
}

/// Ascending offsets as `0-5,7-9`: first, and behind the last.
fn ranges(offsets: &[u64]) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &offset in offsets {
        match ranges.last_mut() {
            Some((_, end)) if *end == offset => *end += 1,
            _ => ranges.push((offset, offset + 1)),
        }
    }
    let ranges: Vec<_> = ranges.iter().map(|(first, end)| format!("{first}-{end}")).collect();
    ranges.join(",")
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).ok_or_else(|| format!("no line of a history: {text:?}"))
    }
}

fn parse(text: &str) -> Option<Line> {
    let words: Vec<&str> = text.split(' ').collect();
    Some(match words[..] {
        ["begins", queue, found, start] => Line::Begins {
            queue: queue.parse().ok()?,
            found: match found {
                "none" => Looked::Nothing,
                "unknown" => Looked::Unknown,
                watermark => Looked::At(watermark.parse().ok()?),
            },
            start: if start == "anywhere" { None } else { Some(start.parse().ok()?) },
        },
        ["fetched", queue, position, offsets] => Line::Fetched {
            queue: queue.parse().ok()?,
            offsets: parse_ranges(offsets)?,
            position: position.parse().ok()?,
        },
        ["called", call, shard, messages] => Line::Called {
            call: call.parse().ok()?,
            shard: shard.parse().ok()?,
            messages: messages.split(',').map(parse_message).collect::<Option<_>>()?,
        },
        ["ended", call, done] => Line::Ended { call: call.parse().ok()?, done: done.parse().ok()? },
        ["commit", queue, watermark, step] => Line::Commit {
            queue: queue.parse().ok()?,
            watermark: watermark.parse().ok()?,
            step: match step {
                "asked" => Step::Asked,
                "stored" => Step::Stored,
                "failed" => Step::Failed,
                _ => return None,
            },
        },
        ["released", queue] => Line::Released { queue: queue.parse().ok()? },
        ["appending"] => Line::Appending,
        ["appended", queue, first, end] => Line::Appended {
            queue: queue.parse().ok()?,
            first: first.parse().ok()?,
            end: end.parse().ok()?,
        },
        ["killed"] => Line::Killed,
        ["stopped"] => Line::Stopped,
        _ => return None,
    })
}

fn parse_ranges(text: &str) -> Option<Vec<u64>> {
    let mut offsets = Vec::new();
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let (first, end) = range.split_once('-')?;
        offsets.extend(first.parse::<u64>().ok()?..end.parse::<u64>().ok()?);
    }
    Some(offsets)
}

fn parse_message(text: &str) -> Option<Message> {
    let mut parts = text.splitn(4, ':');
    Some(Message {
        queue: parts.next()?.parse().ok()?,
        offset: parts.next()?.parse().ok()?,
        attempt: parts.next()?.parse().ok()?,
        key: parts.next()?.to_owned(),
    })
}

/// Writes lines, from any thread.
#[derive(Debug)]
pub(super) struct Writer(Mutex<File>);

impl Writer {
    pub(super) fn open(file: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(file)?;
        Ok(Self(Mutex::new(file)))
    }

    /// Writes a line; when this returns, no kill takes it back.
    ///
    /// # Panics
    ///
    /// When the file cannot be written: nothing that this process does from here on could be
    /// checked.
    pub(super) fn write(&self, line: &Line) {
        let text = format!("{}\n", line.text());
        let written = self.0.lock().write_all(text.as_bytes());
        written.unwrap_or_else(|error| panic!("write the history: {error}"));
    }
}

/// After a process was killed: cuts off what it had written of a line, and says that it is gone.
pub(super) fn close_round(file: &Path) -> io::Result<()> {
    let mut file =
        OpenOptions::new().create(true).truncate(false).read(true).write(true).open(file)?;
    let length = file.seek(SeekFrom::End(0))?;
    // Longer than any line: a call has at most a few dozen messages, a fetch a few ranges.
    let tail = length.min(1 << 20);
    file.seek(SeekFrom::Start(length - tail))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let torn = bytes.iter().rev().take_while(|byte| **byte != b'\n').count() as u64;
    file.set_len(length - torn)?;
    file.seek(SeekFrom::End(0))?;
    writeln!(file, "{}", Line::Killed.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<Line> {
        let message =
            |offset| Message { queue: 3, offset, attempt: 2, key: "account:7".to_owned() };
        vec![
            Line::Begins { queue: 1, found: Looked::At(5), start: Some(5) },
            Line::Begins { queue: 1, found: Looked::Nothing, start: None },
            Line::Begins { queue: 1, found: Looked::Unknown, start: Some(0) },
            Line::Fetched { queue: 2, offsets: vec![0, 1, 2, 7, 9, 10], position: 12 },
            Line::Fetched { queue: 2, offsets: vec![], position: 12 },
            Line::Called { call: 9, shard: 1, messages: vec![message(4), message(8)] },
            Line::Ended { call: 9, done: 1 },
            Line::Commit { queue: 0, watermark: 4, step: Step::Asked },
            Line::Commit { queue: 0, watermark: 4, step: Step::Stored },
            Line::Commit { queue: 0, watermark: 4, step: Step::Failed },
            Line::Released { queue: 7 },
            Line::Appending,
            Line::Appended { queue: 1, first: 3, end: 8 },
            Line::Killed,
            Line::Stopped,
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for line in lines() {
            assert_eq!(line.text().parse(), Ok(line.clone()), "{}", line.text());
        }
        for wrong in ["", "begins 1", "commit 0 4 perhaps", "called 1 0 3:4", "ended 1 x"] {
            assert!(wrong.parse::<Line>().is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn a_torn_line_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let writer = Writer::open(&path).unwrap();
        writer.write(&Line::Appending);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"appe").unwrap();
        close_round(&path).unwrap();
        close_round(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "appending\nkilled\nkilled\n");
    }
}
