//! Members of one group that come and go while messages flow, with the broker's locks.
//!
//! Members are processes of their own, and are killed with SIGKILL. What all of them have written to
//! one journal is [`judge`]d at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keylane::{Mode, Outcome, listen};
use keylane_rocketmq::{Config, RocketMqSource};
use keylane_source::Message;
use keylane_testkit::guarantee::{self, MemberId, Scope};
use keylane_testkit::members::{Member, Members};
use tempfile::TempDir;

use super::{
    Filler, STOP, Stage, builder, reading, start, under_load, until, until_handled, until_reading,
};
use crate::apache::{self, Apache};

mod judge;
mod tail;

use judge::Handed;
use tail::Tail;

/// So many messages are enough to say that a member takes part.
const TAKES_PART: usize = 200;
const MS: Duration = Duration::from_millis(1);
/// So short that a member that was killed is followed soon.
const LEASE: Duration = Duration::from_secs(10);
/// What the broker waits before it takes a lock for given up: more than the member trusts it.
const BROKER_LEASE: Duration = Duration::from_secs(15);

/// Whole queues go from hand to hand: nothing comes twice.
#[test]
fn queue_locked_members_that_join_and_leave_hand_over_without_a_duplicate() {
    let name = "queue_locked_members_that_join_and_leave_hand_over_without_a_duplicate";
    let Some(stage) = Stage::shared(name, 4, Scope::Queue) else { return };
    let (handed, duplicates) = join_and_leave(stage, Mode::QueueLocked);
    assert_eq!(duplicates, 0);
    assert_eq!(handed.otherwise, 0, "{handed:?}");
    assert!(handed.in_peace >= 6, "{handed:?}");
}

/// The next owner begins exactly at the first message that is not finished. What other shards had
/// finished behind that one comes again: a group's offset is one number.
#[test]
fn key_sharded_members_that_join_and_leave_hand_over_at_the_first_unfinished_message() {
    let name = "key_sharded_members_that_join_and_leave_hand_over_at_the_first_unfinished_message";
    let Some(stage) = Stage::shared(name, 4, Scope::key()) else { return };
    let (handed, duplicates) = join_and_leave(stage, Mode::KeySharded);
    println!("{duplicates} messages had been finished behind an unfinished one, and came twice");
    assert_eq!(handed.otherwise, 0, "{handed:?}");
    assert!(handed.in_peace >= 6, "{handed:?}");
}

/// How queues went from hand to hand, and how many messages came twice.
fn join_and_leave(stage: Stage, mode: Mode) -> (Handed, u64) {
    let mut members = Group::new(&stage, mode, Duration::from_secs(30));
    let mut filler = Filler::new(&stage, 400);
    come_and_go(&mut filler, &mut members, |members| {
        let first = members.join();
        members.until_shares(&[first], &[4]);
        members.until_part(first);
        let second = members.join();
        members.until_shares(&[first, second], &[2, 2]);
        members.until_part(second);
        let third = members.join();
        members.until_shares(&[first, second, third], &[2, 1, 1]);
        members.until_part(third);
        members.leave(first);
        members.until_shares(&[second, third], &[2, 2]);
        members.leave(second);
        members.until_shares(&[third], &[4]);
        members.until_part(third);
    });
    let (sent, ends) = (filler.sent, filler.ends);
    stage.until_committed(&ends);
    let (handed, verdict) = members.end(&stage);
    assert_eq!(verdict.delivered, sent, "{verdict}");
    (handed, verdict.duplicates)
}

#[test]
fn a_killed_members_queues_go_to_its_successor_once_its_locks_have_run_out() {
    let name = "a_killed_members_queues_go_to_its_successor_once_its_locks_have_run_out";
    let Some(apache) = Apache::start(name, BROKER_LEASE) else { return };
    let stage = Stage::at(apache.address(), 4, Scope::key());
    let mut members = Group::new(&stage, Mode::KeySharded, LEASE);
    let mut filler = Filler::new(&stage, 400);
    come_and_go(&mut filler, &mut members, |members| {
        let first = members.join();
        members.until_shares(&[first], &[4]);
        let second = members.join();
        members.until_shares(&[first, second], &[2, 2]);
        members.until_part(first);
        members.until_part(second);
        members.kill(first);
        let killed = Instant::now();
        members.until_shares(&[second], &[4]);
        println!("its queues are read {:.1?} after it was killed", killed.elapsed());
        members.until_part(second);
        let third = members.join();
        members.until_shares(&[second, third], &[2, 2]);
        members.until_part(third);
    });
    let (sent, ends) = (filler.sent, filler.ends);
    stage.until_committed(&ends);
    let (handed, verdict) = members.end(&stage);
    assert_eq!(verdict.delivered, sent, "{verdict}");
    assert!(handed.in_peace >= 4 && handed.otherwise >= 2, "{handed:?}");
}

/// Lets messages flow while members come and go.
fn come_and_go(filler: &mut Filler<'_>, members: &mut Group, what: impl FnOnce(&mut Group)) {
    let tail = Mutex::new(Tail::new(&members.journal));
    let handled = || {
        let mut tail = tail.lock().unwrap();
        tail.look();
        tail.handled.values().sum::<usize>() as u64
    };
    under_load(filler, handled, || what(members));
}

/// The members that there were and are.
struct Group {
    members: Members,
    journal: PathBuf,
    tail: Tail,
    _folder: TempDir,
}

impl Group {
    fn new(stage: &Stage, mode: Mode, lease: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("journal");
        let (server, topic, group) = (&stage.server, &stage.topic, &stage.group);
        let spec = format!("{server};{topic};{group};{mode:?};{}", lease.as_secs());
        let members = Members::new("engine::members::a_member", &spec, &journal).unwrap();
        Self { members, tail: Tail::new(&journal), journal, _folder: folder }
    }

    fn join(&mut self) -> MemberId {
        self.members.join().unwrap()
    }

    /// Waits until these members have so many queues each, in some order.
    fn until_shares(&mut self, members: &[MemberId], shares: &[usize]) {
        until(&format!("{shares:?} queues for {members:?}"), || {
            self.tail.look();
            let mut seen = self.tail.shares(members);
            seen.sort_unstable_by(|a, b| b.cmp(a));
            if seen == shares { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }

    /// Waits until a member has handled some messages more.
    fn until_part(&mut self, member: MemberId) {
        let handled = |tail: &mut Tail| {
            tail.look();
            tail.handled.get(&member).copied().unwrap_or_default()
        };
        let before = handled(&mut self.tail);
        until(&format!("{member:?} takes part"), || {
            let now = handled(&mut self.tail);
            if now >= before + TAKES_PART { Ok(()) } else { Err(format!("{before}, {now}")) }
        });
    }

    fn kill(&mut self, member: MemberId) {
        self.members.kill(member).unwrap();
    }

    fn leave(&mut self, member: MemberId) {
        self.members.leave(member).unwrap();
    }

    /// All leave; what their journal says.
    fn end(&mut self, stage: &Stage) -> (Handed, guarantee::Verdict) {
        self.members.running().into_iter().for_each(|member| self.leave(member));
        let handed = Handed::new(&self.journal, &stage.recorder);
        let verdict = stage.recorder.verdict();
        verdict.assert_clean();
        println!("{handed:?}; {} messages, {} twice", verdict.delivered, verdict.duplicates);
        (handed, verdict)
    }
}

/// Not a test of its own: what a member does.
#[test]
fn a_member() {
    let Some(member) = Member::of_this_process() else { return };
    let parts: Vec<&str> = member.spec.split(';').collect();
    let [server, topic, group, mode, lease] = parts[..] else { panic!("{}", member.spec) };
    let config = Config::new([server], group)
        .subscribe(topic, "*")
        .retries(false)
        .lock_lease(Duration::from_secs(lease.parse().unwrap()));
    let (mode, scope) = match mode {
        "QueueLocked" => (Mode::QueueLocked, Scope::Queue),
        _ => (Mode::KeySharded, Scope::key()),
    };
    let source = RocketMqSource::new(config).unwrap();
    let consumer = start(source, &member.recorder(scope), mode, MS);
    member.wait();
    let report = consumer.stop(STOP).unwrap();
    assert!(report.all_committed() && report.unfinished == 0, "{report}");
}

/// What Java's member says that it has handled: by queue, the offsets in their order.
type Handled = Arc<Mutex<BTreeMap<u32, Vec<u64>>>>;

#[test]
fn a_java_member_and_ours_share_the_queues_without_overlap_or_gap() {
    let name = "a_java_member_and_ours_share_the_queues_without_overlap_or_gap";
    let Some(stage) = Stage::shared(name, 4, Scope::Queue) else { return };
    let class_path = match apache::peers() {
        Ok(class_path) => class_path,
        Err(why) => return apache::skip(name, &why),
    };
    let ours: Handled = Arc::default();
    let noted = Arc::clone(&ours);
    // As Java does: all members have to subscribe alike.
    let source = RocketMqSource::new(stage.config().retries(true)).unwrap();
    let recorder = stage.recorder.clone();
    let listener = listen::each(move |message: &Message, context| {
        let call = recorder.begin(message, context.shard(), context.attempt());
        std::thread::sleep(2 * MS);
        let (queue, offset) = (message.queue().index(), message.offset().get());
        noted.lock().unwrap().entry(queue).or_default().push(offset);
        call.settle(guarantee::Outcome::Done);
        Ok(Outcome::Done)
    });
    let builder = builder(source, &stage.recorder, Mode::QueueLocked);
    let consumer = builder.start(listener).unwrap();
    let mut filler = Filler::new(&stage, 400);
    let theirs: Handled = Arc::default();
    let handled = || (count(&ours) + count(&theirs)) as u64;
    under_load(&mut filler, handled, || {
        until_handled(&consumer, 200);
        let mut java = apache::java(class_path, "peer.GroupMember");
        java.args([&stage.server, &stage.topic, &stage.group, "2"]);
        let mut java = java.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (output, noted) = (BufReader::new(java.stdout.take().unwrap()), Arc::clone(&theirs));
        let mut java = Ended(java);
        let listening = std::thread::spawn(move || listen_to(output, &noted));
        until("Java has two queues, and we have two", || {
            let (java, reading) = (theirs.lock().unwrap().len(), reading(&consumer));
            if (java, reading) == (2, 2) { Ok(()) } else { Err(format!("{java}, {reading}")) }
        });
        let before = count(&theirs);
        until("messages flow through Java", || {
            let now = count(&theirs);
            if now > before + 200 { Ok(()) } else { Err(now.to_string()) }
        });
        until_handled(&consumer, 200);
        // The end of its input: it leaves, and we have all of them.
        drop(java.0.stdin.take());
        until_reading(&consumer, 4);
        assert!(java.0.wait().unwrap().success());
        assert!(listening.join().unwrap(), "Java's member has not left in peace");
        until_handled(&consumer, 200);
    });
    stage.until_committed(&filler.ends);
    let report = consumer.stop(STOP).unwrap();
    assert!(report.all_committed(), "{report}");
    compare(&filler.ends, &ours.lock().unwrap(), &theirs.lock().unwrap());
}

/// A process that does not outlive its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Every message was handled, in its queue's order; nothing that we had finished came to Java, and
/// nothing came to us again but what Java left without storing its offset: it unlocks first.
fn compare(ends: &[u64], ours: &BTreeMap<u32, Vec<u64>>, theirs: &BTreeMap<u32, Vec<u64>>) {
    assert_eq!(theirs.len(), 2, "{:?}", theirs.keys());
    for (queue, end) in (0..).zip(ends) {
        let ours = &ours[&queue];
        assert!(ours.is_sorted_by(|a, b| a < b), "queue {queue} came out of order, or twice");
        let Some(theirs) = theirs.get(&queue) else {
            assert_eq!(ours.len() as u64, *end, "queue {queue}");
            continue;
        };
        assert!(theirs.is_sorted_by(|a, b| a < b), "Java: queue {queue} out of order, or twice");
        let all: BTreeSet<u64> = ours.iter().chain(theirs).copied().collect();
        assert_eq!(all.len() as u64, *end, "queue {queue} has gaps");
        let (first, last) = (theirs[0], theirs[theirs.len() - 1]);
        let before: Vec<u64> = ours.iter().copied().filter(|offset| *offset <= last).collect();
        // Ours up to the hand-over, and perhaps a few of theirs again after it.
        let given = before.iter().filter(|offset| **offset < first).count() as u64;
        assert_eq!(given, first, "queue {queue}: Java began elsewhere than we had ended");
    }
}

fn listen_to(output: impl BufRead, noted: &Handled) -> bool {
    for line in output.lines() {
        let line = line.unwrap();
        if line == "left" {
            return true;
        }
        let (queue, offset) = line.split_once(' ').unwrap_or_else(|| panic!("Java says {line:?}"));
        let (queue, offset) = (queue.parse().unwrap(), offset.parse().unwrap());
        noted.lock().unwrap().entry(queue).or_default().push(offset);
    }
    false
}

fn count(handled: &Handled) -> usize {
    handled.lock().unwrap().values().map(Vec::len).sum()
}
