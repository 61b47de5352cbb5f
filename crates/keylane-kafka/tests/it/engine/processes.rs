//! Members that are processes: they join, leave, and are killed with SIGKILL, under load.
//!
//! A child is this test program, told by a variable to be a member. All of them append what they
//! see to one log ([`notes`]); since the operating system keeps its lines in the order in which they
//! were written, and a member writes before it acts, the log tells what happened in an order that is
//! possible. At the end the checkers are fed with it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use keylane::{Consumer, Message, Outcome, listen};
use keylane_kafka::KafkaSource;
use keylane_testkit::guarantee::Scope;
use keylane_testkit::recorder::Recorder;

use super::{Filler, STOP, Stage, under_load, until};
use crate::fetch::COOPERATIVE;

mod notes;

use notes::{Log, Noted};

/// `number;servers;topic;log;name=value;...` makes this program a member.
const MEMBER: &str = "KEYLANE_TEST_MEMBER";
/// How many calls of a member are enough to say that it takes part.
const TAKES_PART: usize = 150;

#[test]
fn members_come_and_go_and_are_killed_with_the_eager_protocol() {
    come_and_go(&[("partition.assignment.strategy", "range"), SESSION]);
}

#[test]
fn members_come_and_go_and_are_killed_with_the_cooperative_protocol() {
    come_and_go(&[COOPERATIVE, SESSION]);
}

#[test]
fn members_come_and_go_and_are_killed_with_the_new_protocol() {
    come_and_go(&[("group.protocol", "consumer")]);
}

const SESSION: (&str, &str) = ("session.timeout.ms", "3000");

fn come_and_go(settings: &[(&str, &str)]) {
    let Some(stage) = Stage::new("processes", 6, &[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut members = Members::new(&stage, folder.path().join("log"), settings);
    let mut filler = Filler::new(&stage, 6, 400);
    let (fourth, fifth) = under_load(&mut filler, || {
        let first = members.join();
        let second = members.join();
        let third = members.join();
        members.kill(first);
        let fourth = members.join();
        members.leave(second);
        members.kill(third);
        members.until_part(fourth, 2 * TAKES_PART);
        (fourth, members.join())
    });
    stage.until_committed(6);
    members.leave(fourth);
    members.leave(fifth);
    // Told first what there is, then what happened.
    let recorder = Recorder::new(Scope::key());
    filler.announce(&recorder);
    let killed = notes::replay(&members.log, &recorder);
    assert_eq!(killed, 2);
    let verdict = recorder.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.delivered, filler.sent, "{verdict}");
}

impl Filler {
    /// Says to another recorder what was written.
    fn announce(&self, recorder: &Recorder) {
        use keylane_source::{Offset, Position, QueueId};
        for (index, end) in self.ends.iter().enumerate() {
            let queue = QueueId::new(&self.topic, u32::try_from(index).unwrap());
            recorder.produced_range(queue, Offset::ZERO, Position::new(*end).unwrap());
        }
    }
}

/// The members that there were and are.
struct Members {
    spec: String,
    log: PathBuf,
    running: Vec<Option<Child>>,
}

impl Members {
    fn new(stage: &Stage, log: PathBuf, settings: &[(&str, &str)]) -> Self {
        let mut spec = format!("{};{};{}", stage.broker.servers, stage.broker.topic, log.display());
        settings.iter().for_each(|(name, value)| spec.push_str(&format!(";{name}={value}")));
        Self { spec, log, running: Vec::new() }
    }

    /// Starts one, and waits until it has its part.
    fn join(&mut self) -> usize {
        let number = self.running.len();
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "engine::processes::a_member", "--nocapture"]);
        program.env(MEMBER, format!("{number};{}", self.spec));
        program.stdin(Stdio::piped()).stdout(Stdio::null());
        self.running.push(Some(program.spawn().unwrap()));
        self.until_part(number, TAKES_PART);
        number
    }

    fn until_part(&self, number: usize, calls: usize) {
        until(&format!("member {number} takes part"), || {
            let seen = notes::calls_of(&self.log, number);
            if seen >= calls { Ok(()) } else { Err(format!("{seen} calls")) }
        });
    }

    fn kill(&mut self, number: usize) {
        let mut child = self.running[number].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        Log::open(&self.log).killed(number);
    }

    /// Asks it to stop, by the end of its input.
    fn leave(&mut self, number: usize) {
        let mut child = self.running[number].take().unwrap();
        drop(child.stdin.take());
        let status = child.wait().unwrap();
        assert!(status.success(), "member {number} did not stop well: {status}");
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for mut child in self.running.drain(..).flatten() {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// Not a test of its own: what a child does.
#[test]
fn a_member() {
    let Ok(spec) = std::env::var(MEMBER) else { return };
    let mut parts = spec.split(';');
    let mut next = || parts.next().unwrap().to_owned();
    let (number, servers, topic, log) = (next(), next(), next(), next());
    let log = Log::of_member(Path::new(&log), number.parse().unwrap());
    let mut source = KafkaSource::builder(servers, &topic).subscribe([&topic]);
    let mut named = HashSet::new();
    for (name, value) in parts.filter_map(|setting| setting.split_once('=')) {
        source = source.set(name, value);
        assert!(named.insert(name));
    }
    let source = Noted::new(source.build().unwrap(), log.clone());
    let consumer = Consumer::builder(source)
        .shards(8)
        .commit_interval(Duration::from_millis(200))
        .start(listen::each(move |message: &Message, context| {
            let call = log.begin(message, context.shard(), context.attempt());
            std::thread::sleep(Duration::from_millis(1));
            log.done(call, message);
            Ok(Outcome::Done)
        }))
        .unwrap();
    // Until the parent closes it.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    let report = consumer.stop(STOP).unwrap();
    assert!(report.all_committed() && report.unfinished == 0, "{report}");
}
