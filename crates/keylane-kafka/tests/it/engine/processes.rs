//! Members that are processes: they join, leave, and are killed with SIGKILL, under load. What all
//! of them have written to one journal is judged at the end.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use keylane_kafka::KafkaSource;
use keylane_testkit::guarantee::{Event, MemberId, Scope};
use keylane_testkit::journal::Reader;
use keylane_testkit::members::{Member, Members};

use super::{Filler, STOP, Stage, start, under_load, until};
use crate::fetch::COOPERATIVE;

/// How many messages of a member are enough to say that it takes part.
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
    let journal = folder.path().join("journal");
    let mut group = Group::new(&stage, &journal, settings);
    let mut filler = Filler::new(&stage, 6, 400);
    under_load(&mut filler, || {
        let first = group.join();
        let second = group.join();
        let third = group.join();
        group.members.kill(first).unwrap();
        let fourth = group.join();
        group.members.leave(second).unwrap();
        group.members.kill(third).unwrap();
        group.until_part(fourth, 2 * TAKES_PART);
        group.join();
    });
    stage.until_committed(6);
    let left = group.members.running();
    left.into_iter().for_each(|member| group.members.leave(member).unwrap());
    // The stage's recorder knows already what there is.
    let mut killed = 0;
    Reader::open(&journal)
        .unwrap()
        .read(|member, event| {
            killed += usize::from(matches!(event, Event::Crashed { .. }));
            assert!(!matches!(event, Event::Reset { .. }), "member {}: {event:?}", member.0);
            stage.recorder.note(event);
        })
        .unwrap();
    assert_eq!(killed, 2);
    stage.verdict(Vec::new(), filler.sent);
}

/// The members that there were and are, and how many messages each has handled.
struct Group {
    members: Members,
    reader: Reader,
    handled: HashMap<MemberId, usize>,
}

impl Group {
    fn new(stage: &Stage, journal: &Path, settings: &[(&str, &str)]) -> Self {
        let mut spec = format!("{};{}", stage.broker.servers, stage.broker.topic);
        settings.iter().for_each(|(name, value)| spec.push_str(&format!(";{name}={value}")));
        let members = Members::new("engine::processes::a_member", &spec, journal).unwrap();
        Self { members, reader: Reader::open(journal).unwrap(), handled: HashMap::new() }
    }

    /// Starts one, and waits until it has its part.
    fn join(&mut self) -> MemberId {
        let member = self.members.join().unwrap();
        self.until_part(member, TAKES_PART);
        member
    }

    fn until_part(&mut self, member: MemberId, messages: usize) {
        until(&format!("member {} takes part", member.0), || {
            let count = |member, event: &Event<'_>| {
                let handled = usize::from(matches!(event, Event::Settled(_)));
                *self.handled.entry(member).or_default() += handled;
            };
            self.reader.read(count).unwrap();
            let seen = self.handled.get(&member).copied().unwrap_or_default();
            if seen >= messages { Ok(()) } else { Err(format!("{seen} messages")) }
        });
    }
}

/// Not a test of its own: what a member does.
#[test]
fn a_member() {
    let Some(member) = Member::of_this_process() else { return };
    let mut parts = member.spec.split(';');
    let mut next = || parts.next().unwrap().to_owned();
    let (servers, topic) = (next(), next());
    let mut source = KafkaSource::builder(servers, &topic).subscribe([&topic]);
    let mut named = HashSet::new();
    for (name, value) in parts.filter_map(|setting| setting.split_once('=')) {
        source = source.set(name, value);
        assert!(named.insert(name));
    }
    let consumer = start(source, &member.recorder(Scope::key()), Duration::from_millis(1));
    member.wait();
    let report = consumer.stop(STOP).unwrap();
    assert!(report.all_committed() && report.unfinished == 0, "{report}");
}
