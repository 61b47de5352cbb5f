//! The bits of 512 messages, shared between the source thread and the shards.

use std::fmt;

use crate::bug::bug;
use crate::sync::{AtomicU64, Ordering, removed};

/// Bits in a word.
const WORD: usize = u64::BITS as usize;
/// Words in a page: one cache line pair, small enough that a slow queue costs little.
const WORDS: usize = if cfg!(loom) { 2 } else { 8 };
/// Messages in a page.
pub(crate) const PAGE_MESSAGES: usize = WORDS * WORD;

/// One bit per message, set once it is finished.
///
/// Who may touch it: any thread sets bits, of messages that it was handed and only those; the
/// source thread reads. A bit is set with `Release` after the listener has returned and read with
/// `Acquire`: whoever sees a watermark sees what the listeners below it have done.
#[derive(Default)]
pub(crate) struct Page {
    words: [AtomicU64; WORDS],
}

impl Page {
    /// Sets the bits of `mask` in a word.
    pub(crate) fn set(&self, word: usize, mask: u64) {
        let order = if removed!("release a bit") { Ordering::Relaxed } else { Ordering::Release };
        self.words[word].fetch_or(mask, order);
    }

    /// How many bits are set, without a gap, from the first on.
    pub(crate) fn leading(&self) -> usize {
        let mut leading = 0;
        for word in &self.words {
            let ones = word.load(Ordering::Acquire).trailing_ones() as usize;
            leading += ones;
            if ones + usize::from(bug!("word_boundary")) < WORD {
                break;
            }
        }
        leading
    }

    /// How many bits are set.
    pub(crate) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({} of {PAGE_MESSAGES})", self.count())
    }
}

/// Collects finished messages of one page, so that a word is written once and not once a message.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    word: usize,
    mask: u64,
}

impl Finished {
    /// Adds one message; writes the word before, when the message lies in another one.
    pub(crate) fn add(&mut self, page: &Page, bit: u16) {
        let (word, mask) = (usize::from(bit) / WORD, 1 << (usize::from(bit) % WORD));
        if word != self.word {
            self.flush(page);
            self.word = word;
        }
        self.mask |= mask;
    }

    /// Writes what is left.
    pub(crate) fn flush(&mut self, page: &Page) {
        if self.mask != 0 {
            page.set(self.word, self.mask);
            self.mask = 0;
        }
    }
}
