//! Reading numbers and slices from bytes of somebody else's.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

/// What could not be decoded, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WireError(Cow<'static, str>);

impl WireError {
    pub(crate) fn new(what: impl Into<Cow<'static, str>>) -> Self {
        Self(what.into())
    }

    /// Says where it happened, in front.
    pub(crate) fn inside(self, place: impl fmt::Display) -> Self {
        Self(format!("{place}: {}", self.0).into())
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WireError {}

/// Big-endian numbers and slices, taken from the front; each is checked against what is left.
#[derive(Debug)]
pub(crate) struct Reader(Bytes);

macro_rules! number {
    ($name:ident, $type:ty) => {
        pub(crate) fn $name(&mut self, what: &'static str) -> Result<$type, WireError> {
            let Some((number, _)) = self.0.split_first_chunk() else {
                return Err(self.short(what, size_of::<$type>()));
            };
            let number = <$type>::from_be_bytes(*number);
            let _ = self.0.split_to(size_of::<$type>());
            Ok(number)
        }
    };
}

impl Reader {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    number!(u8, u8);
    number!(i16, i16);
    number!(u16, u16);
    number!(i32, i32);
    number!(u32, u32);
    number!(i64, i64);

    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    /// The next `length` bytes, shared.
    pub(crate) fn slice(&mut self, length: usize, what: &'static str) -> Result<Bytes, WireError> {
        if length > self.0.len() {
            return Err(self.short(what, length));
        }
        Ok(self.0.split_to(length))
    }

    /// A length of four bytes, not negative and not more than what is left.
    pub(crate) fn length(&mut self, what: &'static str) -> Result<usize, WireError> {
        let length = self.i32(what)?;
        match usize::try_from(length) {
            Ok(length) if length <= self.left() => Ok(length),
            Ok(length) => Err(self.short(what, length)),
            Err(_) => Err(WireError::new(format!("{what}: a length of {length}"))),
        }
    }

    /// Everything that is left.
    pub(crate) fn rest(self) -> Bytes {
        self.0
    }

    /// Everything must have been used.
    pub(crate) fn finish(self, what: &'static str) -> Result<(), WireError> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(WireError::new(format!("{what}: {left} bytes too many"))),
        }
    }

    fn short(&self, what: &'static str, wanted: usize) -> WireError {
        WireError::new(format!("{what}: {wanted} bytes announced, {} there", self.left()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(bytes: &'static [u8]) -> Reader {
        Reader::new(Bytes::from_static(bytes))
    }

    #[test]
    fn numbers_are_big_endian_and_end_with_the_bytes() {
        let mut reader = reader(&[0, 0, 1, 2, 0xff]);
        assert_eq!(reader.i32("a"), Ok(258));
        assert_eq!(reader.i16("b").unwrap_err().to_string(), "b: 2 bytes announced, 1 there");
        assert_eq!(reader.u8("c"), Ok(255));
        assert_eq!(reader.finish("d"), Ok(()));
    }

    #[test]
    fn a_length_is_neither_negative_nor_longer_than_the_rest() {
        assert_eq!(reader(&[0xff; 4]).length("n").unwrap_err().to_string(), "n: a length of -1");
        assert_eq!(
            reader(&[0, 0, 0, 2, 9]).length("n").unwrap_err().to_string(),
            "n: 2 bytes announced, 1 there"
        );
        assert_eq!(reader(&[0, 0, 0, 1, 9]).length("n"), Ok(1));
    }

    #[test]
    fn what_is_left_over_is_an_error() {
        let mut reader = reader(b"abc");
        assert_eq!(reader.slice(2, "s"), Ok(Bytes::from_static(b"ab")));
        assert_eq!(reader.finish("s").unwrap_err().to_string(), "s: 1 bytes too many");
    }
}
