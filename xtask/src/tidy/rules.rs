//! The rules for single files.

use super::{Finding, is_production};

/// Longer files do not fit into a head.
const LINES_MAX: usize = 600;
const COLUMNS_MAX: usize = 100;
/// rustfmt keeps code within its bound, but does not break comments: a word may stand over.
const COMMENT_MAX: usize = 105;

/// Words that say that something is not finished, in two parts, so that this file has none of them.
const UNFINISHED: [(&str, &str); 6] = [
    ("FIX", "ME"),
    ("XX", "X"),
    ("todo", "!("),
    ("unimplemented", "!("),
    ("dbg", "!("),
    ("#[ign", "ore"),
];

/// Where one machine keeps its files, again in two parts.
const MACHINE: [(&str, &str); 4] =
    [("/wo", "rk/"), ("/ho", "me/"), ("/ro", "ot/"), ("/tmp/", "target")];

/// The only file of the engine that may read the clock, and the only one that may make threads.
const CLOCK: &str = "crates/keylane/src/time.rs";
const THREADS: &str = "crates/keylane/src/pipeline/threads.rs";

/// The files of the engine that may tell modes apart: the option, the switch, and the simulator,
/// which draws one.
const MODES: [&str; 4] = [
    "crates/keylane/src/config.rs",
    "crates/keylane/src/sim/",
    "crates/keylane/src/pipeline/mode.rs",
    "crates/keylane/src/pipeline/mode/",
];

/// The engine under a model checker: its threads are no threads, and each mode is a model.
const MODELS: &str = "crates/keylane/src/models/";

/// Everything that is wrong with this file.
pub(super) fn check(file: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |line: usize, what: String| {
        findings.push(Finding { file: file.to_owned(), line, what });
    };
    for (index, line) in text.lines().enumerate() {
        each_line(file, line, &mut |what| found(index + 1, what));
    }
    if !file.ends_with(".rs") {
        return findings;
    }
    // A module's tests are described where the module is.
    if !file.ends_with("/tests.rs") && !begins_with_document(text) {
        found(0, "begins without a document: `//!` and what the module is for".to_owned());
    }
    let lines = text.lines().count();
    if is_production(file) && lines > LINES_MAX {
        found(0, format!("{lines} lines, {LINES_MAX} at most"));
    }
    let is_model = file.starts_with(MODELS);
    if file.starts_with("crates/keylane/src/") && is_production(file) && !is_model {
        engine(file, text, &mut found);
    }
    findings
}

fn each_line(file: &str, line: &str, found: &mut dyn FnMut(String)) {
    for (first, second) in MACHINE {
        if has_path(line, &format!("{first}{second}")) {
            found(format!("a path of one machine: {first}{second}"));
        }
    }
    if !file.ends_with(".rs") {
        return;
    }
    for (first, second) in UNFINISHED {
        if has_word(line, &format!("{first}{second}")) {
            found(format!("unfinished: {first}{second}"));
        }
    }
    let columns = line.chars().count();
    let most = if line.trim_start().starts_with("//") { COMMENT_MAX } else { COLUMNS_MAX };
    if columns > most && !may_be_long(line) {
        found(format!("{columns} columns, {most} at most"));
    }
}

/// Strings, tables and addresses cannot be broken where one likes.
fn may_be_long(line: &str) -> bool {
    let text = line.trim_start();
    let is_table = text.trim_start_matches(['/', '!', ' ']).starts_with('|');
    is_table || text.contains('"') || text.contains("://")
}

/// Attributes may stand before it.
fn begins_with_document(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.find(|line| !line.starts_with("#![")).is_some_and(|line| line.starts_with("//!"))
}

/// The word, and not a part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let mut rest = line;
    while let Some(at) = rest.find(word) {
        let before = rest[..at].chars().next_back();
        let after = rest[at + word.len()..].chars().next();
        let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let ends_open = word.ends_with(|c: char| !c.is_alphanumeric());
        if !joins(before) && (ends_open || !joins(after)) {
            return true;
        }
        rest = &rest[at + word.len()..];
    }
    false
}

/// The path, at its beginning: `a/work/b` is somewhere else.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_.-}*)/".contains(c))
    })
}

/// What the engine's architecture says must not be anywhere else.
fn engine(file: &str, text: &str, found: &mut dyn FnMut(usize, String)) {
    for (index, line) in code(text) {
        let mut only = |token: &str, allowed: &[&str], what: &str| {
            if line.contains(token) && !allowed.iter().any(|place| file.starts_with(place)) {
                found(index + 1, format!("{token}: only {} {what}", allowed.join(", ")));
            }
        };
        only("Instant::now", &[CLOCK], "reads the clock");
        only("SystemTime::now", &[CLOCK], "reads the clock");
        only("thread::spawn", &[THREADS], "makes threads");
        only("thread::Builder", &[THREADS], "makes threads");
        only("thread::scope", &[THREADS], "makes threads");
        only("ThreadPoolBuilder", &[THREADS], "makes threads");
        for mode in ["Mode::KeySharded", "Mode::QueueLocked", "Mode::Concurrent"] {
            only(mode, &MODES, "tells modes apart");
        }
    }
}

/// The lines that are code: no comments, and nothing from a test module on.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let code = text.lines().enumerate().take_while(|(_, line)| !line.starts_with("#[cfg(test)]"));
    code.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_line(file: &str, line: &str) -> Vec<String> {
        let text = format!("//! A module.\n{line}\n");
        check(file, &text).into_iter().map(|finding| format!("{}", finding.line)).collect()
    }

    fn objects_to(file: &str, line: &str) -> bool {
        !check_line(file, line).is_empty()
    }

    #[test]
    fn a_module_begins_with_a_document() {
        assert_eq!(check("xtask/src/a.rs", "#![forbid(unsafe_code)]\n//! A.\n"), []);
        assert_eq!(check("xtask/src/a.rs", "// A.\n").len(), 1);
        assert_eq!(check("xtask/src/a.rs", "").len(), 1);
        assert_eq!(check("xtask/src/a/tests.rs", "use super::*;\n"), []);
        assert_eq!(check("docs/a.md", "A.\n"), []);
    }

    #[test]
    fn long_files_are_found_and_tests_may_be_long() {
        let text = format!("//! A.\n{}", "//\n".repeat(LINES_MAX));
        assert_eq!(check("xtask/src/a.rs", &text).len(), 1);
        assert_eq!(check("xtask/src/a/tests.rs", &text), []);
        assert_eq!(check("crates/a/tests/it/a.rs", &text), []);
    }

    #[test]
    fn long_lines_are_found_where_they_could_be_broken() {
        let long = "x".repeat(COLUMNS_MAX + 1);
        assert!(objects_to("xtask/src/a.rs", &long));
        assert!(!objects_to("xtask/src/a.rs", &long[1..]));
        assert!(!objects_to("xtask/src/a.rs", &format!("\"{long}\"")));
        assert!(!objects_to("xtask/src/a.rs", &format!("//! | {long} |")));
        assert!(!objects_to("docs/a.md", &long));
        let comment = "/".repeat(COMMENT_MAX);
        assert!(!objects_to("xtask/src/a.rs", &comment));
        assert!(objects_to("xtask/src/a.rs", &format!("{comment}/")));
    }

    #[test]
    fn unfinished_things_are_found() {
        for (first, second) in UNFINISHED {
            let word = format!("{first}{second}");
            assert!(objects_to("xtask/src/a.rs", &format!("    {word} later")), "{word}");
        }
        assert!(!objects_to("xtask/src/a.rs", "let XXXL = 1;"));
        assert!(!objects_to("xtask/src/a.rs", "a_todo!()"));
    }

    #[test]
    fn paths_of_one_machine_are_found_in_all_files() {
        for (first, second) in MACHINE {
            assert!(objects_to("docs/a.md", &format!("see {first}{second}/x")), "{second}");
            assert!(!objects_to("docs/a.md", &format!("see some{first}{second}/x")), "{second}");
        }
    }

    #[test]
    fn one_file_reads_the_clock_and_one_makes_threads() {
        let (now, thread) = ("let now = Instant::now();", "thread::Builder::new()");
        let elsewhere = "crates/keylane/src/pipeline/router.rs";
        assert!(objects_to(elsewhere, now) && objects_to(elsewhere, thread));
        assert!(!objects_to(CLOCK, now) && objects_to(CLOCK, thread));
        assert!(!objects_to(THREADS, thread) && objects_to(THREADS, now));
        assert!(!objects_to("crates/keylane-log/src/log.rs", now));
        assert!(!objects_to(elsewhere, "// Instant::now() is elsewhere"));
        assert!(!objects_to(elsewhere, &format!("#[cfg(test)]\nmod tests {{ {now} }}")));
        assert!(!objects_to("crates/keylane/src/pipeline/router/tests.rs", now));
    }

    #[test]
    fn one_place_tells_modes_apart() {
        let line = "match mode { Mode::QueueLocked => {} }";
        assert!(objects_to("crates/keylane/src/pipeline/router.rs", line));
        assert!(!objects_to("crates/keylane/src/pipeline/mode/keys.rs", line));
        assert!(!objects_to("crates/keylane/src/pipeline/mode.rs", line));
    }
}
