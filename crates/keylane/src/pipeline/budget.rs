//! How many messages and bytes may be in flight: the only backpressure. A state machine of the
//! source thread; the shards only report what they have finished.
//!
//! Of `max`, half is divided among the assigned queues as a reserve (at least one message each), the
//! rest is shared: a queue that is stuck can use up the shared part, and never another queue's
//! reserve. In flight are then at most `max` messages, or as many as there are queues if that is
//! more. Queues that come later find their reserves in use: until those are given back they have one
//! message each, beyond `max`.
//!
//! Bytes are divided the same way. A message that is larger than what its queue may have is admitted
//! when nothing else of its queue is in flight and it fits beside what the others have; one that is
//! larger than the whole budget is admitted alone, when nothing at all is in flight, and nothing is
//! admitted beside it.

/// What one queue has in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

/// See the module's description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Budget {
    max: Used,
    queue_messages_max: usize,
    /// What each queue may use whatever the others do.
    reserve: Used,
    /// What all queues together may use beyond their reserves, and how much of it they do.
    shared_max: Used,
    shared: Used,
    total: Used,
}

impl Budget {
    pub(crate) fn new(max: Used, queue_messages_max: usize) -> Self {
        let mut budget = Self {
            max,
            queue_messages_max,
            reserve: Used::default(),
            shared_max: Used::default(),
            shared: Used::default(),
            total: Used::default(),
        };
        budget.divide(std::iter::empty());
        budget
    }

    /// Divides the reserve anew, among the queues that use this.
    pub(crate) fn divide(&mut self, queues: impl Iterator<Item = Used> + Clone) {
        let count = queues.clone().count().max(1);
        self.reserve = Used {
            messages: (self.max.messages / 2 / count).max(1),
            bytes: self.max.bytes / 2 / count,
        };
        self.shared_max = Used {
            messages: self.max.messages.saturating_sub(self.reserve.messages * count),
            bytes: self.max.bytes - self.reserve.bytes * count,
        };
        self.shared = Used::default();
        for used in queues {
            self.shared.messages += used.messages.saturating_sub(self.reserve.messages);
            self.shared.bytes += used.bytes.saturating_sub(self.reserve.bytes);
        }
    }

    /// Admits messages of the queue that uses this.
    pub(crate) fn granting<'a>(&'a mut self, used: &'a mut Used) -> Granting<'a> {
        Granting { grant: self.grant(*used), taken: Used::default(), budget: self, used }
    }

    /// Admits one message of `bytes`, if it fits.
    fn admit(&mut self, used: &mut Used, bytes: usize) -> bool {
        if !self.fits(*used, bytes) {
            return false;
        }
        self.take(used, Used { messages: 1, bytes });
        true
    }

    fn take(&mut self, used: &mut Used, more: Used) {
        let (messages, bytes) = (used.messages + more.messages, used.bytes + more.bytes);
        self.change(used, Used { messages, bytes });
    }

    /// Any messages that stay within this fit, one after the other; others may.
    fn grant(&self, used: Used) -> Used {
        if self.total.bytes > self.max.bytes {
            return Used::default(); // Nothing goes beside the one that is larger than all.
        }
        let left = |max: usize, used: usize| max.saturating_sub(used);
        let own = |reserve: usize, used: usize, max: usize, shared: usize| {
            left(reserve, used) + left(max, shared)
        };
        let (reserve, max, shared) = (self.reserve, self.shared_max, self.shared);
        let messages = own(reserve.messages, used.messages, max.messages, shared.messages);
        let bytes = own(reserve.bytes, used.bytes, max.bytes, shared.bytes);
        Used {
            messages: messages
                .min(left(self.max.messages, self.total.messages))
                .min(left(self.queue_messages_max, used.messages)),
            bytes: bytes.min(left(self.max.bytes, self.total.bytes)),
        }
    }

    fn fits(&self, used: Used, bytes: usize) -> bool {
        if self.total.messages == 0 {
            return true;
        }
        let first = used.messages == 0;
        if self.total.bytes + bytes > self.max.bytes {
            // Of a queue that comes late a message within its reserve, which others still use.
            return first && bytes <= self.reserve.bytes && self.total.bytes <= self.max.bytes;
        }
        if first {
            return true;
        }
        if self.total.messages >= self.max.messages {
            // What was admitted before the last division may exceed what that has left.
            return false;
        }
        let shared_bytes = (used.bytes + bytes).saturating_sub(self.reserve.bytes)
            - used.bytes.saturating_sub(self.reserve.bytes);
        used.messages < self.queue_messages_max
            && (used.messages < self.reserve.messages
                || self.shared.messages < self.shared_max.messages)
            && (shared_bytes == 0 || self.shared.bytes + shared_bytes <= self.shared_max.bytes)
    }

    /// Gives back what has been finished.
    pub(crate) fn release(&mut self, used: &mut Used, messages: usize, bytes: usize) {
        let after = Used { messages: used.messages - messages, bytes: used.bytes - bytes };
        self.change(used, after);
    }

    fn change(&mut self, used: &mut Used, after: Used) {
        let over = |n: usize, reserve: usize| n.saturating_sub(reserve);
        let (before, reserve) = (*used, self.reserve);
        self.total.messages = self.total.messages - before.messages + after.messages;
        self.total.bytes = self.total.bytes - before.bytes + after.bytes;
        self.shared.messages = self.shared.messages - over(before.messages, reserve.messages)
            + over(after.messages, reserve.messages);
        self.shared.bytes = self.shared.bytes - over(before.bytes, reserve.bytes)
            + over(after.bytes, reserve.bytes);
        *used = after;
    }

    /// What all queues have in flight.
    pub(crate) fn total(&self) -> Used {
        self.total
    }
}

/// Admits messages of one queue, one after the other. What all of them take is counted once, at the
/// end: as long as they stay within what was granted at the beginning, each costs two additions.
#[derive(Debug)]
pub(crate) struct Granting<'a> {
    budget: &'a mut Budget,
    used: &'a mut Used,
    grant: Used,
    /// Admitted within the grant and not counted yet.
    taken: Used,
}

impl Granting<'_> {
    /// Admits one message of `bytes`, if it fits.
    pub(crate) fn admit(&mut self, bytes: usize) -> bool {
        let (messages, all) = (self.taken.messages + 1, self.taken.bytes + bytes);
        if messages <= self.grant.messages && all <= self.grant.bytes {
            self.taken = Used { messages, bytes: all };
            return true;
        }
        self.count();
        let admitted = self.budget.admit(self.used, bytes);
        self.grant = self.budget.grant(*self.used);
        admitted
    }

    fn count(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        self.budget.take(self.used, taken);
    }
}

impl Drop for Granting<'_> {
    fn drop(&mut self) {
        self.count();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn budget(messages: usize, bytes: usize, queues: usize) -> (Budget, Vec<Used>) {
        let mut budget = Budget::new(Used { messages, bytes }, messages);
        let used = vec![Used::default(); queues];
        budget.divide(used.iter().copied());
        (budget, used)
    }

    /// Admits until nothing more fits.
    fn fill(budget: &mut Budget, used: &mut Used, bytes: usize) -> usize {
        (0..).take_while(|_| budget.admit(used, bytes)).count()
    }

    #[test]
    fn a_stuck_queue_leaves_the_others_their_reserve() {
        let (mut budget, mut used) = budget(100, 1 << 20, 4);
        // Its own reserve of 12, and the shared part of 100 - 4 * 12.
        assert_eq!(fill(&mut budget, &mut used[0], 1), 12 + 52);
        for used in &mut used[1..] {
            assert_eq!(fill(&mut budget, used, 1), 12);
        }
        assert_eq!(budget.total().messages, 100);
        budget.release(&mut used[0], 5, 5);
        assert_eq!(fill(&mut budget, &mut used[3], 1), 5);
    }

    #[test]
    fn each_queue_has_one_message_however_many_there_are() {
        let (mut budget, mut used) = budget(2, 1 << 20, 10);
        let admitted: Vec<_> = used.iter_mut().map(|used| fill(&mut budget, used, 1)).collect();
        assert_eq!(admitted, [1; 10]);
    }

    #[test]
    fn bytes_are_bounded_and_divided_too() {
        let (mut budget, mut used) = budget(1_000, 1_000, 2);
        assert_eq!(fill(&mut budget, &mut used[0], 100), 7); // 250 reserved, 500 shared
        assert_eq!(fill(&mut budget, &mut used[1], 100), 3); // 250 reserved, and the last 50 shared
        assert_eq!(budget.total(), Used { messages: 10, bytes: 1_000 });
    }

    #[test]
    fn a_message_larger_than_the_budget_goes_alone() {
        let (mut budget, mut used) = budget(100, 1_000, 2);
        assert!(budget.admit(&mut used[0], 100));
        assert!(!budget.admit(&mut used[1], 1_500));
        budget.release(&mut used[0], 1, 100);
        assert!(budget.admit(&mut used[1], 1_500));
        assert!(!budget.admit(&mut used[0], 1), "nothing goes beside it");
        budget.release(&mut used[1], 1, 1_500);
        assert!(budget.admit(&mut used[0], 1));
    }

    #[test]
    fn a_message_larger_than_what_its_queue_may_have_waits_for_room_only() {
        let (mut budget, mut used) = budget(100, 1_000, 5); // 100 reserved, 500 shared
        assert_eq!(fill(&mut budget, &mut used[0], 10), 60);
        assert!(!budget.admit(&mut used[1], 401), "400 are left");
        budget.release(&mut used[0], 30, 300);
        assert!(budget.admit(&mut used[1], 700), "the others' traffic may never end");
        assert!(!budget.admit(&mut used[1], 1), "it has more than its share");
        assert_eq!(budget.total(), Used { messages: 31, bytes: 1_000 });
    }

    #[test]
    fn behind_others_of_its_queue_a_message_that_is_too_large_waits() {
        let (mut budget, mut used) = budget(100, 1_000, 2); // 250 reserved, 500 shared
        assert!(budget.admit(&mut used[0], 1));
        assert!(!budget.admit(&mut used[0], 751));
        budget.release(&mut used[0], 1, 1);
        assert!(budget.admit(&mut used[1], 1) && budget.admit(&mut used[0], 751));
    }

    #[test]
    fn queues_that_come_later_do_not_raise_the_bound() {
        let (mut budget, mut used) = budget(100, 1_000, 1);
        assert_eq!(fill(&mut budget, &mut used[0], 1), 100);
        used.push(Used::default());
        budget.divide(used.iter().copied());
        // One message, so that a queue that is stuck does not stop it; its reserve is still in use.
        assert_eq!(fill(&mut budget, &mut used[1], 1), 1);
        budget.release(&mut used[0], 10, 10);
        assert_eq!(fill(&mut budget, &mut used[1], 1), 9);
        assert_eq!(budget.total().messages, 100);
    }

    #[test]
    fn a_queue_can_have_a_bound_of_its_own() {
        let mut budget = Budget::new(Used { messages: 100, bytes: 1 << 20 }, 7);
        let mut used = Used::default();
        assert_eq!(fill(&mut budget, &mut used, 1), 7);
    }

    proptest! {
        #[test]
        fn what_is_admitted_in_one_go_is_what_is_admitted_one_by_one(
            (max_messages, max_bytes, queue_max) in (1_usize..40, 1_usize..400, 1_usize..40),
            pulls in prop::collection::vec(
                (0_usize..4, prop::collection::vec(0_usize..120, 1..20), 0_usize..30),
                1..20,
            ),
        ) {
            let max = Used { messages: max_messages, bytes: max_bytes };
            let mut budget = Budget::new(max, queue_max);
            let mut used = [Used::default(); 4];
            budget.divide(used.iter().copied());
            for (queue, sizes, given_back) in pulls {
                let (mut single, mut single_used) = (budget.clone(), used[queue]);
                let one_by_one: Vec<_> =
                    sizes.iter().map(|&bytes| single.admit(&mut single_used, bytes)).collect();
                let mut granting = budget.granting(&mut used[queue]);
                let in_one_go: Vec<_> = sizes.iter().map(|&bytes| granting.admit(bytes)).collect();
                drop(granting);
                prop_assert_eq!(in_one_go, one_by_one);
                prop_assert_eq!((&budget, used[queue]), (&single, single_used));
                let messages = given_back.min(used[queue].messages);
                let bytes = if messages == used[queue].messages { used[queue].bytes } else { 0 };
                budget.release(&mut used[queue], messages, bytes);
            }
        }
    }

    #[test]
    fn everything_given_back_leaves_nothing() {
        let (mut budget, mut used) = budget(10, 100, 3);
        for queue in [0, 1, 2, 0, 0] {
            assert!(budget.admit(&mut used[queue], 7));
        }
        budget.divide(used.iter().copied());
        for used in &mut used {
            let Used { messages, bytes } = *used;
            budget.release(used, messages, bytes);
        }
        assert_eq!((budget.total(), budget.shared), (Used::default(), Used::default()));
    }
}
