//! Where things stand in a queue: three numbers that must not be mixed up.
//!
//! Brokers store offsets as signed 64-bit integers and use the negative ones as sentinels ("none",
//! "unknown"). No sentinel enters here: an [`Offset`] is `0..=i64::MAX`, and what comes behind the
//! last one, the [`Position`] `2^63`, is a value too.

use std::fmt;

/// The highest offset that a message can have.
const OFFSET_MAX: u64 = i64::MAX as u64;
/// One past it: the highest position.
const POSITION_MAX: u64 = OFFSET_MAX + 1;

/// The place of one message in its queue: `0..=i64::MAX`.
///
/// ```
/// use keylane_source::{Offset, Position};
///
/// let offset = Offset::new(41).unwrap();
/// assert_eq!(offset.next(), Position::new(42).unwrap());
/// assert_eq!(Offset::new(u64::MAX), None);
/// assert_eq!(Offset::from_i64(-1), None); // a broker's sentinel is not an offset
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(u64);

/// The next offset to read: everything below it has been read or holds no message.
/// `0..=2^63`, so that there is one behind the last offset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u64);

/// The position below which everything is finished: what is committed, as brokers count it (the
/// next offset to read after a restart).
///
/// ```
/// use keylane_source::{Position, Watermark};
///
/// let watermark = Watermark::new(42).unwrap();
/// assert_eq!(Position::from(watermark), Position::new(42).unwrap());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Watermark(u64);

impl Offset {
    /// The offset of a queue's first message, where the broker counts from zero.
    pub const ZERO: Self = Self(0);

    /// The highest offset: `i64::MAX`.
    pub const MAX: Self = Self(OFFSET_MAX);

    /// `None` above `i64::MAX`.
    pub const fn new(offset: u64) -> Option<Self> {
        if offset <= OFFSET_MAX { Some(Self(offset)) } else { None }
    }

    /// As a broker writes it; `None` when negative, which is how brokers write "none".
    pub const fn from_i64(offset: i64) -> Option<Self> {
        if offset < 0 { None } else { Some(Self(offset as u64)) }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position right behind this message.
    pub const fn next(self) -> Position {
        Position(self.0 + 1)
    }
}

/// What [`Position`] and [`Watermark`] have in common: a bound between messages.
macro_rules! bound {
    ($name:ident, $what:literal) => {
        impl $name {
            /// The start of a queue that counts from zero.
            pub const ZERO: Self = Self(0);

            #[doc = concat!("`None` above `2^63`: no ", $what, " lies there.")]
            pub const fn new(bound: u64) -> Option<Self> {
                if bound <= POSITION_MAX { Some(Self(bound)) } else { None }
            }

            /// As a broker writes it; `None` when negative, which is how brokers write "none".
            pub const fn from_i64(bound: i64) -> Option<Self> {
                if bound < 0 { None } else { Some(Self(bound as u64)) }
            }

            /// The number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// For brokers, which count in signed integers: `2^63`, behind the very last offset,
            /// becomes `i64::MAX`. That last message alone would be delivered again.
            pub const fn to_i64(self) -> i64 {
                if self.0 > OFFSET_MAX { i64::MAX } else { self.0 as i64 }
            }
        }
    };
}

bound!(Position, "position");
bound!(Watermark, "watermark");

impl Position {
    /// How many offsets lie from `self` up to `end`, zero when `end` is behind.
    pub const fn distance_to(self, end: Self) -> u64 {
        end.0.saturating_sub(self.0)
    }
}

impl From<Offset> for Position {
    /// The position of the message itself: it is the next one to read.
    fn from(offset: Offset) -> Self {
        Self(offset.0)
    }
}

impl From<Watermark> for Position {
    fn from(watermark: Watermark) -> Self {
        Self(watermark.0)
    }
}

impl From<Position> for Watermark {
    /// To be used where everything below the position is known to be finished.
    fn from(position: Position) -> Self {
        Self(position.0)
    }
}

macro_rules! shown_as_number {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    )*};
}

shown_as_number!(Offset Position Watermark);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_exact() {
        assert_eq!(Offset::new(OFFSET_MAX), Some(Offset::MAX));
        assert_eq!(Offset::new(OFFSET_MAX + 1), None);
        assert_eq!(Offset::MAX.next().get(), 1 << 63);
        assert_eq!(Position::new(1 << 63), Some(Offset::MAX.next()));
        assert_eq!(Position::new((1 << 63) + 1), None);
        assert_eq!(Watermark::new((1 << 63) + 1), None);
    }

    #[test]
    fn brokers_see_signed_numbers() {
        assert_eq!(Watermark::from_i64(-1), None);
        assert_eq!(Watermark::from_i64(i64::MAX).map(Watermark::to_i64), Some(i64::MAX));
        assert_eq!(Watermark::from(Offset::MAX.next()).to_i64(), i64::MAX);
    }

    #[test]
    fn distance_saturates() {
        let (low, high) = (Position::ZERO, Position::new(7).unwrap());
        assert_eq!((low.distance_to(high), high.distance_to(low)), (7, 0));
    }
}
