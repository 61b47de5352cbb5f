//! Vectors to be filled again.

use crate::Message;

/// How many are kept.
const VECTORS_MAX: usize = 8;
/// How many messages one of them may have room for: all together are at most about 7 MiB.
const ROOM_MAX: usize = 8_192;

/// What a source keeps of the vectors that [`recycle`](crate::Source::recycle) gives back: 8 at most,
/// none with room for more than 8,192 messages. Others are dropped.
///
/// ```
/// use keylane_source::{Emptied, Message, Offset, QueueId};
///
/// let mut emptied = Emptied::default();
/// emptied.put(vec![Message::new(QueueId::new("orders", 0), Offset::ZERO)]);
/// let again = emptied.take();
/// assert!(again.is_empty() && again.capacity() > 0);
/// assert_eq!(emptied.take().capacity(), 0); // none is left: a new one
/// ```
#[derive(Debug, Default)]
pub struct Emptied(Vec<Vec<Message>>);

impl Emptied {
    /// Keeps a vector; what is still in it is dropped.
    pub fn put(&mut self, mut vector: Vec<Message>) {
        if self.0.len() < VECTORS_MAX && vector.capacity() <= ROOM_MAX {
            vector.clear();
            self.0.push(vector);
        }
    }

    /// An empty vector: the one that came last, which is the likeliest to be in a cache, or a new one.
    pub fn take(&mut self) -> Vec<Message> {
        self.0.pop().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_of_moderate_size_are_kept() {
        let mut emptied = Emptied::default();
        emptied.put(Vec::with_capacity(ROOM_MAX + 1));
        assert_eq!(emptied.take().capacity(), 0, "too large");
        (1..=10).for_each(|room| emptied.put(Vec::with_capacity(room)));
        let kept: Vec<_> = std::iter::repeat_with(|| emptied.take().capacity()).take(9).collect();
        assert_eq!(kept, [8, 7, 6, 5, 4, 3, 2, 1, 0]);
    }
}
