//! Members that are this test program.

use std::time::{Duration, Instant};

use keylane_source::{Message, Offset, QueueId};

use super::*;
use crate::guarantee::{Event, Outcome};
use crate::journal::Reader;

/// Not a test of its own: what a member does. It handles one message, of which it is told the key.
#[test]
fn a_member() {
    let Some(member) = Member::of_this_process() else { return };
    let message = Message::new(QueueId::new("members", 0), Offset::ZERO);
    let message = message.with_key(member.spec.clone());
    let call = member.recorder(Scope::key()).begin(&message, 0, 1);
    member.wait();
    call.settle(Outcome::Done);
}

/// Reads until there is an event like this.
fn until(reader: &mut Reader, what: impl Fn(MemberId, &Event<'_>) -> bool) {
    let start = Instant::now();
    let mut is_there = false;
    while !is_there {
        assert!(start.elapsed() < Duration::from_secs(60), "it never happened");
        reader.read(|member, event| is_there |= what(member, event)).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn members_write_to_one_journal_until_they_leave_or_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut members = Members::new("members::tests::a_member", "a key; of it", &path).unwrap();
    let mut reader = Reader::open(&path).unwrap();
    for number in 0..2 {
        assert_eq!(members.join().unwrap(), MemberId(number));
        until(&mut reader, |member, event| {
            member.0 == number && matches!(event, Event::Delivered(_))
        });
    }
    assert_eq!(members.running(), [MemberId(0), MemberId(1)]);
    members.kill(MemberId(0)).unwrap();
    members.leave(MemberId(1)).unwrap();
    assert!(members.running().is_empty());
    let error = members.leave(MemberId(1)).unwrap_err();
    assert_eq!(error.to_string(), "member 1 does not run");
    let recorder = Recorder::new(Scope::key());
    let mut said = Vec::new();
    Reader::open(&path)
        .unwrap()
        .read(|member, event| {
            recorder.note(event);
            said.push(match event {
                Event::Delivered(delivered) => format!("{} begins {}", member.0, delivered.lane),
                Event::Settled(settled) => format!("{} ends {}", member.0, settled.lane),
                Event::Crashed { .. } => format!("{} is killed", member.0),
                other => panic!("{other:?}"),
            });
        })
        .unwrap();
    let key = "key \"a key; of it\"";
    let expected = [
        format!("0 begins {key}"),
        format!("1 begins {key}"),
        "0 is killed".to_owned(),
        format!("1 ends {key}"),
    ];
    assert_eq!(said, expected);
    assert_eq!(recorder.verdict_so_far().delivered, 1);
}

#[test]
fn a_member_that_fails_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut members = Members::new("members::tests::a_member_that_panics", "", &path).unwrap();
    let member = members.join().unwrap();
    let error = members.leave(member).unwrap_err();
    assert_eq!(error.to_string(), "member 0 has failed: exit status: 101");
}

#[test]
fn a_member_that_panics() {
    if Member::of_this_process().is_some() {
        // Without a word: the one that has started it tells.
        std::panic::resume_unwind(Box::new("on purpose"));
    }
}
