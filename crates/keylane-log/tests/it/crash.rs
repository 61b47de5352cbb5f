//! `kill -9` at any moment: what was acknowledged is there, nothing is half there, and what is
//! committed was committed.
//!
//! The test runs its own binary again as a child that appends and commits, and says on its standard
//! output what was acknowledged. The parent kills it and looks. What the child had read out is what
//! it may rely on: a line is written after the acknowledgement.
#![expect(clippy::unwrap_used, reason = "this is part of the tests")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use keylane_log::{Fsync, Log, Options, Record, Retention};
use keylane_source::{
    Commit, CommitTag, Committed, QueueId, SeekTo, Source, SourceEvent, Watermark,
};

use crate::support::{LIMITS, assigned};

const QUEUES: u32 = 3;
const FOLDER: &str = "KEYLANE_LOG_CRASH_FOLDER";
const SEED: &str = "KEYLANE_LOG_CRASH_SEED";
const RETENTION: &str = "KEYLANE_LOG_CRASH_RETENTION";
/// Rounds on one folder, and folders that are killed while they are created.
const ROUNDS: u64 = 8;
const CREATIONS: u64 = 8;

/// SplitMix64: enough to choose moments, and the same for a seed everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Each policy in turn.
fn options(seed: u64) -> Options {
    let fsync = match seed % 3 {
        0 => Fsync::Never,
        1 => Fsync::Interval(Duration::from_millis(3)),
        _ => Fsync::EveryBatch,
    };
    let consumed = std::env::var_os(RETENTION).is_some();
    Options::new().fsync(fsync).retention(if consumed {
        Retention::Consumed
    } else {
        Retention::Keep
    })
}

/// The child's part: does nothing in an ordinary run of the tests.
#[test]
fn the_child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    if let Err(error) = write_until_killed(Path::new(&folder), seed) {
        say(&format!("error {error}"));
    }
}

/// Standard output as it is: the test harness has taken `println!` away.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "# {line}").and_then(|()| out.flush()).is_err() {
        // The parent is gone.
        std::process::exit(1);
    }
}

fn write_until_killed(folder: &Path, seed: u64) -> Result<(), keylane_log::Error> {
    say("start");
    let log = options(seed).open(folder)?;
    say("open");
    log.ensure_topic("t", QUEUES)?;
    let producer = log.producer("t")?;
    let mut source = log.source("t", "g")?;
    let mut random = Random(seed);
    let filler = vec![0x5a; 20_000];
    let mut batch = producer.batch();
    let mut events = Vec::new();
    for round in 0.. {
        if round % 64 == 63 {
            let name = format!("extra {seed} {round}");
            log.create_topic(&name, 2)?;
            say(&format!("topic {name}"));
        }
        // Every record says how many its batch has, so that a part of one is seen.
        let size = 1 + random.below(30);
        let batch_name = format!("{seed}.{round}");
        for _ in 0..size {
            let length = usize::try_from(random.below(20_000)).unwrap_or(0);
            let key = format!("{batch_name} {size}");
            let queue = u32::try_from(random.below(QUEUES.into())).unwrap_or(0);
            let record = Record::new().with_key(&key).with_payload(&filler[..length]);
            batch.push(&record.to_queue(queue))?;
        }
        let appended = producer.append(&mut batch)?;
        for one in &appended {
            say(&format!("end {} {}", one.queue.index(), one.first.get() + one.count));
        }
        let ends = appended.iter().map(|one| (one.queue, one.first.get() + one.count));
        for (queue, end) in ends.filter(|_| random.below(3) == 0) {
            let watermark = Watermark::new(end).unwrap_or(Watermark::ZERO);
            let metadata = format!("m{end}");
            source.commit(Commit { queue, watermark, metadata, tag: CommitTag(end) });
        }
        // A poll that fails would show in the parent as a commit that is never acknowledged.
        let _ = source.poll(LIMITS, Duration::ZERO, &mut events);
        for event in events.drain(..) {
            if let SourceEvent::CommitResult { commit, result: Ok(()) } = event {
                say(&format!("commit {} {}", commit.queue.index(), commit.watermark));
            }
        }
    }
    Ok(())
}

pub(crate) struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

pub(crate) fn child(folder: &Path, seed: u64, retention: Retention) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if retention == Retention::Consumed {
        command.env(RETENTION, "consumed");
    }
    let mut child = command
        .args(["crash::the_child", "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    Running { child, lines }
}

impl Running {
    /// The next line that the child said; `None` when it has ended.
    fn line(&mut self) -> Option<String> {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        lines.find_map(|line| line.split_once("# ").map(|(_, said)| said.to_owned()))
    }

    /// Kills it; what it had said before was acknowledged too.
    fn kill(&mut self, acknowledged: &mut Acknowledged) {
        self.child.kill().unwrap();
        self.wait_with_output_lines().iter().for_each(|line| acknowledged.hear(line));
    }

    pub(crate) fn wait_with_output_lines(&mut self) -> Vec<String> {
        let lines = std::iter::from_fn(|| self.line()).collect();
        self.child.wait().unwrap();
        lines
    }
}

/// What the child has said.
#[derive(Debug, Default)]
struct Acknowledged {
    ends: BTreeMap<u32, u64>,
    commits: BTreeMap<u32, u64>,
    topics: Vec<String>,
}

impl Acknowledged {
    fn hear(&mut self, line: &str) {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        let numbers: Vec<u64> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
        match what {
            "end" => drop(self.ends.insert(u32::try_from(numbers[0]).unwrap(), numbers[1])),
            "commit" => drop(self.commits.insert(u32::try_from(numbers[0]).unwrap(), numbers[1])),
            "topic" => self.topics.push(rest.to_owned()),
            "start" | "open" => {}
            _ => panic!("the child said: {line}"),
        }
    }
}

/// From the environment, to have a run again, or another one each time. Printed.
#[expect(clippy::print_stdout, reason = "shown where a test fails")]
fn seed() -> u64 {
    let given = std::env::var("KEYLANE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
    println!("KEYLANE_SEED={seed}");
    seed
}

fn kill_in_rounds(retention: Retention) {
    let seed = seed();
    let mut random = Random(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = Acknowledged::default();
    for round in 0..ROUNDS {
        let mut running = child(folder.path(), seed.wrapping_add(round), retention);
        for _ in 0..random.below(600) {
            let line = running.line().expect("the child ended by itself");
            acknowledged.hear(&line);
        }
        running.kill(&mut acknowledged);
        check(folder.path(), &mut acknowledged, retention);
    }
    assert!(acknowledged.ends.len() == 3, "nothing was written: {acknowledged:?}");
}

#[test]
fn a_killed_process_loses_nothing_that_was_acknowledged() {
    kill_in_rounds(Retention::Keep);
}

#[test]
fn the_same_while_records_are_removed() {
    kill_in_rounds(Retention::Consumed);
}

#[test]
fn a_process_killed_while_it_creates_a_log_leaves_one_or_none() {
    let seed = seed();
    let mut random = Random(seed);
    for round in 0..CREATIONS {
        let folder = tempfile::tempdir().unwrap();
        let mut acknowledged = Acknowledged::default();
        let mut running = child(folder.path(), seed.wrapping_add(round), Retention::Keep);
        assert_eq!(running.line().as_deref(), Some("start"));
        // Not to wait for something, but to hit another instruction each time.
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        running.kill(&mut acknowledged);
        let log = Log::open(folder.path()).unwrap();
        log.ensure_topic("t", QUEUES).unwrap();
        drop(log);
        check(folder.path(), &mut acknowledged, Retention::Keep);
    }
}

/// Opens the log and compares it with what was acknowledged; moves that to what is there now.
fn check(folder: &Path, acknowledged: &mut Acknowledged, retention: Retention) {
    let log = Log::open(folder).unwrap();
    log.verify().unwrap();
    assert!(log.power_loss().is_empty(), "{:?}", log.power_loss());
    for name in &acknowledged.topics {
        assert_eq!(log.topic(name).unwrap().queues.len(), 2);
    }
    let Ok(mut source) = log.source("t", "g") else {
        assert!(acknowledged.ends.is_empty(), "topic t is gone");
        return;
    };
    let mut batches: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let topic = log.topic("t").unwrap();
    for (queue, committed) in assigned(&mut source) {
        let index = queue.index();
        let info = topic.queues[index as usize];
        let end = acknowledged.ends.get(&index).copied().unwrap_or(0);
        assert!(info.end.get() >= end, "{queue} ends at {}, not {end}", info.end);
        acknowledged.ends.insert(index, info.end.get());
        let least = acknowledged.commits.get(&index).copied();
        match committed {
            Committed::None => assert_eq!(least, None, "{queue}"),
            Committed::At { watermark, metadata } => {
                assert_eq!(metadata, format!("m{watermark}"));
                assert!(Some(watermark.get()) >= least && watermark.get() <= info.end.get());
                assert!(info.begin.get() <= watermark.get());
                acknowledged.commits.insert(index, watermark.get());
            }
            other => panic!("{other:?}"),
        }
        source.seek(queue, SeekTo::Earliest);
    }
    count(&mut source, &mut batches);
    if retention == Retention::Keep {
        assert!(topic.queues.iter().all(|queue| queue.begin.get() == 0));
        let part = batches.iter().find(|(_, (is, should))| is != should);
        assert_eq!(part, None, "a batch is there in part");
    }
}

/// How many records each batch has, and should have; each queue read without a gap.
fn count(source: &mut keylane_log::LogSource, batches: &mut BTreeMap<String, (u64, u64)>) {
    let mut next: BTreeMap<QueueId, u64> = BTreeMap::new();
    let mut events = Vec::new();
    loop {
        source.poll(LIMITS, Duration::ZERO, &mut events).unwrap();
        if events.is_empty() {
            return;
        }
        for event in events.drain(..) {
            let fetch = match event {
                SourceEvent::Fetched(fetch) => fetch,
                SourceEvent::End { .. } => continue,
                other => panic!("{other:?}"),
            };
            for message in fetch.messages {
                let offset = message.offset().get();
                let expected = next.entry(fetch.queue).or_insert(offset);
                assert_eq!(offset, *expected);
                *expected += 1;
                let key = String::from_utf8(message.key().unwrap().to_vec()).unwrap();
                let (batch, size) = key.split_once(' ').unwrap();
                let entry = batches.entry(batch.to_owned()).or_insert((0, size.parse().unwrap()));
                entry.0 += 1;
            }
        }
    }
}
