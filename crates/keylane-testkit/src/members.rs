//! Members of a group that are processes: they join, leave, and are killed for good.
//!
//! A member is the test program itself, run again with the name of one test. In an ordinary run
//! that test finds that it is no [`Member`], and ends at once. All members write to one
//! [journal](crate::journal).
//!
//! ```no_run
//! use keylane_testkit::guarantee::Scope;
//! use keylane_testkit::journal::Reader;
//! use keylane_testkit::members::{Member, Members};
//! use keylane_testkit::recorder::{Recorded, Recorder};
//!
//! #[test]
//! fn a_member_that_is_killed_has_a_successor() {
//!     let folder = tempfile::tempdir().unwrap();
//!     let journal = folder.path().join("journal");
//!     let mut members = Members::new("tests::a_member", "localhost:9092", &journal).unwrap();
//!     let first = members.join().unwrap();
//!     // ... wait until a `Reader` says that it takes part
//!     members.kill(first).unwrap();
//!     let second = members.join().unwrap();
//!     // ... wait until everything is committed
//!     members.leave(second).unwrap();
//!     let judge = Recorder::new(Scope::key());
//!     // ... say what was produced
//!     Reader::open(&journal).unwrap().read(|_, event| judge.note(event)).unwrap();
//!     judge.verdict().assert_clean();
//! }
//!
//! #[test]
//! fn a_member() {
//!     let Some(member) = Member::of_this_process() else { return };
//!     let recorder = member.recorder(Scope::key());
//!     // ... start a consumer: its source is `Recorded`, its listener tells the recorder
//!     member.wait();
//!     // ... stop the consumer
//! }
//! ```

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::guarantee::{MemberId, Scope};
use crate::journal::Journal;
use crate::recorder::Recorder;

#[cfg(test)]
mod tests;

/// The member's number, where the journal is, and what else it has to know.
const VARIABLES: [&str; 3] = ["KEYLANE_MEMBER", "KEYLANE_MEMBER_JOURNAL", "KEYLANE_MEMBER_SPEC"];

/// The members of one group, as the test that starts them sees them. Those that still run when it
/// is dropped are killed.
#[derive(Debug)]
pub struct Members {
    test: String,
    spec: String,
    path: PathBuf,
    journal: Journal,
    /// By number; `None` once it has ended.
    running: Vec<Option<Running>>,
}

/// A process that does not outlive its test.
#[derive(Debug)]
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

impl Members {
    /// None yet. A member runs this test, which is given in full with its modules, and is told
    /// `spec`; all of them write to this journal, which is made.
    ///
    /// # Errors
    ///
    /// The journal cannot be opened.
    pub fn new(test: &str, spec: &str, journal: &Path) -> io::Result<Self> {
        let (test, spec, path) = (test.to_owned(), spec.to_owned(), journal.to_owned());
        let journal = Journal::open(&path)?;
        Ok(Self { test, spec, path, journal, running: Vec::new() })
    }

    /// Starts one more, and does not wait for what it does. Members are counted from 0.
    ///
    /// # Errors
    ///
    /// The process cannot be started.
    pub fn join(&mut self) -> io::Result<MemberId> {
        let number = u32::try_from(self.running.len()).map_err(io::Error::other)?;
        let mut program = Command::new(std::env::current_exe()?);
        program.args(["--exact", &self.test, "--nocapture"]);
        let values: [OsString; 3] =
            [number.to_string().into(), self.path.clone().into(), self.spec.clone().into()];
        program.envs(VARIABLES.into_iter().zip(values));
        let child = program.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        self.running.push(Some(Running(child)));
        Ok(MemberId(number))
    }

    /// Kills one with SIGKILL, and says so in the journal.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub fn kill(&mut self, member: MemberId) -> io::Result<()> {
        drop(self.take(member)?);
        self.journal.crashed(member);
        Ok(())
    }

    /// Asks one to leave, and waits until its process has ended.
    ///
    /// # Errors
    ///
    /// It does not run, or its test has failed.
    pub fn leave(&mut self, member: MemberId) -> io::Result<()> {
        let mut running = self.take(member)?;
        drop(running.0.stdin.take());
        let status = running.0.wait()?;
        let failed = || io::Error::other(format!("member {} has failed: {status}", member.0));
        if status.success() { Ok(()) } else { Err(failed()) }
    }

    /// Those that run, as far as was asked of them.
    pub fn running(&self) -> Vec<MemberId> {
        let running = (0..).zip(&self.running).filter(|(_, running)| running.is_some());
        running.map(|(number, _)| MemberId(number)).collect()
    }

    fn take(&mut self, member: MemberId) -> io::Result<Running> {
        let running = self.running.get_mut(member.0 as usize).and_then(Option::take);
        running.ok_or_else(|| io::Error::other(format!("member {} does not run", member.0)))
    }
}

/// A member, as its own process sees it.
#[derive(Debug)]
pub struct Member {
    /// Its number.
    pub id: MemberId,
    /// What it was told.
    pub spec: String,
    /// Where all members write what they see.
    pub journal: Journal,
}

impl Member {
    /// The member that this process is; `None` where no [`Members`] has started it.
    ///
    /// # Panics
    ///
    /// When the journal cannot be opened.
    pub fn of_this_process() -> Option<Self> {
        let [number, journal, spec] = VARIABLES.map(std::env::var_os);
        let (journal, spec) = (journal?, spec?.into_string().ok()?);
        let id = MemberId(number?.to_str()?.parse().ok()?);
        let journal = Journal::open(&journal)
            .unwrap_or_else(|error| panic!("open the journal {}: {error}", journal.display()));
        Some(Self { id, spec, journal })
    }

    /// A recorder of this member's that writes to the journal.
    pub fn recorder(&self, scope: Scope) -> Recorder {
        Recorder::journaled(scope, self.id, &self.journal)
    }

    /// Waits until the member is asked to leave, or whoever has started it is gone.
    pub fn wait(&self) {
        // Nobody writes anything: it ends. What cannot be read has ended, too.
        _ = io::copy(&mut io::stdin(), &mut io::sink());
    }
}
