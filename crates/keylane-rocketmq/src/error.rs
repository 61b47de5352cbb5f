//! What could not be done at a broker or a name server.

use std::fmt;
use std::sync::Arc;

use keylane_source::SourceError;

use crate::wire::WireError;
use crate::wire::reply::Failure;

/// An error of a call, or of a configuration. Its text says what was being done, and to what.
///
/// ```
/// use keylane_rocketmq::Client;
///
/// let error = Client::new(["no port"]).unwrap_err();
/// assert!(error.is_configuration());
/// assert!(error.to_string().contains(r#"name server "no port""#));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    text: Arc<str>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Configuration,
    Unreachable,
    Timeout,
    Refused(i32),
    Unreadable,
    Closed,
}

impl Error {
    pub(crate) fn configuration(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), kind: Kind::Configuration }
    }

    pub(crate) fn unreachable(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), kind: Kind::Unreachable }
    }

    pub(crate) fn timeout(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), kind: Kind::Timeout }
    }

    pub(crate) fn closed() -> Self {
        Self { text: "the client is closed".into(), kind: Kind::Closed }
    }

    /// The same error, with what was being done in front.
    #[must_use]
    pub(crate) fn doing(self, what: impl fmt::Display) -> Self {
        Self { text: format!("{what}: {}", self.text).into(), kind: self.kind }
    }

    /// The number with which the broker or the name server refused, if that is what happened.
    pub fn code(&self) -> Option<i32> {
        match self.kind {
            Kind::Refused(code) => Some(code),
            _ => None,
        }
    }

    /// Whether the option or argument is at fault: trying again cannot help.
    pub fn is_configuration(&self) -> bool {
        self.kind == Kind::Configuration
    }

    /// Whether there was no answer in time. What was asked for may have been done.
    pub fn is_timeout(&self) -> bool {
        self.kind == Kind::Timeout
    }

    /// Whether the other side could not be reached, or hung up before it answered.
    pub fn is_unreachable(&self) -> bool {
        self.kind == Kind::Unreachable
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused { code, remark } => Self {
                text: format!("refused with code {code}: {remark}").into(),
                kind: Kind::Refused(code),
            },
            Failure::Unreadable(error) => error.into(),
        }
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        Self { text: error.to_string().into(), kind: Kind::Unreadable }
    }
}

impl From<Error> for SourceError {
    fn from(error: Error) -> Self {
        let text = Arc::clone(&error.text);
        if error.is_configuration() { Self::fatal(text) } else { Self::retryable(text) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.kind)
    }
}

impl std::error::Error for Error {}
