//! Who of a group reads which queue: the allocation that Java calls "averagely", and its default.
//!
//! Every member computes it alone, from the same queues and the same members; so that no queue is
//! read twice or not at all, everybody must come to the same result, whatever it is written in.
//! That is why the order is Java's to the letter: strings compare by their UTF-16 units, and a
//! client id that a broker lists twice counts twice.

use std::cmp::Ordering;

use keylane_source::QueueId;

/// The queues that `own` reads, of `queues` among `members`. Neither needs to be in order. Nothing,
/// if `own` is not a member.
pub(crate) fn averagely(
    mut queues: Vec<QueueId>,
    mut members: Vec<&str>,
    own: &str,
) -> Vec<QueueId> {
    queues.sort_by(|a, b| order_of_queues(*a, *b));
    members.sort_by(|a, b| order_of_strings(a, b));
    let Some(index) = members.iter().position(|member| *member == own) else {
        return Vec::new();
    };
    let (each, rest) = (queues.len() / members.len(), queues.len() % members.len());
    // The first `rest` members take one more each.
    let start = index * each + index.min(rest);
    let length = each + usize::from(index < rest);
    queues.drain(..start);
    queues.truncate(length);
    queues
}

fn order_of_queues(a: QueueId, b: QueueId) -> Ordering {
    order_of_strings(a.topic(), b.topic())
        .then_with(|| order_of_strings(a.broker().unwrap_or(""), b.broker().unwrap_or("")))
        .then_with(|| a.index().cmp(&b.index()))
}

/// Java's `compareTo`. It differs from the order of UTF-8 above U+FFFF alone.
fn order_of_strings(a: &str, b: &str) -> Ordering {
    a.encode_utf16().cmp(b.encode_utf16())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queues(count: u32) -> Vec<QueueId> {
        (0..count).map(|index| QueueId::on_broker("t", "a", index)).collect()
    }

    fn indices(count: u32, members: &[&str], own: &str) -> Vec<u32> {
        averagely(queues(count), members.to_vec(), own).into_iter().map(QueueId::index).collect()
    }

    /// The rule as Java's class has it, branch for branch.
    fn as_java_does(queues: usize, members: usize, index: usize) -> std::ops::Range<usize> {
        let modulo = queues % members;
        let average = if queues <= members {
            1
        } else if modulo > 0 && index < modulo {
            queues / members + 1
        } else {
            queues / members
        };
        let start =
            if modulo > 0 && index < modulo { index * average } else { index * average + modulo };
        // With fewer queues than members the start of the late ones lies behind the end.
        start.min(queues)..(start + average).min(queues)
    }

    #[test]
    fn equal_shares_and_the_rest_to_the_first() {
        let members = ["b", "a", "c"];
        assert_eq!(indices(8, &members, "a"), [0, 1, 2]);
        assert_eq!(indices(8, &members, "b"), [3, 4, 5]);
        assert_eq!(indices(8, &members, "c"), [6, 7]);
    }

    #[test]
    fn more_members_than_queues() {
        let members = ["c", "a", "b"];
        assert_eq!(indices(2, &members, "a"), [0]);
        assert_eq!(indices(2, &members, "b"), [1]);
        assert!(indices(2, &members, "c").is_empty());
        assert!(indices(0, &members, "a").is_empty());
    }

    #[test]
    fn somebody_who_is_not_listed_gets_nothing() {
        assert!(indices(8, &["a", "b"], "x").is_empty());
        assert!(indices(8, &[], "x").is_empty());
    }

    #[test]
    fn a_member_that_is_listed_twice_counts_twice() {
        assert_eq!(indices(4, &["a", "b", "a"], "a"), [0, 1]);
        assert_eq!(indices(4, &["a", "b", "a"], "b"), [3]);
    }

    #[test]
    fn queues_are_ordered_by_broker_and_number_and_numbers_are_numbers() {
        let queue = QueueId::on_broker;
        let all = vec![queue("t", "b", 0), queue("t", "a", 10), queue("t", "a", 9)];
        assert_eq!(averagely(all.clone(), vec!["1", "2", "3"], "1"), [queue("t", "a", 9)]);
        assert_eq!(averagely(all, vec!["1", "2", "3"], "3"), [queue("t", "b", 0)]);
    }

    #[test]
    fn strings_are_ordered_as_in_java() {
        // U+FF5E comes before U+10000 by code point, and behind its surrogates by UTF-16 unit.
        assert!("\u{ff5e}" < "\u{10000}");
        assert_eq!(indices(2, &["\u{ff5e}", "\u{10000}"], "\u{10000}"), [0]);
        assert_eq!(indices(2, &["a", "B"], "B"), [0]);
        assert_eq!(indices(2, &["10.0.0.9@1", "10.0.0.10@1"], "10.0.0.10@1"), [0]);
    }

    proptest! {
        #[test]
        fn every_member_takes_what_java_would(queues in 0..64usize, members in 1..12usize) {
            let names: Vec<String> = (0..members).map(|n| format!("m{n:02}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let mut taken = Vec::new();
            for (index, name) in names.iter().enumerate() {
                let own = indices(u32::try_from(queues).unwrap(), &names, name);
                let java = as_java_does(queues, members, index);
                prop_assert_eq!(&own, &java.map(|n| u32::try_from(n).unwrap()).collect::<Vec<_>>());
                taken.extend(own);
            }
            let all: Vec<u32> = (0..u32::try_from(queues).unwrap()).collect();
            prop_assert_eq!(taken, all);
        }
    }
}
