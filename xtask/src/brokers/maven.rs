//! Jars, through the ordinary `mvn`, with its patience and ours: a download that hangs or fails on a
//! slow line is tried again, and what has arrived by then is kept by Maven.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const ATTEMPTS: u32 = 3;
/// From an empty cache it takes one to two minutes on a good line.
const LIMIT: Duration = Duration::from_secs(8 * 60);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Copies what this pom depends on, with what that depends on, into a folder. Maven's lines go into
/// `fetch.log` beside the pom.
///
/// # Errors
///
/// Maven is missing, or failed as often as it was tried; the last lines of what it printed.
pub(super) fn copy_dependencies(pom: &Path, into: &Path, whose: &str) -> Result<(), String> {
    let mut failure = String::new();
    for attempt in 1..=ATTEMPTS {
        let mut mvn = Command::new("mvn");
        mvn.args(["-B", "-q", "-f"]).arg(pom).arg("dependency:copy-dependencies");
        mvn.arg(format!("-DoutputDirectory={}", into.display()));
        // The first are for Maven up to 3.8, the others for later ones.
        mvn.args(["-Dmaven.wagon.http.retryHandler.count=3", "-Dmaven.wagon.rto=60000"]);
        mvn.args(["-Daether.connector.http.retryHandler.count=3"]);
        mvn.args(["-Daether.connector.requestTimeout=60000"]);
        if attempt > 1 {
            // Maven remembers what it could not find, and would not look again today.
            mvn.arg("-U");
        }
        match run(&mut mvn, &pom.with_file_name("fetch.log"), LIMIT) {
            Ok(()) => return Ok(()),
            Err(Trouble::Missing(why)) => {
                return Err(format!(
                    "mvn cannot be run ({why}): Maven is needed once, to fetch {whose} jars"
                ));
            }
            Err(Trouble::Failed(why)) => {
                log::warn!("fetch {whose} jars, attempt {attempt} of {ATTEMPTS}: {why}");
                failure = why;
            }
        }
    }
    Err(format!("fetch {whose} jars, {ATTEMPTS} attempts; the last: {failure}"))
}

#[derive(Debug, PartialEq, Eq)]
enum Trouble {
    Missing(String),
    Failed(String),
}

fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<(), Trouble> {
    let failed = |error: std::io::Error| Trouble::Failed(format!("{}: {error}", log.display()));
    let out = File::create(log).map_err(failed)?;
    let errors = out.try_clone().map_err(failed)?;
    let command = command.stdin(Stdio::null()).stdout(out).stderr(errors);
    let mut child = command.spawn().map_err(|error| Trouble::Missing(error.to_string()))?;
    let deadline = Instant::now() + limit;
    let why = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => break status.to_string(),
            None if Instant::now() >= deadline => {
                child.kill().map_err(failed)?;
                child.wait().map_err(failed)?;
                break format!("not done after {limit:?}");
            }
            None => thread::sleep(LOOK_AGAIN),
        }
    };
    let printed = fs::read(log).map_err(failed)?;
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let lines: Vec<_> = printed.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(8)..].join("\n  ");
    Err(Trouble::Failed(format!("{why}\n  {last}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(script: &str, limit: Duration) -> Result<(), Trouble> {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        run(command.args(["-c", script]), &folder.path().join("log"), limit)
    }

    #[test]
    fn what_failed_says_why_and_what_hangs_is_ended() {
        let minute = Duration::from_secs(60);
        assert_eq!(ends("exit 0", minute), Ok(()));
        let failed = |text: &str| Err(Trouble::Failed(text.to_owned()));
        assert_eq!(
            ends("echo no such jar; exit 3", minute),
            failed("exit status: 3\n  no such jar")
        );
        assert_eq!(ends("exec sleep 600", Duration::ZERO), failed("not done after 0ns\n  "));
        let folder = tempfile::tempdir().unwrap();
        let missing = run(&mut Command::new("/no/such"), &folder.path().join("log"), minute);
        assert!(matches!(missing, Err(Trouble::Missing(_))), "{missing:?}");
    }
}
