//! Processes that are killed and started again.

use std::fs;

use tempfile::TempDir;

use crate::{Run, command};

fn run(arguments: &str) -> (Run, TempDir) {
    let folder = TempDir::new().unwrap();
    let output = command(arguments, &folder).output().unwrap();
    (Run { output }, folder)
}

#[test]
fn kills_break_no_guarantee() {
    let (run, folder) = run("crash --rounds 4 --seed 3 --dir kept");
    let errors = run.errors();
    assert_eq!(run.status(), 0, "{errors}");
    assert!(errors.contains("round 4 of 4: killed"), "{errors}");
    assert!(errors.ends_with("once more: cargo xtask crash --rounds 4 --seed 3\n"), "{errors}");
    let history = fs::read_to_string(folder.path().join("kept/history")).unwrap();
    assert_eq!(history.lines().filter(|line| *line == "killed").count(), 4);
    assert!(history.ends_with("stopped\n"), "the last consumer stops by itself");
}

#[test]
fn commits_that_come_too_early_are_found() {
    let (run, _folder) = run("crash --rounds 5 --seed 1 --dir kept --commit-too-early");
    let errors = run.errors();
    assert_eq!(run.status(), 1, "{errors}");
    let found = errors.lines().find_map(|line| line.strip_prefix("commit violations"));
    assert!(found.is_some_and(|count| count.trim() != "0"), "{errors}");
    assert!(errors.contains("a guarantee did not survive the kills"), "{errors}");
}
