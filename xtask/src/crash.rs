//! `cargo xtask crash`: a process that appends to the embedded log and consumes from it is killed
//! (SIGKILL) and started again, many times; then everything that happened is checked.
//!
//! The seed decides what is produced, what fails, in which mode each process consumes, and near
//! which moment it is killed: while it opens the log, at any time, inside an append, after a commit
//! was handed over. The very instruction is the machine's choice, so that a seed repeats a run in
//! kind and not to the letter.
//!
//! A kill takes the process and nothing else: what was written is with the operating system. Power
//! loss is another matter, which this does not test.

mod check;
mod history;
mod tap;
mod worker;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use keylane_testkit::workload::{Prng, mix};
use tempfile::TempDir;

use crate::outcome::{EXIT_STATUS, Ended, Failure, say};
use worker::{Announced, open_to_check};
pub(crate) use worker::{WorkerFlags, run as work};

const TOPIC: &str = "crash";
const GROUP: &str = "crash";
const QUEUES: u32 = 4;
/// The consumer's budget, and what one fetch brings.
const IN_FLIGHT: usize = 256;
const FETCH: usize = 64;

/// Kills a process that consumes from the embedded log and appends to it, again and again, and
/// checks the whole history: nothing lost, order per key, no commit above the first unfinished
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct CrashFlags {
    /// How often it is killed
    #[arg(long, value_name = "R", default_value_t = 50,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) rounds: u64,
    /// What everything is drawn from, the instants of the kills excepted [default: drawn]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Where the log and the history go, a folder that is empty or does not exist; it stays
    /// [default: a temporary folder, which stays when something was found]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Has the consumer commit what it has read, finished or not, to see that it is noticed
    #[arg(long, hide = true)]
    pub(crate) commit_too_early: bool,
}

impl CrashFlags {
    /// So many rounds, the rest as by default.
    pub(crate) fn of(rounds: u64) -> Self {
        Self { rounds, seed: None, dir: None, commit_too_early: false }
    }
}

/// Where the parts of a run lie.
struct Folder(PathBuf);

impl Folder {
    fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    fn history(&self) -> PathBuf {
        self.0.join("history")
    }
}

/// What a record in this place begins with.
fn payload(queue: u32, offset: u64) -> String {
    format!("queue {queue} offset {offset}")
}

/// The task.
pub(crate) fn run(flags: &CrashFlags) -> Ended {
    let seed = flags.seed.unwrap_or_else(drawn);
    let temporary = match &flags.dir {
        Some(dir) => {
            claim(dir)?;
            None
        }
        None => Some(temporary()?),
    };
    let path = temporary.as_ref().map_or_else(
        || flags.dir.clone().unwrap_or_default(),
        |temporary| temporary.path().to_owned(),
    );
    let repeat = format!("cargo xtask crash --rounds {} --seed {seed}", flags.rounds);
    say(&format!("seed {seed}, in {}", path.display()));
    let ended = rounds(&Folder::new(&path), flags, seed);
    if let (Err(_), Some(temporary)) = (&ended, temporary) {
        // Looked at by whoever wants to know more.
        let _ = temporary.keep();
    }
    say(&format!("once more: {repeat}"));
    ended.map_err(|failure| match failure {
        Failure::Broken(why) => {
            Failure::Broken(format!("{why}\nlog and history: {}", path.display()))
        }
        other => other,
    })
}

/// A seed that nobody has chosen.
fn drawn() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |time| u64::from(time.subsec_nanos()) ^ time.as_secs() << 20)
}

fn temporary() -> Ended<TempDir> {
    TempDir::with_prefix("keylane-crash-")
        .map_err(|error| Failure::other("create a temporary folder", error))
}

/// Only a folder in which nothing is.
fn claim(dir: &Path) -> Ended {
    let failed = |error: std::io::Error| Failure::other(dir.display(), error);
    std::fs::create_dir_all(dir).map_err(failed)?;
    match std::fs::read_dir(dir).map_err(failed)?.next() {
        None => Ok(()),
        Some(_) => Err(Failure::usage(format!(
            "--dir {} is not empty: name an empty folder, or one that does not exist",
            dir.display()
        ))),
    }
}

fn rounds(folder: &Folder, flags: &CrashFlags, seed: u64) -> Ended {
    for round in 0..flags.rounds {
        let moment = Moment::draw(&mut Prng::new(mix(&[seed, round, 1])));
        let child = start(folder, flags, mix(&[seed, round, 2]), moment.announced())?;
        moment.kill(child)?;
        let closed = history::close_round(&folder.history());
        closed.map_err(|error| Failure::other("close the round in the history", error))?;
        say(&format!("round {} of {}: killed {moment}", round + 1, flags.rounds));
    }
    let last = start(folder, flags, mix(&[seed, flags.rounds, 2]), (Announced::End, 0))?;
    say("consuming what is left");
    let status = wait(last)?;
    if !status.success() {
        return Err(Failure::Broken(format!("the last consumer, which was not killed: {status}")));
    }
    let checked = check::check(&folder.history(), &open_to_check(&folder.log())?)?;
    say(&checked.to_string());
    match checked.is_clean() {
        true => Ok(()),
        false => Err(Failure::Broken("a guarantee did not survive the kills".to_owned())),
    }
}

/// When a process is killed.
#[derive(Debug, Clone, Copy)]
struct Moment {
    /// After it has said this; `None`: after it was started.
    after: Option<(Announced, u64)>,
    delay: Duration,
}

impl Moment {
    fn draw(prng: &mut Prng) -> Self {
        let kind = prng.below(10);
        let nth = prng.below(40);
        let mut micros = |end| Duration::from_micros(prng.below(end));
        match kind {
            0 => Self { after: None, delay: micros(20_000) },
            1..=3 => Self { after: Some((Announced::Open, 0)), delay: micros(400_000) },
            4..=6 => Self { after: Some((Announced::Append, nth)), delay: micros(300) },
            _ => Self { after: Some((Announced::Commit, nth)), delay: micros(300) },
        }
    }

    /// What the process is to say.
    fn announced(self) -> (Announced, u64) {
        self.after.unwrap_or((Announced::Open, 0))
    }

    /// Waits for the moment and kills.
    fn kill(self, mut child: Child) -> Ended {
        let failed = |error: std::io::Error| Failure::other("kill the consumer", error);
        if self.after.is_some() {
            let mut said = String::new();
            let pipe = child.stdout.as_mut();
            let read = pipe.map_or(Ok(0), |pipe| BufReader::new(pipe).read_line(&mut said));
            if read.map_err(failed)? == 0 {
                let status = child.wait().map_err(failed)?;
                return Err(Failure::Broken(format!("a consumer ended by itself: {status}")));
            }
        }
        // Not to wait for something, but to hit another instruction each time.
        thread::sleep(self.delay);
        child.kill().map_err(failed)?;
        child.wait().map(drop).map_err(failed)
    }
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { after, delay } = self;
        match after {
            None => write!(f, "{delay:?} after its start"),
            Some((Announced::Append, nth)) => write!(f, "{delay:?} into append {}", nth + 1),
            Some((Announced::Commit, nth)) => write!(f, "{delay:?} after commit {}", nth + 1),
            Some(_) => write!(f, "{delay:?} after it had opened the log"),
        }
    }
}

/// A process of its own, which is this program.
fn start(
    folder: &Folder,
    flags: &CrashFlags,
    seed: u64,
    (announced, nth): (Announced, u64),
) -> Ended<Child> {
    let program = std::env::current_exe();
    let program = program.map_err(|error| Failure::other("find this program", error))?;
    let mut command = Command::new(program);
    command.arg("crash-worker").arg("--dir").arg(&folder.0);
    command.args(["--seed", &seed.to_string(), "--nth", &nth.to_string(), "--announce"]);
    command.arg(match announced {
        Announced::Open => "open",
        Announced::Append => "append",
        Announced::Commit => "commit",
        Announced::End => "end",
    });
    if flags.commit_too_early {
        command.arg("--commit-too-early");
    }
    // Failed attempts are part of the plan and no news.
    command.env("RUST_LOG", "off").stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().map_err(|error| Failure::other("start the consumer", error))
}

fn wait(mut child: Child) -> Ended<ExitStatus> {
    child.wait().map_err(|error| Failure::other("wait for the last consumer", error))
}
