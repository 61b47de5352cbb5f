//! Bodies that a producer has compressed.

use std::io::{self, Read};

use bytes::Bytes;

use super::read::WireError;

/// The longest body after decompression. Producers send at most 4 MiB unless told otherwise; a
/// few bytes that claim to be gigabytes are an attack or an accident.
pub(crate) const BODY_MAX: usize = 64 * 1024 * 1024;

/// How a body was compressed: bits 8 to 10 of a message's flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    Lz4,
    Zstd,
    Zlib,
}

impl Compression {
    pub(crate) fn from_flags(flags: i32) -> Result<Self, WireError> {
        match (flags >> 8) & 0b111 {
            // Producers before 5.0 know only zlib, and leave the bits alone.
            0 | 3 => Ok(Self::Zlib),
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            other => Err(WireError::new(format!("body compressed in an unknown way ({other})"))),
        }
    }

    /// The body, which must not be longer than `longest`, nor than any body may be.
    pub(crate) fn decompress(self, body: &[u8], longest: usize) -> Result<Bytes, WireError> {
        let longest = longest.min(BODY_MAX);
        let plain = match self {
            Self::Zlib => bounded(flate2::read::ZlibDecoder::new(body), longest),
            Self::Lz4 => bounded(lz4_flex::frame::FrameDecoder::new(body), longest),
            Self::Zstd => ruzstd::decoding::StreamingDecoder::new(body)
                .map_err(io::Error::other)
                .and_then(|plain| bounded(plain, longest)),
        };
        plain.map_err(|error| WireError::new(format!("{self:?} body: {error}")))
    }
}

/// Bodies from this length on are compressed before they are sent, as the Java client does.
const COMPRESS_FROM: usize = 4 * 1024;

/// A body as it is sent, and the flags that say how: zlib, which every version understands.
pub(crate) fn for_sending(body: &Bytes) -> (Bytes, i32) {
    if body.len() < COMPRESS_FROM {
        return (body.clone(), 0);
    }
    let mut small = Vec::new();
    let level = flate2::Compression::fast();
    match flate2::read::ZlibEncoder::new(&body[..], level).read_to_end(&mut small) {
        Ok(_) if small.len() < body.len() => (small.into(), super::message::COMPRESSED),
        _ => (body.clone(), 0),
    }
}

fn bounded(plain: impl Read, longest: usize) -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    plain.take(longest as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > longest {
        return Err(io::Error::other(format!("more than {longest} bytes decompressed")));
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn compressed(how: Compression, body: &[u8]) -> Vec<u8> {
        match how {
            Compression::Zlib => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
                encoder.write_all(body).unwrap();
                encoder.finish().unwrap()
            }
            Compression::Lz4 => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
                encoder.write_all(body).unwrap();
                encoder.finish().unwrap()
            }
            Compression::Zstd => {
                ruzstd::encoding::compress_to_vec(body, ruzstd::encoding::CompressionLevel::Fastest)
            }
        }
    }

    #[test]
    fn flags_name_the_way() {
        let way = |flags| Compression::from_flags(flags);
        assert_eq!(way(0x001), Ok(Compression::Zlib));
        assert_eq!(way(0x101), Ok(Compression::Lz4));
        assert_eq!(way(0x201), Ok(Compression::Zstd));
        assert_eq!(way(0x301), Ok(Compression::Zlib));
        assert!(way(0x401).is_err());
    }

    #[test]
    fn each_way_back() {
        let body = b"account 9: withdraw 5; ".repeat(400);
        for how in [Compression::Zlib, Compression::Lz4, Compression::Zstd] {
            let small = compressed(how, &body);
            assert!(small.len() < body.len(), "{how:?}");
            assert_eq!(how.decompress(&small, BODY_MAX).unwrap(), body, "{how:?}");
            let cut = how.decompress(&small[..small.len() / 2], BODY_MAX);
            assert!(cut.is_err(), "{how:?}: half a body is not a body");
        }
    }

    #[test]
    fn long_bodies_are_sent_compressed_where_that_helps() {
        let (long, short) = (Bytes::from(vec![b'x'; 4096]), Bytes::from(vec![b'x'; 4095]));
        let (small, flags) = for_sending(&long);
        assert!(small.len() < 100);
        assert_eq!(
            Compression::from_flags(flags).unwrap().decompress(&small, BODY_MAX).unwrap(),
            long
        );
        assert_eq!(for_sending(&short), (short.clone(), 0));
        // What cannot be compressed (a linear congruential sequence's high bytes) is left alone.
        let mut state = 1u64;
        let noise: Bytes = (0..8192)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state.to_be_bytes()[0]
            })
            .collect();
        assert!(for_sending(&noise) == (noise.clone(), 0));
    }

    #[test]
    fn a_bomb_is_refused() {
        let bomb = compressed(Compression::Zlib, &vec![0; BODY_MAX + 1]);
        assert!(bomb.len() < BODY_MAX / 100);
        let error = Compression::Zlib.decompress(&bomb, usize::MAX).unwrap_err().to_string();
        assert_eq!(error, format!("Zlib body: more than {BODY_MAX} bytes decompressed"));
        let most = compressed(Compression::Zlib, &vec![0; BODY_MAX]);
        assert_eq!(Compression::Zlib.decompress(&most, BODY_MAX).unwrap().len(), BODY_MAX);
        let error = Compression::Zlib.decompress(&most, 9).unwrap_err().to_string();
        assert_eq!(error, "Zlib body: more than 9 bytes decompressed");
    }
}
