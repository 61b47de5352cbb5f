//! `cargo xtask tidy`: what the compiler and clippy do not check.
//!
//! Each rule is a function of a file's path and text, so that each has tests which see it fail.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::ci::root;
use crate::outcome::{Ended, Failure, say};

mod readme;
mod rules;

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    file: String,
    /// From 1; 0 where it is the whole file.
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.what),
            line => write!(f, "{}:{line}: {}", self.file, self.what),
        }
    }
}

/// The task.
pub(crate) fn run() -> Ended {
    let files = files()?;
    let mut findings = Vec::new();
    let mut looked_at = 0;
    for file in &files {
        // What is deleted and not committed yet is listed, and bytes are nobody's prose.
        let Ok(text) = fs::read_to_string(root().join(file)) else { continue };
        looked_at += 1;
        findings.extend(rules::check(file, &text));
        if file == "README.md" {
            findings
                .extend(readme::check(&text, &|path| fs::read_to_string(root().join(path)).ok()));
        }
    }
    findings.iter().for_each(|finding| say(&finding.to_string()));
    match findings.len() {
        0 => {
            say(&format!("tidy: {looked_at} files, nothing to object to"));
            Ok(())
        }
        count => Err(Failure::Broken(format!("tidy: {count} things to put right"))),
    }
}

/// The files that are in the repository, or would be with the next commit.
fn files() -> Ended<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]).current_dir(root());
    let listed = git.output().map_err(|error| Failure::other("run git ls-files", error))?;
    if !listed.status.success() {
        return Err(Failure::other("run git ls-files", String::from_utf8_lossy(&listed.stderr)));
    }
    let text = String::from_utf8_lossy(&listed.stdout);
    let mut files: Vec<_> =
        text.split('\0').filter(|file| !file.is_empty()).map(str::to_owned).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// Whether it is Rust that is not a test: what a user of a crate compiles.
fn is_production(file: &str) -> bool {
    let is_test = file.contains("/tests/") || file.ends_with("/tests.rs");
    Path::new(file).extension().is_some_and(|extension| extension == "rs") && !is_test
}
