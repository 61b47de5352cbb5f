//! Runs seeds of keylane's simulator: `cargo xtask sim` builds and calls it.
//!
//! ```text
//! keylane-sim [--seed S] [--seeds N | --seconds T] [--corpus] [--bug NAME]
//! ```
//!
//! Prints the seed first and, where something is broken, the command that replays it last. Exit
//! status 1 where something is broken, 2 for options that cannot work.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "it is a program that prints")]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use keylane::sim::{self, Failure};

/// A seed takes milliseconds. One that takes this long waits for something, and the simulator is
/// one thread: it would wait for ever. Where a bug was planted, that is what is looked for.
const SEED_MAX: Duration = Duration::from_secs(60);
const SEED_MAX_PLANTED: Duration = Duration::from_secs(15);
/// How often it says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);
/// How much of what happened is printed.
const LINES: usize = 150;

/// What to run.
#[derive(Debug, Default)]
struct Options {
    seed: Option<u64>,
    seeds: Option<u64>,
    seconds: Option<u64>,
    corpus: bool,
    bug: Option<String>,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(wrong) => {
            println!("{wrong}");
            return ExitCode::from(2);
        }
    };
    if let Some(Err(wrong)) = options.bug.as_deref().map(sim::plant) {
        println!("{wrong}");
        return ExitCode::from(2);
    }
    if run(&options) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{name}: its value is missing"));
        let number = |value: String| {
            value.parse::<u64>().map_err(|error| format!("{name} {value}: {error}"))
        };
        match name.as_str() {
            "--seed" => options.seed = Some(value().and_then(number)?),
            "--seeds" => options.seeds = Some(value().and_then(number)?),
            "--seconds" => options.seconds = Some(value().and_then(number)?),
            "--corpus" => options.corpus = true,
            "--bug" => options.bug = Some(value()?),
            _ => return Err(format!("{name}: no such option")),
        }
    }
    Ok(options)
}

/// Runs what was asked for; returns whether nothing is broken.
fn run(options: &Options) -> bool {
    let first = options.seed.unwrap_or_else(drawn);
    let seeds: Box<dyn Iterator<Item = u64>> = match options {
        Options { corpus: true, .. } => Box::new(sim::corpus().into_iter()),
        Options { seeds: None, seconds: None, .. } => Box::new(std::iter::once(first)),
        Options { seeds, .. } => {
            Box::new((0..seeds.unwrap_or(u64::MAX)).map(move |n| first.wrapping_add(n)))
        }
    };
    let what = if options.corpus { "the corpus".to_owned() } else { format!("seed {first}") };
    println!("{what}");
    let end = options.seconds.map(|seconds| now() + Duration::from_secs(seconds));
    let running = watchdog(options.bug.clone());
    let (mut tell_at, mut sum) = (now() + PROGRESS, Sum::default());
    for seed in seeds {
        if now() >= tell_at {
            println!("{}", sum.in_words());
            tell_at = now() + PROGRESS;
        }
        if end.is_some_and(|end| now() >= end) {
            break;
        }
        running.store(seed, Ordering::Relaxed);
        match sim::run(seed) {
            Ok(summary) => sum.add(&summary),
            Err(failure) => {
                report(&failure, sum.seeds + 1, options.bug.as_deref());
                return false;
            }
        }
    }
    let digest =
        if sum.seeds == 1 { format!(", digest {:016x}", sum.digest) } else { String::new() };
    println!("{}{digest}; nothing is broken", sum.in_words());
    true
}

/// What runs came to together.
struct Sum {
    began: Instant,
    seeds: u64,
    delivered: u64,
    steps: u64,
    digest: u64,
    virtual_time: Duration,
}

impl Default for Sum {
    fn default() -> Self {
        let (seeds, delivered, steps, digest) = (0, 0, 0, 0);
        Self { began: now(), seeds, delivered, steps, digest, virtual_time: Duration::ZERO }
    }
}

impl Sum {
    fn add(&mut self, summary: &sim::Summary) {
        self.seeds += 1;
        self.delivered += summary.delivered;
        self.steps += summary.steps;
        self.digest = summary.digest;
        self.virtual_time += summary.virtual_time;
    }

    fn in_words(&self) -> String {
        let Self { seeds, delivered, steps, virtual_time, began, .. } = self;
        let took = now() - *began;
        // What the machine does besides is not the simulator's.
        let busy = busy_time().unwrap_or(took);
        let rate = *delivered as f64 / busy.as_secs_f64().max(1e-9);
        format!(
            "{seeds} seeds, {delivered} messages, {steps} steps, {virtual_time:.0?} in {took:.1?}, \
             {busy:.1?} of a core: {rate:.0} messages/s"
        )
    }
}

/// How long this thread has run on a core so far, where the system says so.
fn busy_time() -> Option<Duration> {
    let said = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    said.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

fn report(failure: &Failure, seeds: u64, bug: Option<&str>) {
    println!("{}", failure.plan);
    let skipped = failure.trace.len().saturating_sub(LINES);
    failure.trace.iter().skip(skipped).for_each(|line| println!("{line}"));
    println!("broken after {seeds} seeds: {}", failure.violation);
    println!("{}", replay_line(failure.seed, bug));
}

fn replay_line(seed: u64, bug: Option<&str>) -> String {
    match bug {
        None => format!("replay: cargo xtask sim --seed {seed}"),
        Some(bug) => format!("replay: cargo xtask bugs --only {bug} --seed {seed}"),
    }
}

/// Ends the process when a seed does not come back; returns where the running seed is noted.
fn watchdog(bug: Option<String>) -> Arc<AtomicU64> {
    let running = Arc::new(AtomicU64::new(0));
    let watched = Arc::clone(&running);
    let longest = if bug.is_some() { SEED_MAX_PLANTED } else { SEED_MAX };
    let watch = move || {
        let (mut seed, mut since) = (watched.load(Ordering::Relaxed), now());
        loop {
            std::thread::park_timeout(Duration::from_secs(1));
            let current = watched.load(Ordering::Relaxed);
            if current != seed {
                (seed, since) = (current, now());
            } else if now() - since > longest {
                println!("broken: seed {seed} waits for something, and nothing can come");
                println!("{}", replay_line(seed, bug.as_deref()));
                std::process::exit(1);
            }
        }
    };
    std::thread::spawn(watch);
    running
}

/// A seed that nobody has chosen.
fn drawn() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |time| u64::from(time.subsec_nanos()) ^ time.as_secs() << 20)
}

fn now() -> Instant {
    Instant::now()
}
