//! What the process has used, as Linux counts it; unknown elsewhere.

use std::fs;

/// How many parts a second of CPU time is counted in: `USER_HZ`, 100 on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds of this process so far, user and system together.
pub(super) fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses, which may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

/// The most memory that this process has had resident, in bytes, since [`reset_peak`].
pub(super) fn peak_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024)
}

/// Begins to measure the peak anew. Where that is not allowed, the peak is that of the whole
/// process.
pub(super) fn reset_peak() {
    drop(fs::write("/proc/self/clear_refs", "5"));
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_touched_shows_in_the_peak() {
        reset_peak();
        let before = peak_bytes().unwrap();
        let touched = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(peak_bytes().unwrap() >= before + (60 << 20), "{before}");
        drop(touched);
        assert!(cpu_seconds().unwrap() > 0.0);
    }
}
