//! Which queue a key goes to.

use xxhash_rust::xxh3::xxh3_64;

/// The queue of a key, out of `queues`.
///
/// XXH3 with 64 bits and no seed: its values are fixed by its specification, so that a key goes to
/// the same queue in every process and every release; it is fast on short keys; and it has nothing
/// in common with the seeded hash by which the engine chooses shards: keys that share a queue
/// spread over all shards. The high bits choose, by multiplication, so that every number of queues
/// is served evenly.
pub(crate) fn queue_of(key: &[u8], queues: u32) -> u32 {
    let scaled = u128::from(xxh3_64(key)) * u128::from(queues);
    // Below `queues`, hence a u32.
    u32::try_from(scaled >> 64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{queue_of, xxh3_64};

    #[test]
    fn keys_stay_where_they_are() {
        // The value that the specification's own test vectors have for no bytes.
        assert_eq!(xxh3_64(b""), 0x2d06_8005_38d3_94c2);
        // These numbers are on people's disks: a change of them splits keys over two queues.
        let queues = |key: &str| [1, 3, 16, 65_536].map(|queues| queue_of(key.as_bytes(), queues));
        assert_eq!(queues(""), [0, 0, 2, 11_526]);
        assert_eq!(queues("N14228"), [0, 0, 0, 1_115]);
        assert_eq!(queues("account-9"), [0, 2, 11, 46_356]);
    }

    #[test]
    fn keys_spread_evenly() {
        let mut counts = [0_u32; 7];
        for key in 0..70_000_u32 {
            counts[queue_of(&key.to_le_bytes(), 7) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }
}
