//! How a log is opened: every option, its default and what it costs.

use std::path::Path;
use std::time::Duration;

use crate::{Error, Log};

/// The default of [`Fsync::Interval`]: 100 ms.
pub(crate) const FSYNC_INTERVAL: Duration = Duration::from_millis(100);
const FSYNC_INTERVAL_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(3600);

/// When what was appended and committed is forced to the disk.
///
/// Under every policy an acknowledged record or commit has been handed to the operating system: it
/// survives the death of the process (`kill -9`, a panic, an abort) at any instant. The policies
/// differ in what a power failure or a crash of the operating system may take. That case is not
/// tested: what is said of it follows from which calls of `fsync` have returned.
///
/// | policy | acknowledged after | a power failure may take |
/// | --- | --- | --- |
/// | `EveryBatch` | `fsync` | nothing that was acknowledged |
/// | `Interval(d)` | `write` | what the last `d` brought, and the duration of one `fsync` |
/// | `Never` | `write` | what the operating system had not written by itself |
///
/// What a power failure took is reported by [`Log::power_loss`] when the log is opened again; the
/// log that is left is a prefix of every queue, whole and in order. A topic's creation and deletion
/// are forced to the disk under every policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fsync {
    /// Before each append and each group of commits is acknowledged.
    EveryBatch,
    /// In the background, this long after the first write that is not yet forced. 1 ms to 1 h.
    Interval(Duration),
    /// Left to the operating system, but for one at the end when the log is closed.
    Never,
}

impl Default for Fsync {
    /// Every 100 ms.
    fn default() -> Self {
        Self::Interval(FSYNC_INTERVAL)
    }
}

/// Which records are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Retention {
    /// All of them, until [`Log::trim`] is called. The default.
    #[default]
    Keep,
    /// What every group has committed is removed in the background, as by [`Log::trim`], soon after
    /// a commit. Topics without a group keep everything.
    Consumed,
}

/// How a log is opened.
///
/// ```
/// use keylane_log::{Fsync, Options};
///
/// let folder = tempfile::tempdir()?;
/// let log = Options::new().fsync(Fsync::EveryBatch).open(folder.path())?;
/// # drop(log);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub(crate) fsync: Fsync,
    pub(crate) retention: Retention,
    pub(crate) existing_only: bool,
}

impl Options {
    /// The defaults: fsync every 100 ms, everything kept, a missing folder is created.
    pub fn new() -> Self {
        Self::default()
    }

    /// When writes are forced to the disk. Default: every 100 ms.
    #[must_use]
    pub fn fsync(mut self, fsync: Fsync) -> Self {
        self.fsync = fsync;
        self
    }

    /// Which records are kept. Default: all.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Whether a missing or empty folder is an error ([`Error::is_not_found`]) instead of a new
    /// log. Default: false.
    #[must_use]
    pub fn existing_only(mut self, existing_only: bool) -> Self {
        self.existing_only = existing_only;
        self
    }

    /// Opens the log in `folder`, or creates one where the folder is missing or empty.
    ///
    /// # Errors
    ///
    /// Locked: another process, or another handle of this one, owns the folder. Damaged: something
    /// that belongs to the log is missing, short or changed, or the folder holds something else;
    /// nothing is created in place of it (but the store may have cut off what it takes for a torn
    /// write: copy the folder first if you mean to examine it). Invalid: an option is out of range.
    /// I/O.
    pub fn open(&self, folder: impl AsRef<Path>) -> Result<Log, Error> {
        if let Fsync::Interval(interval) = self.fsync
            && !FSYNC_INTERVAL_RANGE.contains(&interval)
        {
            return Err(Error::invalid(format!(
                "fsync: an interval of {interval:?} is outside of 1 ms to 1 h"
            )));
        }
        Log::open_with(folder.as_ref(), self)
    }
}
