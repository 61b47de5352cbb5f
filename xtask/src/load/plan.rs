//! From options to what will be run: defaults filled in, contradictions named.

use std::path::PathBuf;
use std::time::Duration;

use keylane_testkit::workload::{Faults, Work};

use super::progress::Shown;
use crate::flags::{Break, LoadFlags, Mode, SourceKind, work_duration};
use crate::outcome::{Ended, Failure};

/// The flights that come along.
pub(super) const FLIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/flights-2013.csv.gz");
const SYNTHETIC_MESSAGES: u64 = 200_000;
/// A slice for modes that would take minutes for all of it.
const SLICE: u64 = 12_000;
/// What a log may take on the disk, in bytes, and a message beside its payload, about.
const LOG_MAX: u64 = 256 << 30;
const MESSAGE_OVERHEAD: u64 = 50;
/// What `--quick` aims at for each mode; the rest of its 20 s is for everything else.
const QUICK: Duration = Duration::from_secs(4);

/// What is to be run: one run per mode over the same messages, or the first of them.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) runs: Vec<RunPlan>,
    pub(super) input: Input,
    pub(super) source: SourceKind,
    pub(super) shards: u32,
    pub(super) batch: Option<u32>,
    pub(super) in_flight: u32,
    pub(super) work: Work,
    pub(super) rate: Option<f64>,
    pub(super) faults: Faults,
    pub(super) seed: u64,
    pub(super) json: bool,
    pub(super) shown: Shown,
    pub(super) report: PathBuf,
    pub(super) dir: Option<PathBuf>,
    pub(super) break_on_purpose: Option<Break>,
}

/// One mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunPlan {
    pub(super) mode: Mode,
    /// The first so many messages; all of them where there is no number.
    pub(super) messages: Option<u64>,
    /// Whether that number was asked for by name, so that fewer are a mistake.
    pub(super) exact: bool,
}

/// Where messages come from before they are written.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Input {
    File { path: PathBuf, key: String, queue: String, flights: bool },
    Synthetic(Synthetic),
}

/// Made-up messages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Synthetic {
    pub(super) queues: u32,
    pub(super) keys: u32,
    pub(super) skew: f64,
    pub(super) hot_key: f64,
    pub(super) payload: u32,
}

impl Plan {
    /// Checks the options against each other.
    pub(super) fn new(flags: &LoadFlags) -> Ended<Self> {
        let input = Input::new(flags);
        if flags.fail_rate + flags.panic_rate > 0.9 {
            return Err(Failure::usage(format!(
                "--fail-rate {} and --panic-rate {} are more than 0.9 together: a run in which \
                 nearly everything fails does not end",
                flags.fail_rate, flags.panic_rate
            )));
        }
        if flags.dir.is_some() && flags.source != SourceKind::Log {
            return Err(Failure::usage(format!(
                "--dir keeps the folder of the embedded log; it says nothing about --source {}",
                name(flags.source)
            )));
        }
        if flags.dir.is_some() && flags.rate.is_some() {
            return Err(Failure::usage(
                "--rate produces while it consumes, --dir goes on with what was produced before: \
                 one or the other",
            ));
        }
        let plan = Self {
            runs: runs(flags, &input),
            input,
            source: flags.source,
            shards: flags.shards,
            batch: flags.batch,
            in_flight: flags.in_flight,
            work: flags.work,
            rate: flags.rate,
            faults: Faults {
                seed: flags.seed,
                fail_rate: flags.fail_rate,
                panic_rate: flags.panic_rate,
            },
            seed: flags.seed,
            json: flags.json,
            shown: Shown::here(),
            report: flags
                .report
                .clone()
                .unwrap_or_else(|| crate::ci::target_folder().join("keylane").join("load.html")),
            dir: flags.dir.clone(),
            break_on_purpose: flags.break_on_purpose,
        };
        plan.check_size()?;
        Ok(plan)
    }

    /// Made-up messages can be more than a disk holds. In memory they take no place.
    fn check_size(&self) -> Ended {
        let Input::Synthetic(synthetic) = &self.input else { return Ok(()) };
        let most = self.runs.iter().filter_map(|run| run.messages).max().unwrap_or(0);
        let wanted = most.saturating_mul(u64::from(synthetic.payload) + MESSAGE_OVERHEAD);
        if self.source == SourceKind::Memory || wanted <= LOG_MAX {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "--messages {most} with --payload {} take about {} GiB on the disk; allowed: {} GiB",
            synthetic.payload,
            wanted >> 30,
            LOG_MAX >> 30
        )))
    }
}

impl Input {
    fn new(flags: &LoadFlags) -> Self {
        if let (Some(path), Some(key), Some(queue)) = (&flags.input, &flags.key, &flags.queue) {
            let (path, key, queue) = (path.clone(), key.clone(), queue.clone());
            return Self::File { path, key, queue, flights: false };
        }
        let made_up = flags.queues.is_some()
            || flags.keys.is_some()
            || flags.skew.is_some()
            || flags.hot_key.is_some()
            || flags.payload.is_some();
        if made_up {
            return Self::Synthetic(Synthetic {
                queues: flags.queues.unwrap_or(4),
                keys: flags.keys.unwrap_or(10_000),
                skew: flags.skew.unwrap_or(0.0),
                hot_key: flags.hot_key.unwrap_or(0.0),
                payload: flags.payload.unwrap_or(100),
            });
        }
        let (key, queue) = ("tailnum".to_owned(), "origin".to_owned());
        Self::File { path: FLIGHTS.into(), key, queue, flights: true }
    }

    /// The number of queues, as far as it is known before the input is read.
    fn queues(&self) -> u32 {
        match self {
            Self::Synthetic(synthetic) => synthetic.queues,
            // What the flights have; for another file it only sizes `--quick` and slices.
            Self::File { .. } => 3,
        }
    }
}

/// The engine's name of a mode.
pub(super) fn engine_mode(mode: Mode) -> keylane::Mode {
    match mode {
        Mode::KeySharded => keylane::Mode::KeySharded,
        Mode::QueueLocked => keylane::Mode::QueueLocked,
        Mode::Concurrent => keylane::Mode::Concurrent,
    }
}

/// What stands in tables and JSON.
pub(super) fn name(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn runs(flags: &LoadFlags, input: &Input) -> Vec<RunPlan> {
    let modes = match flags.mode {
        Some(mode) => vec![mode],
        // One object, one folder: one mode.
        None if flags.json || flags.dir.is_some() => vec![Mode::KeySharded],
        // The one that this is about, and the one that it is measured against.
        None => vec![Mode::KeySharded, Mode::QueueLocked],
    };
    let run = |mode| {
        let (messages, exact) = messages(flags, input, mode);
        RunPlan { mode, messages, exact }
    };
    modes.into_iter().map(run).collect()
}

/// How many messages a mode gets, and whether the user has said so.
fn messages(flags: &LoadFlags, input: &Input, mode: Mode) -> (Option<u64>, bool) {
    let all = match input {
        Input::File { .. } => None,
        Input::Synthetic(_) => Some(SYNTHETIC_MESSAGES),
    };
    if flags.quick {
        let few = quick(flags, input, mode).min(all.unwrap_or(u64::MAX));
        return (Some(few), false);
    }
    let all = flags.messages.or(all);
    // A mode that was named gets everything; one that only stands beside another gets a slice.
    if mode == Mode::KeySharded || flags.mode.is_some() || flags.full {
        return (all, flags.messages.is_some());
    }
    (Some(all.unwrap_or(SLICE).min(SLICE)), false)
}

/// How many messages are done within a few seconds: a little fewer than the slowest part allows.
fn quick(flags: &LoadFlags, input: &Input, mode: Mode) -> u64 {
    const MOST: f64 = 100_000.0;
    let work = work_duration(flags.work).as_secs_f64();
    let threads = match (mode, flags.work) {
        (Mode::QueueLocked, _) => flags.shards.min(input.queues()),
        (_, Work::Spin(_)) => flags.shards.min(2),
        _ => flags.shards,
    };
    // A sleep takes a tenth of a millisecond longer than it should, and shards are never even.
    let per_message = (work * 2.0 + 100e-6) / f64::from(threads);
    // One key's messages, one after the other.
    let hottest = match input {
        Input::Synthetic(s) if s.skew > 0.0 => s.hot_key.max(0.5),
        Input::Synthetic(s) => s.hot_key,
        Input::File { .. } => 0.0,
    };
    let per_message = per_message.max(work * 1.2 * hottest);
    // Failed attempts come again after a pause.
    let per_message = per_message * (1.0 + 10.0 * (flags.fail_rate + flags.panic_rate));
    let by_work = QUICK.as_secs_f64() / per_message;
    let by_rate = flags.rate.map_or(MOST, |rate| rate * QUICK.as_secs_f64());
    #[expect(clippy::cast_possible_truncation, reason = "between 1 and MOST")]
    let few = by_work.min(by_rate).clamp(1.0, MOST) as u64;
    few
}
