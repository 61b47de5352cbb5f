//! The tasks as users run them: the built program, its exit status, and what it prints.
#![expect(clippy::unwrap_used, reason = "tests")]

mod crash;
mod load;
mod options;
mod resume;

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A run of the program, with a report in a folder of its own.
struct Run {
    output: Output,
}

impl Run {
    fn new(arguments: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let output = command(arguments, &folder).output().unwrap();
        Self { output }
    }

    fn status(&self) -> i32 {
        self.output.status.code().unwrap()
    }

    fn errors(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).unwrap()
    }

    /// What it printed on standard output, which must be one object and nothing else.
    #[track_caller]
    fn object(&self) -> Value {
        let text = String::from_utf8(self.output.stdout.clone()).unwrap();
        let parsed = serde_json::from_str(&text);
        parsed.unwrap_or_else(|error| panic!("{error}: {text:?}\n{}", self.errors()))
    }
}

/// The program with these arguments, divided at spaces; in a folder that is not the repository's.
fn command(arguments: &str, folder: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(arguments.split_whitespace());
    if arguments.starts_with("load") && !arguments.contains("--report") {
        command.arg("--report").arg(folder.path().join("report.html"));
    }
    command.current_dir(folder.path()).stdin(Stdio::null());
    command
}
