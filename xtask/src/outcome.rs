//! How a task ends, and the exit status that says so.

use std::error::Error;
use std::process::ExitCode;

/// What `--help` says about it.
pub(crate) const EXIT_STATUS: &str = "\
Exit status:
  0  everything is as it should be
  1  a guarantee was broken, or a check failed
  2  options that cannot work, by themselves or together
  3  anything else that went wrong: a file, a disk, a program that is missing";

/// What a task returns.
pub(crate) type Ended<T = ()> = Result<T, Failure>;

/// Why a task did not end well. A sentence each, for people.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A guarantee was broken, or a check failed.
    Broken(String),
    /// The options cannot work.
    Usage(String),
    /// Something else.
    Other(String),
}

impl Failure {
    /// The options cannot work, for this reason.
    pub(crate) fn usage(why: impl Into<String>) -> Self {
        Self::Usage(why.into())
    }

    /// Something went wrong while this was done.
    pub(crate) fn other(doing: impl std::fmt::Display, error: impl std::fmt::Display) -> Self {
        Self::Other(format!("{doing}: {error}"))
    }

    fn status(&self) -> u8 {
        match self {
            Self::Broken(_) => 1,
            Self::Usage(_) => 2,
            Self::Other(_) => 3,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Broken(what) | Self::Usage(what) | Self::Other(what) => f.write_str(what),
        }
    }
}

impl Error for Failure {}

/// A line on standard error: what is being done, what went wrong.
#[expect(clippy::print_stderr, reason = "standard output is for results")]
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}

/// Turns the end of a task into the process's exit status, with the reason on standard error.
pub(crate) fn exit(ended: Ended) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&format!("error: {failure}"));
            ExitCode::from(failure.status())
        }
    }
}
