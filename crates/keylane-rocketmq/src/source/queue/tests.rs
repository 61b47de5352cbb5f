use super::*;
use keylane_source::{Offset, Watermark};
use proptest::prelude::*;

const LONG: Duration = Duration::from_secs(1);
const ALL: FetchLimits = FetchLimits { messages: 100, bytes: usize::MAX };

fn at(number: u64) -> Position {
    Position::new(number).unwrap()
}

fn id() -> QueueId {
    QueueId::on_broker("t", "a", 0)
}

fn reading(from: u64) -> Queue {
    let mut queue = Queue::new(id(), Turn(1));
    assert!(queue.assigned(Turn(1), Committed::None).is_some());
    queue.read_from(Turn(2), at(from));
    queue
}

fn messages(range: std::ops::Range<u64>) -> Result<Pulled, Error> {
    let message = |n| Message::new(id(), Offset::new(n).unwrap()).with_payload("12345678");
    Ok(Pulled::Found(Found {
        messages: range.clone().map(message).collect(),
        position: at(range.end),
        end: EndOffset::At(at(100)),
        gaps: Gaps::AskAgain,
    }))
}

fn nothing(position: u64) -> Result<Pulled, Error> {
    Ok(Pulled::Nothing { position: at(position), end: EndOffset::At(at(100)) })
}

fn failed() -> Result<Pulled, Error> {
    Err(Error::unreachable("gone"))
}

fn given(queue: &mut Queue, limits: FetchLimits) -> Option<(Vec<u64>, u64)> {
    match queue.give(limits)? {
        SourceEvent::Fetched(fetch) => {
            let offsets = fetch.messages.iter().map(|message| message.offset().get()).collect();
            Some((offsets, fetch.position.get()))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_engine_is_told_once_and_only_about_this_turn() {
    let committed = || Committed::at(Watermark::ZERO);
    let mut queue = Queue::new(id(), Turn(5));
    assert!(queue.assigned(Turn(4), committed()).is_none());
    assert!(!queue.is_known());
    assert!(queue.assigned(Turn(5), committed()).is_some());
    assert!(queue.assigned(Turn(5), committed()).is_none());
    assert!(queue.plan_pull(Instant::now()).is_none(), "nobody said where to read");
}

#[test]
fn one_pull_at_a_time_and_none_while_something_waits() {
    let (mut queue, now) = (reading(3), Instant::now());
    let first = queue.plan_pull(now).unwrap();
    assert_eq!((first.from, first.hold, first.turn), (at(3), false, Turn(2)));
    assert_eq!(queue.plan_pull(now), None);
    assert!(matches!(queue.pulled(Turn(2), messages(3..6), LONG, now), Next::Go));
    assert_eq!(queue.plan_pull(now), None, "three messages wait");
    assert_eq!(given(&mut queue, ALL), Some((vec![3, 4, 5], 6)));
    let second = queue.plan_pull(now).unwrap();
    assert_eq!((second.from, second.hold), (at(6), true));
}

#[test]
fn what_does_not_fit_the_limits_waits() {
    let (mut queue, now) = (reading(0), Instant::now());
    queue.plan_pull(now);
    queue.pulled(Turn(2), messages(0..5), LONG, now);
    let limits = |messages, bytes| FetchLimits { messages, bytes };
    assert_eq!(given(&mut queue, limits(2, 1_000)), Some((vec![0, 1], 2)));
    assert_eq!(given(&mut queue, limits(9, 0)), Some((vec![2], 3)), "one, whatever its size");
    assert_eq!(given(&mut queue, limits(9, 16)), Some((vec![3, 4], 5)));
    assert_eq!(given(&mut queue, ALL), None);
}

#[test]
fn an_answer_of_an_older_turn_changes_nothing() {
    let (mut queue, now) = (reading(0), Instant::now());
    queue.plan_pull(now);
    queue.read_from(Turn(3), at(50));
    assert!(matches!(queue.pulled(Turn(2), messages(0..5), LONG, now), Next::Stale));
    assert_eq!(queue.plan_pull(now).unwrap().from, at(50));
    assert!(!queue.has_news());
    queue.revoke(Turn(4));
    assert!(matches!(queue.pulled(Turn(3), messages(50..55), LONG, now), Next::Stale));
    assert!(queue.is_revoking() && !queue.has_news());
    assert_eq!(queue.plan_pull(now), None);
}

#[test]
fn a_paused_queue_keeps_what_came() {
    let (mut queue, now) = (reading(0), Instant::now());
    queue.plan_pull(now);
    queue.pause();
    queue.pulled(Turn(2), messages(0..2), LONG, now);
    assert_eq!((given(&mut queue, ALL), queue.plan_pull(now)), (None, None));
    queue.resume();
    assert_eq!(given(&mut queue, ALL), Some((vec![0, 1], 2)));
    queue.pause();
    assert_eq!(queue.plan_pull(now), None, "a paused queue is not pulled");
}

#[test]
fn a_position_that_moves_without_messages_is_given_out_and_an_end_too() {
    let (mut queue, now) = (reading(0), Instant::now());
    queue.plan_pull(now);
    queue.pulled(Turn(2), nothing(0), Duration::ZERO, now);
    assert!(matches!(queue.give(ALL), Some(SourceEvent::End { .. })));
    queue.plan_pull(now);
    queue.pulled(Turn(2), nothing(7), Duration::ZERO, now);
    assert_eq!(given(&mut queue, ALL), Some((vec![], 7)));
    queue.plan_pull(now);
    queue.pulled(Turn(2), nothing(7), LONG, now);
    assert!(queue.give(ALL).is_none(), "no news");
}

#[test]
fn answers_without_news_and_without_waiting_are_not_asked_for_at_once() {
    let (mut queue, now) = (reading(0), Instant::now());
    queue.plan_pull(now);
    assert!(
        matches!(queue.pulled(Turn(2), nothing(0), Duration::ZERO, now), Next::Go),
        "the first"
    );
    queue.give(ALL);
    queue.plan_pull(now);
    let next = queue.pulled(Turn(2), nothing(0), Duration::ZERO, now);
    assert!(matches!(next, Next::At(at) if at == now + IDLE), "{next:?}");
    assert_eq!(queue.plan_pull(now), None);
    queue.plan_pull(now + IDLE).unwrap();
    assert!(matches!(queue.pulled(Turn(2), nothing(0), IDLE, now), Next::Go), "it was held");
}

#[test]
fn failures_wait_longer_and_longer_and_a_success_ends_that() {
    let (mut queue, mut now) = (reading(0), Instant::now());
    let mut waits = Vec::new();
    for _ in 0..8 {
        queue.plan_pull(now).unwrap();
        let Next::Trouble(SourceEvent::QueueError { error, .. }, at) =
            queue.pulled(Turn(2), failed(), LONG, now)
        else {
            panic!("no trouble");
        };
        assert_eq!(error.to_string(), "pull t@a/0 at 0: gone");
        assert_eq!(queue.plan_pull(now), None, "not before its time");
        waits.push((at - now).as_millis());
        now = at;
    }
    assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_000, 3_000, 3_000]);
    queue.plan_pull(now).unwrap();
    queue.pulled(Turn(2), nothing(1), LONG, now);
    queue.give(ALL);
    queue.plan_pull(now).unwrap();
    let next = queue.pulled(Turn(2), failed(), LONG, now);
    assert!(matches!(next, Next::Trouble(_, at) if at == now + RETRY_FIRST), "{next:?}");
    queue.retry_now(now);
    assert!(queue.plan_pull(now).is_some(), "its broker is there again");
}

#[test]
fn a_seek_that_fails_is_due_again_after_its_time() {
    let (mut queue, now) = (reading(0), Instant::now());
    queue.seek(Turn(3));
    let error = || SourceError::retryable("gone");
    assert!(matches!(queue.seek_failed(Turn(2), error(), now), Next::Stale));
    let Next::Trouble(_, at) = queue.seek_failed(Turn(3), error(), now) else { panic!() };
    assert!(!queue.seek_is_due(now));
    assert!(queue.seek_is_due(at));
    assert!(!queue.seek_is_due(at), "once");
}

#[test]
fn a_reset_stops_reading_until_the_next_seek() {
    for (asked, in_range) in [(4, false), (5, true), (10, true), (11, false)] {
        let (mut queue, now) = (reading(asked), Instant::now());
        queue.plan_pull(now);
        let moved = Pulled::Moved { to: at(7), begin: at(5), end: at(10) };
        let next = queue.pulled(Turn(2), Ok(moved), LONG, now);
        let Next::Stop(SourceEvent::Reset { cause, .. }) = next else { panic!("{next:?}") };
        let moved = matches!(cause, ResetCause::Moved { to } if to == at(7));
        assert_eq!(moved, in_range, "asked for {asked}: {cause:?}");
        assert_eq!(queue.plan_pull(now), None);
        queue.read_from(Turn(3), at(7));
        assert!(queue.plan_pull(now).is_some());
    }
}

proptest! {
    /// Whatever happens in whatever order: offsets are given out once, in order, without a hole.
    #[test]
    fn everything_once_and_in_order(steps in proptest::collection::vec(0..7u8, 1..200)) {
        let (mut queue, now) = (reading(0), Instant::now());
        let (mut pull, mut expected) = (None, 0u64);
        for step in steps {
            match step {
                0 | 1 => pull = pull.or(queue.plan_pull(now + LONG * 10)),
                2 | 3 => {
                    if let Some(plan) = pull.take() {
                        let from = plan.from.get();
                        queue.pulled(plan.turn, messages(from..from + 3), LONG, now);
                    }
                }
                4 => {
                    if let Some(plan) = pull.take() {
                        queue.pulled(plan.turn, failed(), LONG, now);
                    }
                }
                5 => queue.pause(),
                _ => queue.resume(),
            }
            let limits = FetchLimits { messages: 2, bytes: usize::MAX };
            if let Some((offsets, position)) = given(&mut queue, limits) {
                for offset in offsets {
                    prop_assert_eq!(offset, expected);
                    expected += 1;
                }
                prop_assert_eq!(position, expected);
            }
        }
    }
}

#[test]
fn only_the_newest_look_up_counts() {
    let is_told = |queue: &mut Queue, turn| {
        let committed = Committed::at(Watermark::ZERO);
        matches!(queue.looked_up(turn, committed), Some(SourceEvent::LookedUp { .. }))
    };
    let mut queue = reading(0);
    queue.looks_up(Turn(3));
    queue.looks_up(Turn(4));
    assert!(!is_told(&mut queue, Turn(3)), "asked before the lock was held");
    assert!(is_told(&mut queue, Turn(4)));
    assert!(!is_told(&mut queue, Turn(4)), "once");
    queue.looks_up(Turn(5));
    queue.revoke(Turn(6));
    assert!(!is_told(&mut queue, Turn(5)));
}

#[test]
fn a_queue_without_news_is_checked_at_intervals() {
    let (start, every) = (Instant::now(), Duration::from_millis(100));
    let at_ms = |ms| start + Duration::from_millis(ms);
    let mut queue = reading(5);
    let pull = queue.plan_pull(start).unwrap();
    let is_due = |queue: &mut Queue, ms| {
        let (plan, again_at) = queue.plan_check(every, at_ms(ms));
        (plan.is_some(), again_at.map(|at| at.duration_since(start).as_millis()))
    };
    assert_eq!(is_due(&mut queue, 0), (false, Some(100)));
    assert_eq!(is_due(&mut queue, 50), (false, None), "an alarm of something else");
    assert!(matches!(queue.pulled(pull.turn, nothing(5), LONG, at_ms(60)), Next::Go));
    assert_eq!(is_due(&mut queue, 100), (false, Some(160)), "the pull has said where it is");
    queue.pause();
    let (check, again_at) = queue.plan_check(every, at_ms(160));
    let check = check.unwrap();
    assert!(check.is_check && !check.hold && again_at == Some(at_ms(260)));
    assert_eq!(is_due(&mut queue, 260), (false, Some(360)), "one at a time");
    assert!(queue.checked(check.turn, check.from, failed(), at_ms(300)).is_none());
    assert_eq!(is_due(&mut queue, 360), (true, Some(460)));
    assert!(queue.checked(check.turn, check.from, nothing(5), at_ms(380)).is_none());
    assert_eq!(is_due(&mut queue, 460), (false, Some(480)));
}

#[test]
fn a_check_sees_that_the_offset_was_moved_and_nothing_else() {
    let (now, every) = (Instant::now(), Duration::from_millis(100));
    let moved = |to, begin, end| Ok(Pulled::Moved { to: at(to), begin: at(begin), end: at(end) });
    let check = |queue: &mut Queue| {
        assert!(queue.plan_check(every, now).0.is_none());
        queue.plan_check(every, now + every).0.unwrap()
    };
    let cause = |event| match event {
        Some(SourceEvent::Reset { cause, .. }) => cause,
        other => panic!("{other:?}"),
    };

    let mut queue = reading(5);
    let plan = check(&mut queue);
    assert!(queue.checked(plan.turn, plan.from, messages(5..6), now).is_none());
    assert!(!queue.has_news(), "messages are the pulls'");

    let mut queue = reading(5);
    let (pull, plan) = (queue.plan_pull(now).unwrap(), check(&mut queue));
    let event = queue.checked(plan.turn, plan.from, moved(2, 0, 10), now);
    assert!(matches!(cause(event), ResetCause::Moved { to } if to == at(2)));
    assert!(matches!(queue.pulled(pull.turn, messages(5..6), LONG, now), Next::Stale));
    assert!(queue.checked(plan.turn, plan.from, moved(2, 0, 10), now).is_none(), "told once");

    let mut queue = reading(5);
    let plan = check(&mut queue);
    let event = queue.checked(plan.turn, plan.from, moved(7, 7, 10), now);
    assert!(matches!(cause(event), ResetCause::OutOfRange { asked, .. } if asked == at(5)));

    let mut queue = reading(5);
    let (pull, plan) = (queue.plan_pull(now).unwrap(), check(&mut queue));
    assert!(matches!(queue.pulled(pull.turn, messages(5..9), LONG, now), Next::Go));
    assert!(queue.checked(plan.turn, plan.from, moved(7, 7, 10), now).is_none(), "read on");
    let event = queue.checked(plan.turn, plan.from, moved(2, 0, 10), now);
    assert!(matches!(cause(event), ResetCause::Moved { to } if to == at(2)));
}
