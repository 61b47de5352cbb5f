//! Options and files that cannot work: a sentence and a status, never a panic.

use std::fs;

use tempfile::TempDir;

use crate::{Run, command};

#[track_caller]
fn refused(arguments: &str, status: i32, sentence: &str) {
    let run = Run::new(arguments);
    let errors = run.errors();
    assert_eq!(run.status(), status, "{arguments}: {errors}");
    assert!(errors.contains(sentence), "{arguments}: {errors:?} does not say {sentence:?}");
    assert!(!errors.contains("panicked"), "{arguments}: {errors}");
    assert!(run.output.stdout.is_empty(), "{arguments} printed a result");
}

#[test]
fn zero_is_refused() {
    refused("load --messages 0", 2, "it is at least 1");
    refused("load --shards 0", 2, "0 is not in 1..=4096");
    refused("load --batch 0", 2, "0 is not in 1..=65536");
    refused("load --in-flight 0", 2, "0 is not in 1..=100000000");
    refused("load --queues 0", 2, "0 is not in 1..=65536");
    refused("load --keys 0", 2, "0 is not in 1..=10000000");
    refused("load --rate 0", 2, "it is within 0.001..=1000000000");
    refused("load --work sleep:0ms", 2, "for no work: none");
}

#[test]
fn the_absurd_is_refused() {
    refused("load --shards 99999", 2, "99999 is not in 1..=4096");
    refused("load --messages 99999999999999999999", 2, "it is a whole number");
    refused("load --messages 400000", 2, "336776 rows");
    refused("load --queues 2 --messages 1000000000000", 2, "GiB on the disk");
    refused("load --rate NaN", 2, "it is within");
    refused("load --work sleep:7200s", 2, "at most an hour");
    refused("load --fail-rate 1", 2, "it is within 0..=0.9");
    refused("load --skew inf", 2, "it is within 0..=10");
    refused("load --mode sorted", 2, "possible values: key-sharded, queue-locked, concurrent");
}

#[test]
fn contradictions_are_refused() {
    refused("load --quick --full", 2, "cannot be used with");
    refused("load --quick --messages 5", 2, "cannot be used with");
    refused("load --fail-rate 0.5 --panic-rate 0.5", 2, "more than 0.9 together");
    refused("load --skew 1 --hot-key 0.5", 2, "cannot be used with");
    refused("load --input a.csv --key a --queue b --keys 5", 2, "cannot be used with");
    refused("load --input a.csv", 2, "--key <COLUMN>");
    refused("load --key tailnum", 2, "--input <FILE>");
    refused("load --source memory --dir d", 2, "--dir keeps the folder of the embedded log");
    refused("load --dir d --rate 5", 2, "one or the other");
}

#[test]
fn a_folder_that_holds_something_else_is_left_alone() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("precious"), "data").unwrap();
    let run = Run { output: command("load --quick --dir .", &folder).output().unwrap() };
    assert_eq!(run.status(), 2, "{}", run.errors());
    assert!(run.errors().contains("name an empty folder"), "{}", run.errors());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn bad_files_are_errors_that_name_file_and_row() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("ragged.csv", b"a,b\n1,2\n3\n");
    write("empty.csv", b"");
    write("header.csv", b"a,b\n");
    write("short.csv.gz", &[0x1f, 0x8b, 8, 0, 0]);
    write("broken.csv.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03this is no deflate stream");
    let run = |file: &str| {
        let arguments = format!("load --json --work none --input {file} --key a --queue b");
        let run = Run { output: command(&arguments, &folder).output().unwrap() };
        assert!(!run.errors().contains("panicked"), "{}", run.errors());
        (run.status(), run.errors())
    };
    let refused = |file: &str, status: i32, sentence: &str| {
        let (ended, errors) = run(file);
        assert_eq!(ended, status, "{file}: {errors}");
        assert!(errors.contains(sentence), "{file}: {errors:?} does not say {sentence:?}");
    };
    refused("ragged.csv", 3, "ragged.csv: row 2 has 1 fields where the header has 2 (line 3)");
    refused("empty.csv", 2, "empty.csv has no column \"a\"");
    refused("header.csv", 2, "header.csv has no rows");
    refused("short.csv.gz", 3, "short.csv.gz: header cannot be read");
    refused("broken.csv.gz", 3, "broken.csv.gz: header cannot be read");
    refused("missing.csv", 3, "read missing.csv");
}

#[test]
fn crash_refuses_what_cannot_work() {
    refused("crash --rounds 0", 2, "0 is not in 1..=100000");
    refused("crash --rounds many", 2, "invalid digit");
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("precious"), "data").unwrap();
    refused(&format!("crash --dir {}", folder.path().display()), 2, "is not empty");
}
