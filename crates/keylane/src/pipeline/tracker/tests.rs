//! The tracker against exact values, and against a naive model.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn now() -> Instant {
    crate::time::Clock.now()
}

fn at(position: u64) -> Position {
    Position::new(position).unwrap()
}

fn offset(offset: u64) -> Offset {
    Offset::new(offset).unwrap()
}

/// Registers offsets and remembers where each one is, so that a test can finish them by offset.
struct Registered {
    tracker: Tracker,
    places: Vec<(u64, Arc<Page>, u16)>,
}

impl Registered {
    fn new(start: u64, offsets: impl IntoIterator<Item = u64>) -> Self {
        let mut tracker = Tracker::new(at(start));
        let now = now();
        let places = offsets
            .into_iter()
            .map(|number| {
                let bit = tracker.register(offset(number), 3, now);
                (number, Arc::clone(tracker.page()), bit)
            })
            .collect();
        Self { tracker, places }
    }

    fn finish(&self, number: u64) {
        let (_, page, bit) = self.places.iter().find(|place| place.0 == number).unwrap();
        let mut finished = Finished::default();
        finished.add(page, *bit);
        finished.flush(page);
    }

    fn watermark(&mut self) -> u64 {
        self.tracker.watermark().get()
    }
}

#[test]
fn the_watermark_waits_for_the_first_unfinished_message() {
    let mut queue = Registered::new(28, 28..38);
    for done in [37, 34, 36, 35, 33, 32, 31, 30, 29] {
        queue.finish(done);
        assert_eq!(queue.watermark(), 28);
    }
    assert_eq!((queue.tracker.span(), queue.tracker.unfinished()), (10, 1));
    assert!(!queue.tracker.has_room(10) && queue.tracker.has_room(11));
    queue.finish(28);
    assert!(queue.tracker.has_room(1), "the span is looked at anew");
    assert_eq!(queue.watermark(), 38);
    assert_eq!((queue.tracker.span(), queue.tracker.unfinished()), (0, 0));
}

#[test]
fn holes_and_the_position_behind_them_are_passed() {
    // Scenario 5: records at 0, 2, 4, 6; markers between and behind them; position 8, then 9.
    let mut queue = Registered::new(0, [0, 2, 4, 6]);
    queue.tracker.skip_to(at(8));
    queue.finish(0);
    assert_eq!(queue.watermark(), 2);
    queue.finish(2);
    queue.finish(6);
    assert_eq!(queue.watermark(), 4);
    queue.finish(4);
    assert_eq!(queue.watermark(), 8);
    queue.tracker.skip_to(at(9));
    assert_eq!(queue.watermark(), 9);
}

#[test]
fn an_empty_fetch_does_not_pass_a_message_in_flight() {
    let mut queue = Registered::new(0, [0]);
    queue.tracker.skip_to(at(1_000));
    assert_eq!(queue.watermark(), 0);
}

#[test]
fn a_hole_of_a_billion_offsets_costs_nothing() {
    let mut queue = Registered::new(5, [5, 1_000_000_000]);
    assert_eq!(queue.tracker.pages.len(), 1);
    queue.finish(5);
    assert_eq!(queue.watermark(), 1_000_000_000);
    assert_eq!(queue.tracker.span(), 1);
}

#[test]
fn the_last_offset_can_be_finished() {
    let last = Offset::MAX.get();
    let mut queue = Registered::new(last - 1, [last - 1, last]);
    queue.finish(last - 1);
    assert_eq!(queue.watermark(), last);
    queue.finish(last);
    assert_eq!(queue.watermark(), 1 << 63);
}

#[test]
fn who_holds_the_watermark_back_is_known() {
    let mut queue = Registered::new(0, [0, 1, 2]);
    queue.finish(0);
    queue.watermark();
    let unfinished = queue.tracker.first_unfinished().unwrap();
    assert_eq!((unfinished.offset, unfinished.way), (offset(1), 3));
    queue.finish(1);
    queue.finish(2);
    queue.watermark();
    assert_eq!(queue.tracker.first_unfinished(), None);
}

#[test]
fn finished_pages_are_let_go() {
    let messages = 10 * PAGE_MESSAGES as u64;
    let mut queue = Registered::new(0, 0..messages);
    for done in 0..messages {
        queue.finish(done);
    }
    assert_eq!(queue.watermark(), messages);
    assert_eq!(queue.tracker.pages.len(), 0);
    assert_eq!(queue.tracker.ways.len(), 0);
    assert_eq!(queue.tracker.runs.len(), 1);
}

proptest! {
    /// Any start (word boundaries and the end of the number range among them), any holes, any order
    /// of completion, repeated completions, trailing holes: after each step the watermark is the
    /// first unfinished offset, or the position.
    #[test]
    fn agrees_with_a_naive_model(
        start in prop_oneof![0..200_u64, Just(63), Just(64), Just(511), Just(512),
                             (Offset::MAX.get() - 40_000)..(Offset::MAX.get() - 30_000)],
        gaps in prop::collection::vec(prop_oneof![8 => Just(0_u64), 1 => 1..20_u64], 1..1_500),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..1_500),
        trailing in 0..3_u64,
    ) {
        let mut offsets = Vec::new();
        let mut next = start;
        for gap in gaps {
            offsets.push(next + gap);
            next = next + gap + 1;
        }
        let mut queue = Registered::new(start, offsets.iter().copied());
        queue.tracker.skip_to(at(next + trailing));
        let mut unfinished: BTreeSet<u64> = offsets.iter().copied().collect();
        for pick in picks {
            let done = *pick.get(&offsets);
            queue.finish(done);
            unfinished.remove(&done);
            let expected = unfinished.first().copied().unwrap_or(next + trailing);
            prop_assert_eq!(queue.watermark(), expected);
            prop_assert_eq!(queue.tracker.unfinished(), unfinished.len() as u64);
        }
        for done in offsets {
            queue.finish(done);
        }
        prop_assert_eq!(queue.watermark(), next + trailing);
    }
}
