//! **How many instructions does a message cost in each part of the engine?**
//!
//! Counted by valgrind's callgrind, so that the figures are the same on a busy machine and on an idle
//! one. They are compared with those in `instructions.tsv`: a case that costs [`TOLERANCE`] more than
//! it did ends this with status 1, and `cargo xtask ci` with it. `-- --save` writes the file anew,
//! for a change that is worth its price. What the counts do not know is the price of an instruction:
//! a cache miss, a line that two cores want. That is what the other benchmarks are for.
//!
//! `cargo test` runs each case once, without valgrind.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, ExitCode};

use benches::topic_of;
use keylane::bench::{Committing, Inline, Tracking};
use keylane::{Message, Outcome, listen};
use keylane_testkit::memory::MemorySource;

/// Compilers and C libraries differ a little, the same ones do not.
const TOLERANCE: f64 = 1.05;

const SHARDS: usize = 16;
const PULL: usize = 256;
/// How many messages (or commits) each case counts: many pulls, since how many fall into what is
/// counted is up to chance.
const COUNTED: u64 = 131_072;

type Engine = Inline<MemorySource>;
/// A case that is set up, and what is then counted. What it has built is dropped afterwards: a
/// million messages in flight are not what a message costs.
type Run = Box<dyn FnMut()>;

/// How a case is set up.
type SetUp = fn() -> Run;

/// The last ones take minutes to set up in valgrind: `-- --deep`.
const CASES: [(&str, SetUp); 13] = [
    ("router: from the source to the channels", router),
    ("shard: from a channel to finished", shard),
    ("tracker: registered, finished, watermark", tracker),
    ("committer: a commit and its answer", committer),
    ("engine: 1 queue", || turns(1, 10_000, 20_000, PULL)),
    ("engine: 100 queues", || turns(100, 10_000, 20_000, PULL)),
    ("engine: 10,000 queues", || turns(10_000, 10_000, 20_000, PULL)),
    ("engine: 10 keys", || turns(1, 10, 20_000, PULL)),
    ("engine: 100,000 keys", || turns(1, 100_000, 20_000, PULL)),
    ("engine, pulls of 8: 10 in flight", || turns(1, 10_000, 10, 8)),
    ("engine, pulls of 8: 10,000 in flight", || turns(1, 10_000, 10_000, 8)),
    ("engine: 10,000,000 keys", || turns(1, 10_000_000, 20_000, PULL)),
    ("engine, pulls of 8: 1,000,000 in flight", || turns(1, 10_000, 1_000_000, 8)),
];
const DEEP: usize = 2;

/// An engine whose source has been looked at, with a listener that does nothing.
fn engine(queues: u32, keys: u64, in_flight: usize, pull: usize) -> Engine {
    let messages = (in_flight as u64 + 2 * COUNTED).max(u64::from(queues) * 1_024);
    let topic = topic_of(queues, messages.next_multiple_of(u64::from(queues)), keys);
    let nothing = listen::each(|message: &Message, _| {
        black_box(message.payload());
        Ok(Outcome::Done)
    });
    let mut engine = Inline::new(topic.source(), SHARDS, in_flight, pull, nothing);
    engine.pull();
    engine
}

fn router() -> Run {
    let mut engine = engine(4, 10_000, 1 << 20, PULL);
    Box::new(move || engine.pull_messages(COUNTED))
}

fn shard() -> Run {
    let mut engine = engine(4, 10_000, 1 << 20, PULL);
    engine.pull_messages(COUNTED);
    Box::new(move || engine.handle(usize::MAX))
}

fn tracker() -> Run {
    let mut tracking = Tracking::new();
    Box::new(move || {
        black_box(tracking.run(COUNTED));
    })
}

fn committer() -> Run {
    let mut committing = Committing::new();
    Box::new(move || {
        black_box(committing.run(1, COUNTED));
    })
}

/// As many messages in flight as there may be; each turn handles some and pulls as many.
fn turns(queues: u32, keys: u64, in_flight: usize, pull: usize) -> Run {
    let mut engine = engine(queues, keys, in_flight, pull);
    // A look at the source brings a fetch of each of eight queues at most.
    let full = in_flight as u64 - pull as u64 * u64::from(queues.min(8));
    while engine.in_flight() < full {
        engine.pull();
    }
    Box::new(move || {
        let until = engine.handled() + COUNTED;
        while engine.handled() < until {
            let mut handled = true;
            while handled && engine.in_flight() > full {
                let before = engine.handled();
                engine.handle(1);
                handled = engine.handled() > before;
            }
            engine.pull();
        }
    })
}

/// What valgrind counts: its name says where to begin.
#[inline(never)]
fn counted_from_here(run: &mut Run) {
    run();
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    if let Some((_, set_up)) = CASES.iter().find(|(name, _)| has(name)) {
        counted_from_here(&mut set_up());
        return ExitCode::SUCCESS;
    }
    if !has("--bench") {
        let quick = CASES.iter().take(CASES.len() - DEEP);
        quick.for_each(|(_, set_up)| counted_from_here(&mut set_up()));
        return ExitCode::SUCCESS;
    }
    let chosen = if has("--deep") { &CASES[..] } else { &CASES[..CASES.len() - DEEP] };
    match compare(chosen, has("--save")) {
        Ok(code) => code,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts all cases and compares; or notes what they cost now.
fn compare(cases: &[(&str, SetUp)], save: bool) -> Result<ExitCode, String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.tsv");
    let told = |error| format!("{}: {error}", file.display());
    let text = std::fs::read_to_string(&file).map_err(told)?;
    let before = read(&text);
    let mut now = String::new();
    let mut dearer = 0;
    println!("instructions a message, of {COUNTED}; before, and the ratio");
    for (name, _) in cases {
        let each = count(name)? as f64 / COUNTED as f64;
        // Writing to a string does not fail.
        let _ = writeln!(now, "{name}\t{each:.1}");
        let known = before.get(name).copied().unwrap_or(f64::NAN);
        let ratio = each / known;
        let fails = !save && (ratio.is_nan() || ratio > TOLERANCE);
        dearer += usize::from(fails);
        let mark = if fails { "  too many" } else { "" };
        println!("{name:<42} {each:9.1} {known:9.1} {ratio:6.3}{mark}");
    }
    if save {
        std::fs::write(&file, now).map_err(told)?;
    }
    Ok(if dearer == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(text: &str) -> BTreeMap<&str, f64> {
    let line = |line| -> Option<(_, f64)> {
        let (name, each): (&str, &str) = str::split_once(line, '\t')?;
        Some((name, each.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Runs a case in valgrind.
fn count(name: &str) -> Result<u64, String> {
    let this = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let output = Command::new("valgrind")
        // Valgrind counts a string instruction once a byte. glibc copies with one from some length
        // on: a longer chunk would seem dear.
        .env("GLIBC_TUNABLES", "glibc.cpu.x86_rep_movsb_threshold=1000000000")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*counted_from_here*")
        .arg(this)
        .arg(name)
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected =
        said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    collected.ok_or_else(|| format!("{name}: {}: {said}", output.status))
}
