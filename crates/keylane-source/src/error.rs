//! What a source reports when it could not do something.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// An error of a source, a queue lock or a dead-letter sink: retryable or fatal, nothing else.
///
/// *Retryable*: the engine backs off, reports it, degrades its health and tries again. *Fatal*: the
/// consumer stops, after a last commit, and `wait` returns the error.
///
/// The message says what was being done to which queue and offset; the cause, if any, is what the
/// client library said.
///
/// ```
/// use keylane_source::SourceError;
///
/// let error = SourceError::retryable("fetch orders/3 at 77: broker 2 is not there");
/// assert!(error.is_retryable());
/// assert_eq!(error.to_string(), "fetch orders/3 at 77: broker 2 is not there");
/// ```
#[derive(Clone)]
pub struct SourceError {
    fatal: bool,
    message: Arc<str>,
    cause: Option<Arc<dyn Error + Send + Sync>>,
}

impl SourceError {
    /// An error that may pass.
    pub fn retryable(message: impl Into<Arc<str>>) -> Self {
        Self { fatal: false, message: message.into(), cause: None }
    }

    /// An error that will not pass: the consumer has to stop.
    pub fn fatal(message: impl Into<Arc<str>>) -> Self {
        Self { fatal: true, message: message.into(), cause: None }
    }

    /// Adds what the client library said.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Error + Send + Sync + 'static) -> Self {
        self.cause = Some(Arc::new(cause));
        self
    }

    /// Whether trying again can help.
    pub fn is_retryable(&self) -> bool {
        !self.fatal
    }

    /// Whether the consumer has to stop.
    pub fn is_fatal(&self) -> bool {
        self.fatal
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.cause {
            None => Ok(()),
            Some(cause) => write!(f, ": {cause}"),
        }
    }
}

impl fmt::Debug for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourceError({}: {self})", if self.fatal { "fatal" } else { "retryable" })
    }
}

impl Error for SourceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::SourceError;
    use std::error::Error;

    #[test]
    fn the_cause_is_shown_and_kept() {
        let error =
            SourceError::fatal("open topic t").caused_by(std::io::Error::other("disk gone"));
        assert_eq!(error.to_string(), "open topic t: disk gone");
        assert_eq!(error.source().map(ToString::to_string), Some("disk gone".to_owned()));
        assert!(error.is_fatal() && !error.is_retryable());
    }
}
