//! The engine's one error type.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use keylane_source::SourceError;

use crate::report::StopReport;

/// Why a consumer did not start, or did not end well. Cheap to clone.
#[derive(Clone)]
pub struct Error(Arc<Kind>);

enum Kind {
    Config { option: &'static str, value: String, allowed: String },
    Thread { name: String, cause: std::io::Error },
    Source { error: SourceError, report: StopReport },
    Stopped { reason: String, report: StopReport },
    Deadline { deadline: Duration, report: StopReport },
    FinalCommit { report: StopReport },
    Internal { what: String, report: StopReport },
    NoAnswer { waited: Duration },
    InsideListener,
}

impl Error {
    pub(crate) fn config(
        option: &'static str,
        value: impl fmt::Display,
        allowed: impl Into<String>,
    ) -> Self {
        let (value, allowed) = (value.to_string(), allowed.into());
        Self(Arc::new(Kind::Config { option, value, allowed }))
    }

    pub(crate) fn thread(name: String, cause: std::io::Error) -> Self {
        Self(Arc::new(Kind::Thread { name, cause }))
    }

    pub(crate) fn source_failed(error: SourceError, report: StopReport) -> Self {
        Self(Arc::new(Kind::Source { error, report }))
    }

    pub(crate) fn stopped_by_listener(reason: String, report: StopReport) -> Self {
        Self(Arc::new(Kind::Stopped { reason, report }))
    }

    pub(crate) fn deadline(deadline: Duration, report: StopReport) -> Self {
        Self(Arc::new(Kind::Deadline { deadline, report }))
    }

    pub(crate) fn final_commit(report: StopReport) -> Self {
        Self(Arc::new(Kind::FinalCommit { report }))
    }

    pub(crate) fn internal(what: String, report: StopReport) -> Self {
        Self(Arc::new(Kind::Internal { what, report }))
    }

    pub(crate) fn no_answer(waited: Duration) -> Self {
        Self(Arc::new(Kind::NoAnswer { waited }))
    }

    pub(crate) fn inside_listener() -> Self {
        Self(Arc::new(Kind::InsideListener))
    }

    /// Whether the configuration was rejected, before any thread or connection existed.
    pub fn is_config(&self) -> bool {
        matches!(*self.0, Kind::Config { .. })
    }

    /// Whether the source failed for good.
    pub fn is_source(&self) -> bool {
        matches!(*self.0, Kind::Source { .. })
    }

    /// Whether a listener asked for the stop ([`Outcome::Stop`](crate::Outcome::Stop)), or the
    /// failure policy did.
    pub fn is_stopped_by_listener(&self) -> bool {
        matches!(*self.0, Kind::Stopped { .. })
    }

    /// Whether the stop's deadline passed while listener calls were still running.
    pub fn is_deadline(&self) -> bool {
        matches!(*self.0, Kind::Deadline { .. } | Kind::NoAnswer { .. })
    }

    /// Whether `stop` or `wait` was called from inside a listener, an observer or a sink: the stop
    /// goes on, but cannot be waited for there.
    pub fn is_inside_listener(&self) -> bool {
        matches!(*self.0, Kind::InsideListener)
    }

    /// What was finished, committed and abandoned, where the consumer had started.
    pub fn report(&self) -> Option<&StopReport> {
        match &*self.0 {
            Kind::Source { report, .. }
            | Kind::Stopped { report, .. }
            | Kind::Deadline { report, .. }
            | Kind::FinalCommit { report }
            | Kind::Internal { report, .. } => Some(report),
            Kind::Config { .. }
            | Kind::Thread { .. }
            | Kind::NoAnswer { .. }
            | Kind::InsideListener => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Config { option, value, allowed } => {
                write!(f, "option {option} is {value}; allowed: {allowed}")
            }
            Kind::Thread { name, cause } => write!(f, "start thread {name}: {cause}"),
            Kind::Source { error, report } => write!(f, "the source failed: {error}; {report}"),
            Kind::Stopped { reason, report } => {
                write!(f, "stopped by the listener: {reason}; {report}")
            }
            Kind::Deadline { deadline, report } => {
                write!(f, "not everything ended within {deadline:?}; {report}")
            }
            Kind::FinalCommit { report } => write!(f, "the final commit failed; {report}"),
            Kind::Internal { what, report } => write!(f, "internal error: {what}; {report}"),
            Kind::NoAnswer { waited } => {
                write!(f, "the source did not return within {waited:?}; its thread was left behind")
            }
            Kind::InsideListener => f.write_str(
                "the stop was asked for; a listener, observer or sink cannot wait for it, since it waits for them",
            ),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            Kind::Thread { cause, .. } => Some(cause),
            Kind::Source { error, .. } => Some(error),
            _ => None,
        }
    }
}
