//! One file for what several processes see: each member of a group writes its events, and one
//! process judges them.
//!
//! A member has a recorder that [writes](Recorder::journaled) to a [`Journal`], and uses it as it
//! would use any other. Who judges reads the file with a [`Reader`] and tells another recorder what
//! stands there, or looks into it while the members run.
//!
//! ```
//! use keylane_source::{Message, Offset, QueueId};
//! use keylane_testkit::guarantee::{Event, MemberId, Outcome, Scope};
//! use keylane_testkit::journal::{Journal, Reader};
//! use keylane_testkit::recorder::Recorder;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("journal");
//! let message = Message::new(QueueId::new("orders", 0), Offset::ZERO).with_key("a");
//!
//! // In the processes of members 1 and 2 (and a source that is `Recorded`):
//! let recorder = Recorder::journaled(Scope::key(), MemberId(1), &Journal::open(&path)?);
//! recorder.begin(&message, 0, 1).settle(Outcome::Failed);
//! # let recorder = Recorder::journaled(Scope::key(), MemberId(2), &Journal::open(&path)?);
//! recorder.begin(&message, 0, 1).settle(Outcome::Done);
//!
//! // In the one that judges:
//! let judge = Recorder::new(Scope::key());
//! let mut finished = Vec::new();
//! Reader::open(&path)?.read(|member, event| {
//!     judge.note(event);
//!     if let Event::Settled(settled) = event
//!         && settled.outcome.finishes()
//!     {
//!         finished.push(member);
//!     }
//! })?;
//! assert_eq!(finished, [MemberId(2)]);
//! assert_eq!(judge.verdict_so_far().delivered, 1);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # What is exact
//!
//! Each event is appended by one `write` before it has consequences, and the operating system puts
//! the writes of all processes in one order: it is one in which everything may have happened. Once
//! it is written no kill takes it back. What a kill leaves of a line inside the `write` is told from
//! a whole line by its end, and passed over: it had no consequences yet.
//!
//! # A line
//!
//! The member, what happened, and what an [`Event`] has, in the order of its fields; names and keys
//! are percent-encoded. It begins with a line feed, so that it never continues a torn one, and ends
//! with a semicolon. Epochs and calls have the numbers that the member has given them; a
//! [`Reader`] makes them the group's.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use keylane_source::QueueId;

use crate::guarantee::{CallId, Delivered, Epoch, Event, MemberId, Settled};
#[cfg(doc)]
use crate::recorder::Recorder;

mod line;
#[cfg(test)]
mod tests;

/// What a line ends with.
const END: &str = " ;";

/// A file that events are appended to; see the [module](self). Clones append to the same one.
#[derive(Debug, Clone)]
pub struct Journal(Arc<File>);

impl Journal {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(Arc::new(file)))
    }

    /// Says for a member that was killed that it is no more. To be called once its process has
    /// ended.
    ///
    /// # Panics
    ///
    /// When the file cannot be written.
    pub fn crashed(&self, member: MemberId) {
        self.write(member, &Event::Crashed { member });
    }

    /// Appends an event of this member. When this returns no kill takes it back.
    ///
    /// # Panics
    ///
    /// When the file cannot be written: nothing that this process does from here on could be judged.
    pub(crate) fn write(&self, member: MemberId, event: &Event<'_>) {
        let text = format!("\n{} {}{END}", member.0, line::text(event));
        let written = (&*self.0).write_all(text.as_bytes());
        written.unwrap_or_else(|error| panic!("append {event:?} to the journal: {error}"));
    }
}

/// Reads a [`Journal`], also while it is being written.
#[derive(Debug)]
pub struct Reader {
    file: File,
    /// So many bytes were read, all of them whole lines.
    read: u64,
    /// How many epochs each queue has had, whoever had it.
    epochs: HashMap<QueueId, u32>,
    /// Which of them a member means.
    known: HashMap<(MemberId, QueueId, Epoch), Epoch>,
}

impl Reader {
    /// Reads from the beginning.
    ///
    /// # Errors
    ///
    /// The operating system's; there has to be a file.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = File::open(path)?;
        Ok(Self { file, read: 0, epochs: HashMap::new(), known: HashMap::new() })
    }

    /// Shows each event that was written since the last call, and whose it is. Epochs are counted
    /// for each queue in the whole group, calls have numbers of their own in the whole group: so they
    /// may be given to [`Recorder::note`] as they are.
    ///
    /// # Errors
    ///
    /// The operating system's; [`io::ErrorKind::InvalidData`], with the line, where it is none of a
    /// journal's.
    pub fn read(&mut self, mut see: impl FnMut(MemberId, &Event<'_>)) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.read))?;
        let mut text = String::new();
        self.file.read_to_string(&mut text)?;
        let mut lines = text.split('\n').peekable();
        while let Some(line) = lines.next() {
            match line.strip_suffix(END) {
                Some(line) => {
                    let wrong = || io::Error::new(io::ErrorKind::InvalidData, line.to_owned());
                    let told = line::parse(line, |member, event| {
                        see(member, &self.for_the_group(member, event));
                    });
                    told.ok_or_else(wrong)?;
                }
                // Perhaps its rest comes.
                None if lines.peek().is_none() => break,
                None => {}
            }
            self.read += line.len() as u64 + u64::from(lines.peek().is_some());
        }
        Ok(())
    }

    /// The same event with numbers that are the group's.
    fn for_the_group<'a>(&mut self, member: MemberId, mut event: Event<'a>) -> Event<'a> {
        match &mut event {
            Event::Assigned { queue, epoch, .. } => {
                let last = self.epochs.entry(*queue).or_default();
                *last += 1;
                self.known.insert((member, *queue, *epoch), Epoch(*last));
                *epoch = Epoch(*last);
            }
            Event::Fetched { queue, epoch, .. }
            | Event::Committed { queue, epoch, .. }
            | Event::Revoked { queue, epoch }
            | Event::Lost { queue, epoch }
            | Event::Reset { queue, epoch, .. } => *epoch = self.epoch(member, *queue, *epoch),
            Event::Delivered(Delivered { queue, epoch, call, .. }) => {
                *epoch = self.epoch(member, *queue, *epoch);
                *call = call_of(member, *call);
            }
            Event::Settled(Settled { queue, epoch, call, .. }) => {
                *epoch = self.epoch(member, *queue, *epoch);
                *call = call.map(|call| call_of(member, call));
            }
            Event::Produced { .. }
            | Event::Rewound { .. }
            | Event::Closing { .. }
            | Event::Crashed { .. }
            | Event::Stopped { .. } => {}
        }
        event
    }

    fn epoch(&self, member: MemberId, queue: QueueId, epoch: Epoch) -> Epoch {
        self.known.get(&(member, queue, epoch)).copied().unwrap_or_default()
    }
}

/// Each member counts its calls from one.
fn call_of(member: MemberId, call: CallId) -> CallId {
    CallId(u64::from(member.0) << 40 | call.0)
}
