//! What threads reach that do nothing but the work: the ceiling for any engine.
//!
//! A sleep of 1 ms takes longer than that, the more so the more threads there are; and keys never
//! spread evenly over shards, while the fullest shard decides how long the whole takes. So the bar
//! is not `threads / 1 ms`, but what bare threads reach on this machine, over the imbalance.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use keylane_testkit::workload::Work;

use crate::flags::work_duration;

const MEASURE: Duration = Duration::from_millis(500);

/// Messages per second that `threads` bare threads reach together; `None` where there is no work to
/// do, or where one message takes so long that this is no measure.
pub(super) fn measure(threads: u32, what: Work) -> Option<f64> {
    if work_duration(what).is_zero() || work_duration(what) > MEASURE / 4 {
        return None;
    }
    let over = AtomicBool::new(false);
    let start = Instant::now();
    let done = thread::scope(|scope| {
        let bare = || {
            let mut done = 0_u64;
            while !over.load(Ordering::Relaxed) {
                what.run();
                done += 1;
            }
            done
        };
        let spawn = |_| thread::Builder::new().name("bare".to_owned()).spawn_scoped(scope, bare);
        let threads: Vec<_> = (0..threads).filter_map(|n| spawn(n).ok()).collect();
        thread::sleep(MEASURE);
        over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum::<u64>()
    });
    Some(done as f64 / start.elapsed().as_secs_f64())
}
