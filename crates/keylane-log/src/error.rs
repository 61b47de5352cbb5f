//! One error for the crate: opaque, cheap to clone, with predicates for what a caller can act on.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use keylane_source::SourceError;

/// What went wrong, said in a sentence that names the folder, file, topic, queue or offset.
///
/// The predicates tell apart what a caller can act on; everything else is for people.
///
/// ```
/// use keylane_log::Log;
///
/// let folder = tempfile::tempdir()?;
/// let log = Log::open(folder.path())?;
/// let error = log.producer("orders").unwrap_err();
/// assert!(error.is_not_found());
/// assert_eq!(error.to_string(), "there is no topic \"orders\"");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: Kind,
    message: String,
    cause: Option<Cause>,
}

enum Cause {
    Ours(Error),
    Foreign(Box<dyn StdError + Send + Sync>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Somebody else owns the folder.
    Locked,
    /// Bytes are not what was written, or are not there.
    Damaged,
    /// No such topic, group or folder.
    NotFound,
    /// There is one already.
    AlreadyExists,
    /// A live consumer is in the way.
    InUse,
    /// An argument that cannot work.
    Invalid,
    /// A record or batch beyond the limits.
    TooLarge,
    /// The operating system refused.
    Io,
    /// An earlier write failed, and nothing is written after it.
    Stopped,
}

impl Error {
    #[cold]
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), cause: None }))
    }

    #[cold]
    pub(crate) fn damaged(message: impl Into<String>) -> Self {
        Self::new(Kind::Damaged, message)
    }

    #[cold]
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    #[cold]
    pub(crate) fn foreign(
        kind: Kind,
        message: impl Into<String>,
        cause: impl StdError + Send + Sync + 'static,
    ) -> Self {
        let cause = Some(Cause::Foreign(Box::new(cause)));
        Self(Arc::new(Inner { kind, message: message.into(), cause }))
    }

    #[cold]
    pub(crate) fn io(doing: &str, path: &Path, cause: std::io::Error) -> Self {
        Self::foreign(Kind::Io, format!("{doing} {}", path.display()), cause)
    }

    /// The same error, with what was being done in front.
    #[cold]
    pub(crate) fn context(self, doing: impl Into<String>) -> Self {
        let kind = self.0.kind;
        Self(Arc::new(Inner { kind, message: doing.into(), cause: Some(Cause::Ours(self)) }))
    }

    /// The folder is owned by another process, or by another handle in this one.
    pub fn is_locked(&self) -> bool {
        self.0.kind == Kind::Locked
    }

    /// What was stored is not there or not what was written.
    pub fn is_damaged(&self) -> bool {
        self.0.kind == Kind::Damaged
    }

    /// There is no such topic, group, queue or folder.
    pub fn is_not_found(&self) -> bool {
        self.0.kind == Kind::NotFound
    }

    /// There is a topic of this name already.
    pub fn is_already_exists(&self) -> bool {
        self.0.kind == Kind::AlreadyExists
    }

    /// The group has a live consumer on this topic, so that it cannot have a second one, and
    /// neither can be deleted.
    pub fn is_in_use(&self) -> bool {
        self.0.kind == Kind::InUse
    }

    /// An argument or an option that cannot work.
    pub fn is_invalid(&self) -> bool {
        self.0.kind == Kind::Invalid
    }

    /// A record or a batch is larger than the log takes.
    pub fn is_too_large(&self) -> bool {
        self.0.kind == Kind::TooLarge
    }

    /// The operating system refused (disk full, permissions).
    pub fn is_io(&self) -> bool {
        self.0.kind == Kind::Io
    }

    /// An earlier write failed, so that nothing more is written until the log is opened again.
    pub fn is_stopped(&self) -> bool {
        self.0.kind == Kind::Stopped
    }

    /// As the engine sees it: what may pass by itself is retryable, the rest is fatal.
    pub(crate) fn to_source_error(&self) -> SourceError {
        match self.0.kind {
            Kind::Io | Kind::Locked | Kind::InUse => SourceError::retryable(self.to_string()),
            _ => SourceError::fatal(self.to_string()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match &self.0.cause {
            None => Ok(()),
            Some(Cause::Ours(cause)) => write!(f, ": {cause}"),
            Some(Cause::Foreign(cause)) => write!(f, ": {cause}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.0.cause {
            None => None,
            Some(Cause::Ours(cause)) => Some(cause),
            Some(Cause::Foreign(cause)) => Some(&**cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_keeps_the_kind_and_shows_the_chain() {
        let disk = std::io::Error::other("disk gone");
        let error = Error::io("write", Path::new("marks/1"), disk).context("append to t/0 at 7");
        assert_eq!(error.to_string(), "append to t/0 at 7: write marks/1: disk gone");
        assert!(error.is_io() && !error.is_damaged());
        let inner = error.source().and_then(StdError::source).map(ToString::to_string);
        assert_eq!(inner.as_deref(), Some("disk gone"));
        assert!(error.to_source_error().is_retryable());
        assert!(Error::damaged("x").to_source_error().is_fatal());
    }
}
