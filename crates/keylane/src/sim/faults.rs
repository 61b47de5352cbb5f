//! What may go wrong, and how often. Each run has some of it and none of the rest: faults that are
//! always there hide each other.

use super::random::Random;

/// Declares the faults, each with the most that its probability may be.
macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident: $most:literal,)*) => {
        /// Probabilities, 0 where the run does without.
        #[derive(Debug, Clone, Default)]
        pub(super) struct Faults { $($(#[$doc])* pub(super) $name: f64,)* }

        impl Faults {
            pub(super) fn draw(random: &mut Random) -> Self {
                // One run in ten has none, and shows that nothing else is needed to pass.
                let share = random.pick(&[0.0, 0.1, 0.1, 0.3, 0.3, 0.3, 0.5, 0.5, 0.5, 0.9]);
                let mut draw = |most: f64| {
                    let is_on = random.chance(share);
                    let strength = 1.0 / (1_u64 << random.below(6)) as f64;
                    if is_on { most * strength } else { 0.0 }
                };
                Self { $($name: draw($most),)* }
            }
        }
    };
}

faults! {
    // ── listeners: of each call ──
    /// A call takes up to a hundred times longer.
    slow: 0.3,
    /// A call does not return, until the faults end.
    hang: 0.02,
    fail: 0.4,
    panic: 0.2,
    retry_after: 0.2,
    skip: 0.1,
    dead_letter: 0.2,
    /// The listener stops the consumer.
    stop_outcome: 0.002,
    /// A ticket in place of an answer.
    ticket: 0.5,
    /// Of each ticket: it is dropped without an answer.
    ticket_dropped: 0.3,
    /// Of each ticket: it is settled long after, perhaps in another epoch.
    ticket_late: 0.3,
    /// A batch answers only for its beginning.
    partial_batch: 0.3,
    /// A batch names a message that it does not have, or too few of them.
    absurd_batch: 0.1,
    /// The thread is slow between the beginning of a call and its first message.
    slow_start: 0.3,
    /// An orderly listener gives back all that is not committed.
    rollback: 0.2,
    // ── the sink: of each letter ──
    letter_failed: 0.4,
    letter_dropped: 0.2,
    letter_slow: 0.3,
    sink_panics: 0.1,
    // ── the source: of each fetch or poll ──
    fetch_empty: 0.3,
    fetch_huge: 0.3,
    fetch_overlaps: 0.3,
    fetch_in_spite_of_pause: 0.9,
    /// Of each fetch that is under way as its queue is paused: it is given out together with the
    /// answer to a look-up, and so before the seek that follows from it.
    fetch_from_before_seek: 0.9,
    poll_fails: 0.1,
    poll_fails_for_good: 0.0005,
    queue_trouble: 0.02,
    queue_fails_for_good: 0.002,
    look_up_fails: 0.5,
    // ── commits: of each ──
    commit_fails: 0.5,
    /// It is stored, and the answer is an error.
    commit_fails_stored: 0.3,
    commit_slow: 0.3,
    commit_unanswered: 0.05,
    // ── locks: of each request ──
    lock_refused: 0.2,
    lock_fails: 0.3,
    // ── the surroundings: of each look at them ──
    lock_lost: 0.3,
    moves: 0.5,
    loses: 0.2,
    expels: 0.1,
    crashes: 0.1,
    stops: 0.1,
    pauses: 0.1,
    grows: 0.1,
    truncates: 0.1,
    offset_moved: 0.1,
    recreated: 0.05,
    /// The clock jumps, by up to minutes.
    jumps: 0.05,
    // ── the machine: of each step ──
    /// Time passes although somebody could go on.
    starves: 0.1,
    /// The time was read before the step got its turn: it lies behind what others have read since.
    reads_time_early: 0.3,
    /// What a call came to and what follows from it are two steps.
    pauses_inside: 0.5,
}
