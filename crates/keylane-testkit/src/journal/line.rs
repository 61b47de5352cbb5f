//! Events as lines of text, and lines as events.

use std::fmt::Write;

use keylane_source::{Message, Offset, Position, QueueId, ResetCause, Watermark};

use crate::guarantee::{
    CallId, CommitStep, Delivered, Epoch, Event, Found, Lane, MemberId, Outcome, Settled,
};

const STEPS: [(CommitStep, &str); 3] =
    [(CommitStep::Asked, "asked"), (CommitStep::Stored, "stored"), (CommitStep::Failed, "failed")];

const OUTCOMES: [(Outcome, &str); 7] = [
    (Outcome::Done, "done"),
    (Outcome::Held, "held"),
    (Outcome::Skipped, "skipped"),
    (Outcome::DeadLettered, "dead-lettered"),
    (Outcome::GivenUp, "given-up"),
    (Outcome::Failed, "failed"),
    (Outcome::Ignored, "ignored"),
];

/// Where something is not given, or not known.
const NONE: &str = "-";

/// What stands behind the member.
pub(super) fn text(event: &Event<'_>) -> String {
    match *event {
        Event::Produced { queue, first, end } => {
            format!("produced {} {first} {end}", name(queue))
        }
        Event::Assigned { queue, epoch, found, start, .. } => {
            let found = match found {
                Found::At(watermark) => watermark.to_string(),
                Found::Nothing => "nothing".to_owned(),
                Found::Unknown => NONE.to_owned(),
            };
            let start = start.map_or(NONE.to_owned(), |start| start.to_string());
            format!("assigned {} {} {found} {start}", name(queue), epoch.0)
        }
        Event::Fetched { queue, epoch, messages, position } => {
            let offsets = ranges(messages.iter().map(Message::offset));
            format!("fetched {} {} {offsets} {position}", name(queue), epoch.0)
        }
        Event::Delivered(Delivered {
            call, queue, epoch, offset, lane, shard, attempt, ..
        }) => {
            let (queue, lane) = (name(queue), of_lane(lane));
            format!("delivered {} {queue} {} {offset} {lane} {shard} {attempt}", call.0, epoch.0)
        }
        Event::Settled(Settled { call, queue, epoch, offset, lane, outcome, .. }) => {
            let call = call.map_or(NONE.to_owned(), |call| call.0.to_string());
            let (queue, lane, outcome) = (name(queue), of_lane(lane), word(&OUTCOMES, outcome));
            format!("settled {call} {queue} {} {offset} {lane} {outcome}", epoch.0)
        }
        Event::Committed { queue, epoch, watermark, step } => {
            let step = word(&STEPS, step);
            format!("committed {} {} {watermark} {step}", name(queue), epoch.0)
        }
        Event::Rewound { queue, lane, offsets } => {
            let offsets = ranges(offsets.iter().copied());
            format!("rewound {} {} {offsets}", name(queue), of_lane(lane))
        }
        Event::Revoked { queue, epoch } => format!("revoked {} {}", name(queue), epoch.0),
        Event::Lost { queue, epoch } => format!("lost {} {}", name(queue), epoch.0),
        Event::Reset { queue, epoch, cause } => {
            format!("reset {} {} {}", name(queue), epoch.0, of_cause(cause))
        }
        Event::Closing { .. } => "closing".to_owned(),
        Event::Crashed { .. } => "crashed".to_owned(),
        Event::Stopped { .. } => "stopped".to_owned(),
    }
}

/// Shows the event of a line, its end taken off; `None` where it is not one.
pub(super) fn parse(line: &str, see: impl FnOnce(MemberId, Event<'_>)) -> Option<()> {
    let (member, line) = line.split_once(' ')?;
    let member = MemberId(member.parse().ok()?);
    let words: Vec<&str> = line.split(' ').collect();
    let event = match words[..] {
        ["produced", queue, first, end] => {
            Event::Produced { queue: queue_of(queue)?, first: offset(first)?, end: position(end)? }
        }
        ["assigned", queue, epoch, found, start] => Event::Assigned {
            member,
            queue: queue_of(queue)?,
            epoch: epoch_of(epoch)?,
            found: match found {
                "nothing" => Found::Nothing,
                NONE => Found::Unknown,
                watermark => Found::At(watermark_of(watermark)?),
            },
            start: if start == NONE { None } else { Some(position(start)?) },
        },
        ["fetched", queue, epoch, offsets, end] => {
            let queue = queue_of(queue)?;
            let offsets = offsets_of(offsets)?.into_iter();
            let messages: Vec<_> = offsets.map(|offset| Message::new(queue, offset)).collect();
            let (epoch, position) = (epoch_of(epoch)?, position(end)?);
            see(member, Event::Fetched { queue, epoch, messages: &messages, position });
            return Some(());
        }
        ["delivered" | "settled", call, ..] => return parse_call(member, call, &words, see),
        ["committed", queue, epoch, watermark, step] => Event::Committed {
            queue: queue_of(queue)?,
            epoch: epoch_of(epoch)?,
            watermark: watermark_of(watermark)?,
            step: value(&STEPS, step)?,
        },
        ["rewound", queue, lane, offsets] => {
            let (lane, offsets) = (lane_of(lane)?, offsets_of(offsets)?);
            let queue = queue_of(queue)?;
            see(member, Event::Rewound { queue, lane: &lane, offsets: &offsets });
            return Some(());
        }
        ["revoked", queue, epoch] => {
            Event::Revoked { queue: queue_of(queue)?, epoch: epoch_of(epoch)? }
        }
        ["lost", queue, epoch] => Event::Lost { queue: queue_of(queue)?, epoch: epoch_of(epoch)? },
        ["reset", queue, epoch, ref cause @ ..] => {
            let (queue, epoch, cause) = (queue_of(queue)?, epoch_of(epoch)?, cause_of(cause)?);
            see(member, Event::Reset { queue, epoch, cause: &cause });
            return Some(());
        }
        ["closing"] => Event::Closing { member },
        ["crashed"] => Event::Crashed { member },
        ["stopped"] => Event::Stopped { member },
        _ => return None,
    };
    see(member, event);
    Some(())
}

/// What begins or ends a call.
fn parse_call(
    member: MemberId,
    call: &str,
    words: &[&str],
    see: impl FnOnce(MemberId, Event<'_>),
) -> Option<()> {
    let &[what, _, queue, epoch, at, lane, ref more @ ..] = words else { return None };
    let (queue, epoch, offset) = (queue_of(queue)?, epoch_of(epoch)?, offset(at)?);
    let lane = &lane_of(lane)?;
    let call = if call == NONE { None } else { Some(CallId(call.parse().ok()?)) };
    let event = match (what, more) {
        ("delivered", [shard, attempt]) => {
            let (call, shard, attempt) = (call?, shard.parse().ok()?, attempt.parse().ok()?);
            Event::Delivered(Delivered { member, call, queue, epoch, offset, lane, shard, attempt })
        }
        ("settled", [outcome]) => {
            let outcome = value(&OUTCOMES, outcome)?;
            Event::Settled(Settled { member, call, queue, epoch, offset, lane, outcome })
        }
        _ => return None,
    };
    see(member, event);
    Some(())
}

fn word<T: PartialEq + Copy>(words: &[(T, &'static str)], value: T) -> &'static str {
    words.iter().find(|(one, _)| *one == value).map_or(NONE, |(_, word)| word)
}

fn value<T: Copy>(words: &[(T, &str)], word: &str) -> Option<T> {
    words.iter().find(|(_, one)| *one == word).map(|(value, _)| *value)
}

fn name(queue: QueueId) -> String {
    let topic = encode(queue.topic().as_bytes());
    match queue.broker() {
        None => format!("{topic}/{}", queue.index()),
        Some(broker) => format!("{topic}@{}/{}", encode(broker.as_bytes()), queue.index()),
    }
}

fn queue_of(name: &str) -> Option<QueueId> {
    let decoded = |text| String::from_utf8(decode(text)?).ok();
    let (name, index) = name.rsplit_once('/')?;
    let index = index.parse().ok()?;
    Some(match name.split_once('@') {
        None => QueueId::new(&decoded(name)?, index),
        Some((topic, broker)) => QueueId::on_broker(&decoded(topic)?, &decoded(broker)?, index),
    })
}

fn of_lane(lane: &Lane) -> String {
    match lane {
        Lane::Key(key) => format!("key:{}", encode(key)),
        Lane::Queue => "queue".to_owned(),
        Lane::Free => "free".to_owned(),
    }
}

fn lane_of(text: &str) -> Option<Lane> {
    match text {
        "queue" => Some(Lane::Queue),
        "free" => Some(Lane::Free),
        _ => Some(Lane::key(decode(text.strip_prefix("key:")?)?)),
    }
}

fn of_cause(cause: &ResetCause) -> String {
    match cause {
        ResetCause::OutOfRange { asked, begin, end } => {
            format!("out-of-range {asked} {begin} {end}")
        }
        ResetCause::Moved { to } => format!("moved {to}"),
        ResetCause::Recreated { begin } => format!("recreated {begin}"),
        other => panic!("a journal has no words for {other:?}"),
    }
}

fn cause_of(words: &[&str]) -> Option<ResetCause> {
    Some(match words {
        ["out-of-range", asked, begin, end] => ResetCause::OutOfRange {
            asked: position(asked)?,
            begin: position(begin)?,
            end: position(end)?,
        },
        ["moved", to] => ResetCause::Moved { to: position(to)? },
        ["recreated", begin] => ResetCause::Recreated { begin: offset(begin)? },
        _ => return None,
    })
}

/// Ascending offsets as `0-4,7-7`, both ends included.
fn ranges(offsets: impl Iterator<Item = Offset>) -> String {
    let mut ranges: Vec<(Offset, Offset)> = Vec::new();
    for offset in offsets {
        match ranges.last_mut() {
            Some((_, last)) if last.next() == Position::from(offset) => *last = offset,
            _ => ranges.push((offset, offset)),
        }
    }
    if ranges.is_empty() {
        return NONE.to_owned();
    }
    let ranges: Vec<_> = ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect();
    ranges.join(",")
}

fn offsets_of(text: &str) -> Option<Vec<Offset>> {
    let mut offsets = Vec::new();
    for range in text.split(',').filter(|range| *range != NONE) {
        let (first, last) = range.split_once('-')?;
        for at in first.parse::<u64>().ok()?..=last.parse().ok()? {
            offsets.push(Offset::new(at)?);
        }
    }
    Some(offsets)
}

/// Letters, digits and a few signs are themselves; other bytes are percent-encoded.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend(parts.next()?.bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend(part[2..].bytes());
    }
    Some(bytes)
}

fn offset(text: &str) -> Option<Offset> {
    Offset::new(text.parse().ok()?)
}

fn position(text: &str) -> Option<Position> {
    Position::new(text.parse().ok()?)
}

fn watermark_of(text: &str) -> Option<Watermark> {
    Watermark::new(text.parse().ok()?)
}

fn epoch_of(text: &str) -> Option<Epoch> {
    Some(Epoch(text.parse().ok()?))
}
