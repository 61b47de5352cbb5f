//! Files that are deleted, cut, or changed: a clear error, or nothing is missing. Never a short
//! topic, an empty one, other records or other commits.
#![expect(clippy::unwrap_used, reason = "this is part of the tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use keylane_log::{Error, GroupInfo, Log, Record};
use keylane_source::{QueueId, Source, SourceEvent, Watermark};

use crate::support::{PATIENCE, assigned, commit, read_all};

/// All that a log holds: payloads by queue, groups by topic.
#[derive(Debug, PartialEq)]
struct Content {
    records: BTreeMap<QueueId, Vec<Vec<u8>>>,
    groups: BTreeMap<String, Vec<GroupInfo>>,
}

/// Opens, checks and reads all of it.
fn content(folder: &Path) -> Result<Content, Error> {
    let log = Log::open(folder)?;
    let mut content = Content { records: BTreeMap::new(), groups: BTreeMap::new() };
    for topic in log.topics() {
        let mut groups = log.groups(&topic.name)?;
        groups.retain(|group| group.group != "reader");
        content.groups.insert(topic.name, groups);
    }
    log.verify()?;
    for topic in log.topics() {
        let mut source = log.source(&topic.name, "reader")?;
        for (queue, messages) in read_all(&mut source) {
            let payloads = messages.iter().map(|message| message.payload().unwrap().to_vec());
            content.records.insert(queue, payloads.collect());
        }
    }
    Ok(content)
}

fn append(log: &Log, topic: &str, records: u32, payload: usize) {
    let producer = log.producer(topic).unwrap();
    let mut batch = producer.batch();
    for n in 0..records {
        let mut payload = vec![(n % 251) as u8; payload];
        payload[..4].copy_from_slice(&n.to_le_bytes());
        batch.push(&Record::new().with_payload(&payload)).unwrap();
        if batch.len() == 50 {
            producer.append(&mut batch).unwrap();
        }
    }
    producer.append(&mut batch).unwrap();
}

/// Two topics, three queues, a group that has committed, and a trim.
fn build(folder: &Path, payload: usize) -> Content {
    let log = Log::open(folder).unwrap();
    log.create_topic("t", 2).unwrap();
    log.create_topic("u", 1).unwrap();
    append(&log, "t", 600, payload);
    append(&log, "u", 60, payload);
    let mut source = log.source("t", "g").unwrap();
    assigned(&mut source);
    for watermark in [60, 70, 80] {
        commit(&mut source, QueueId::new("t", 1), watermark, "note").unwrap();
    }
    drop(source);
    log.trim("t").unwrap();
    append(&log, "t", 60, payload);
    drop(log);
    let content = content(folder).unwrap();
    let counts: Vec<_> = content.records.values().map(Vec::len).collect();
    assert_eq!(counts, [330, 330 - 75, 60]);
    content
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(self::files(&path)),
            false => files.push(path),
        }
    }
    files.sort();
    files
}

/// A copy without the zeros that the store allocates in advance.
fn copy(from: &Path, to: &Path) {
    for path in files(from) {
        let target = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        let bytes = fs::read(&path).unwrap();
        let mut file = fs::File::create(&target).unwrap();
        file.write_all(&bytes[..used(&bytes)]).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
    }
}

/// The length without the zeros at the end.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

fn flip(path: &Path, at: u64, bits: u8) {
    let bytes = fs::read(path).unwrap();
    let mut file = fs::File::options().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&[bytes[usize::try_from(at).unwrap()] ^ bits]).unwrap();
}

type Act = Box<dyn Fn(&Path)>;

/// Every change of a file that is tried, by name.
type Change = (String, Act);

fn changes(bytes: &[u8], flips: u64) -> Vec<Change> {
    let (length, used) = (bytes.len() as u64, used(bytes) as u64);
    let cut = |to: u64| -> Change {
        let cut = move |path: &Path| {
            fs::File::options().write(true).open(path).unwrap().set_len(to).unwrap();
        };
        (format!("cut to {to} of {length}"), Box::new(cut))
    };
    let flip = |at: u64| -> Change {
        (format!("flip at {at} of {length}"), Box::new(move |path| flip(path, at, 0x41)))
    };
    let mut changes: Vec<Change> =
        vec![("deleted".to_owned(), Box::new(|path| fs::remove_file(path).unwrap()))];
    changes.extend([0, used / 2, used.saturating_sub(1)].map(cut));
    // Spread over the file, on ever other bytes of its structures, and one behind its end.
    let spread = (0..flips.min(used)).map(|n| n * used / flips.min(used) + n % 7);
    changes.extend(spread.filter(|at| *at < used).map(flip));
    changes.extend([used].into_iter().filter(|at| *at < length).map(flip));
    changes
}

/// Tries every change on a copy; returns how many were errors.
fn damage_everything(folder: &Path, whole: &Content, flips: u64) -> usize {
    let mut errors = 0;
    for file in files(folder) {
        let name = file.strip_prefix(folder).unwrap();
        for (what, change) in changes(&fs::read(&file).unwrap(), flips) {
            let damaged = tempfile::tempdir().unwrap();
            copy(folder, damaged.path());
            change(&damaged.path().join(name));
            match content(damaged.path()) {
                Ok(found) => assert!(
                    found == *whole,
                    "{}, {what}: opened, and is not what it was: {:?}",
                    name.display(),
                    found.records.iter().map(|(q, r)| (q, r.len())).collect::<Vec<_>>()
                ),
                Err(error) => {
                    errors += 1;
                    let text = error.to_string();
                    let place = damaged.path().display().to_string();
                    assert!(error.is_damaged(), "{}, {what}: {text}", name.display());
                    assert!(
                        text.contains(&place) || text.contains("t/") || text.contains("u/"),
                        "{}, {what}: an error that does not say where: {text}",
                        name.display()
                    );
                }
            }
        }
    }
    errors
}

#[test]
fn a_small_log_that_is_all_in_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let whole = build(folder.path(), 20);
    let errors = damage_everything(folder.path(), &whole, 25);
    assert!(errors > 20, "only {errors} changes were noticed");
}

#[test]
fn a_log_with_tables_and_blobs() {
    let folder = tempfile::tempdir().unwrap();
    let whole = build(folder.path(), 40_000);
    let names: Vec<_> =
        files(folder.path()).iter().map(|path| path.display().to_string()).collect();
    assert!(names.iter().any(|name| name.contains("blobs")), "{names:?}");
    let errors = damage_everything(folder.path(), &whole, 6);
    assert!(errors > 20, "only {errors} changes were noticed");
}

#[test]
fn whole_parts_that_are_missing_are_named() {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path(), 20);
    let journals = |folder: &Path| {
        let of = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "jnl");
        files(folder).into_iter().filter(of).for_each(|path| fs::remove_file(path).unwrap());
    };
    let remove =
        |name: &'static str| move |folder: &Path| fs::remove_dir_all(folder.join(name)).unwrap();
    let cases: [(Act, &str); 6] = [
        (Box::new(journals), "has lost everything"),
        (Box::new(remove("store")), "the folder store or marks is missing"),
        (Box::new(remove("marks")), "the folder store or marks is missing"),
        (Box::new(remove("store/keyspaces/1")), "keyspaces/1/current is missing"),
        (
            Box::new(|folder| fs::remove_file(folder.join("marks/1")).unwrap()),
            "end marks are missing",
        ),
        (
            Box::new(|folder| {
                fs::remove_file(folder.join("manifest")).unwrap();
                fs::remove_file(folder.join("manifest.previous")).unwrap();
            }),
            "the manifest is lost",
        ),
    ];
    for (change, sentence) in cases {
        let damaged = tempfile::tempdir().unwrap();
        copy(folder.path(), damaged.path());
        change(damaged.path());
        // Twice: the first try must not repair it into something that opens.
        for _ in 0..2 {
            let error = Log::open(damaged.path()).unwrap_err();
            assert!(error.is_damaged() && error.to_string().contains(sentence), "{error}");
        }
    }
}

#[test]
fn another_logs_store_is_not_taken_for_this_ones() {
    let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    build(one.path(), 20);
    build(other.path(), 20);
    fs::remove_dir_all(one.path().join("store")).unwrap();
    copy(&other.path().join("store"), &one.path().join("store"));
    let error = Log::open(one.path()).unwrap_err();
    assert!(error.is_damaged() && error.to_string().contains("not the one of this log"), "{error}");
}

/// The journal that is being written, and how much of it is used.
fn journal(folder: &Path) -> (PathBuf, usize) {
    let store = folder.join("store");
    let of = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "jnl");
    let path = files(&store).into_iter().rfind(of).unwrap();
    let used = used(&fs::read(&path).unwrap());
    (path, used)
}

fn payloads(folder: &Path) -> Vec<String> {
    let log = Log::open(folder).unwrap();
    let messages = read_all(&mut log.source("t", "g").unwrap()).into_values().next().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    messages.iter().map(|message| text(message.payload().unwrap())).collect()
}

/// A batch of which the process wrote a part before it died: it goes, and what comes later stays.
#[test]
fn scenario_27_a_torn_batch_is_dropped_and_appending_goes_on_where_it_began() {
    let folder = tempfile::tempdir().unwrap();
    let torn = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("t", 1).unwrap();
    let producer = log.producer("t").unwrap();
    // C is larger than the buffers between it and the file.
    let c = "C".repeat(100_000);
    let send = |payload: &str| producer.send(&Record::new().with_payload(payload)).unwrap().1.get();
    send("A");
    send("B");
    // The marks of this moment: C is not acknowledged.
    copy(folder.path(), torn.path());
    let (_, before) = journal(folder.path());
    send(&c);
    let (path, after) = journal(folder.path());
    let bytes = fs::read(&path).unwrap();
    assert!(after - before > 100_000);
    drop((log, producer));

    let name = path.strip_prefix(folder.path()).unwrap();
    let kept = before + (after - before) * 2 / 5;
    let mut file = fs::File::options().write(true).open(torn.path().join(name)).unwrap();
    file.write_all(&bytes[..kept]).unwrap();
    assert_eq!(payloads(torn.path()), ["A", "B"]);
    let log = Log::open(torn.path()).unwrap();
    let producer = log.producer("t").unwrap();
    let sent = ["D", "E"]
        .map(|payload| producer.send(&Record::new().with_payload(payload)).unwrap().1.get());
    assert_eq!(sent, [2, 3]);
    log.sync().unwrap();
    // Killed: a copy of the files as they are.
    let again = tempfile::tempdir().unwrap();
    copy(torn.path(), again.path());
    assert_eq!(payloads(again.path()), ["A", "B", "D", "E"]);
}

/// The same bytes are missing, but the batch had been acknowledged.
#[test]
fn an_acknowledged_batch_that_is_torn_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("t", 1).unwrap();
    let producer = log.producer("t").unwrap();
    producer.send(&Record::new().with_payload("A")).unwrap();
    let (_, before) = journal(folder.path());
    producer.send(&Record::new().with_payload(&"C".repeat(100_000))).unwrap();
    let (path, after) = journal(folder.path());
    drop((log, producer));
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len((before + (after - before) * 2 / 5) as u64).unwrap();
    let error = Log::open(folder.path()).unwrap_err();
    assert!(error.is_damaged());
    let text = error.to_string();
    assert!(text.contains("t/0 ends at offset 1 in the store"), "{text}");
    assert!(text.contains("had come to 2: records are missing"), "{text}");
}

/// A commit whose bytes are gone must not turn into an earlier one, or into none.
#[test]
fn an_acknowledged_commit_that_is_torn_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path()).unwrap();
    log.create_topic("t", 1).unwrap();
    let mut source = log.source("t", "g").unwrap();
    assigned(&mut source);
    commit(&mut source, QueueId::new("t", 0), 5, "").unwrap();
    let (_, before) = journal(folder.path());
    let watermark = Watermark::new(6).unwrap();
    let metadata = "m".repeat(50_000);
    let tag = Default::default();
    let queue = QueueId::new("t", 0);
    source.commit(keylane_source::Commit { queue, watermark, metadata, tag });
    let mut events = Vec::new();
    source.close(PATIENCE, &mut events).unwrap();
    assert!(matches!(&events[..], [SourceEvent::CommitResult { result: Ok(()), .. }]));
    let (path, after) = journal(folder.path());
    drop((source, log));
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len((before + (after - before) * 2 / 5) as u64).unwrap();
    let error = Log::open(folder.path()).unwrap_err();
    assert!(error.is_damaged() && error.to_string().contains("commits are missing"), "{error}");
}
