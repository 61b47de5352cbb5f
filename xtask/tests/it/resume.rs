//! A run that is killed goes on where it had committed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use crate::{Run, command};

const RUN: &str = "load --json --dir lasting --shards 16 --messages 60000";

fn number(object: &Value, field: &str) -> u64 {
    object[field].as_u64().unwrap_or_else(|| panic!("{field} of {object}"))
}

/// Starts the run and kills it at the first line on standard error that `moment` takes.
fn kill_at(folder: &TempDir, moment: impl Fn(&str) -> bool) {
    let mut child =
        command(RUN, folder).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find(|line| moment(line));
    assert!(line.is_some(), "the run ended before that moment");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_killed_run_goes_on_and_every_message_is_accounted_for() {
    let folder = TempDir::new().unwrap();
    kill_at(&folder, |line| line.starts_with("writing into log"));
    kill_at(&folder, |line| line.contains(" committed") && !line.contains(" 0 committed"));

    let run = Run { output: command(RUN, &folder).output().unwrap() };
    assert_eq!(run.status(), 0, "{}", run.errors());
    let object = run.object();
    let (before, delivered) = (number(&object, "finished_before"), number(&object, "delivered"));
    assert!(before > 0, "nothing of what the killed run had committed was kept: {object}");
    assert_eq!(before + delivered, 60_000);
    assert_eq!(number(&object, "lost"), 0);
    assert_eq!(object["flights"]["right"], true, "{object}");

    // It has ended: the next one is a run of its own over the same messages.
    let again = Run { output: command(RUN, &folder).output().unwrap() };
    assert_eq!(again.status(), 0, "{}", again.errors());
    assert_eq!(number(&again.object(), "delivered"), 60_000);

    let other =
        Run { output: command("load --dir lasting --messages 5", &folder).output().unwrap() };
    assert_eq!(other.status(), 2, "{}", other.errors());
    assert!(other.errors().contains("holds something else"), "{}", other.errors());
}
