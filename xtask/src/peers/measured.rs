//! A process from outside: what it printed, and how much memory it had.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::outcome::{Ended, Failure};

/// How often it is looked at: a peak that is shorter may be missed only where the kernel keeps none.
const LOOK: Duration = Duration::from_millis(20);
/// How many parts a second of CPU time is counted in: `USER_HZ`, 100 on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process that has ended well.
pub(super) struct Measured {
    pub(super) stdout: String,
    /// User and system, from its first instruction to its last. Linux only.
    pub(super) cpu_s: Option<f64>,
    /// The most memory that was resident, in bytes. Linux only.
    pub(super) peak_bytes: Option<u64>,
}

/// What Linux says about a process.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Look {
    cpu_s: Option<f64>,
    peak_bytes: Option<u64>,
    has_ended: bool,
}

/// Runs it to its end; after `limit` it is killed, which is an error.
pub(super) fn run(mut command: Command, name: &str, limit: Duration) -> Ended<Measured> {
    let failed = |error: std::io::Error| Failure::other(format!("run {name}"), error);
    // Files, so that nobody has to read while it runs.
    let (mut out, mut err) =
        (tempfile::tempfile().map_err(failed)?, tempfile::tempfile().map_err(failed)?);
    command.stdin(Stdio::null());
    command.stdout(out.try_clone().map_err(failed)?).stderr(err.try_clone().map_err(failed)?);
    let mut child = command.spawn().map_err(failed)?;
    let (last, status) = watch(&mut child, limit).map_err(failed)?;
    let Some(status) = status else {
        return Err(Failure::other(format!("run {name}"), format!("not done after {limit:?}")));
    };
    if !status.success() {
        let printed = text(&mut err).map_err(failed)?;
        return Err(Failure::other(format!("run {name}"), format!("{status}\n{printed}")));
    }
    let stdout = text(&mut out).map_err(failed)?;
    Ok(Measured { stdout, cpu_s: last.cpu_s, peak_bytes: last.peak_bytes })
}

/// Until it has ended: no status means that it was killed. A process that has ended keeps its CPU
/// time until it is waited for, but not its memory.
fn watch(child: &mut Child, limit: Duration) -> std::io::Result<(Look, Option<ExitStatus>)> {
    let start = Instant::now();
    let mut last = Look::default();
    loop {
        let now = look(child.id());
        last.cpu_s = now.cpu_s.or(last.cpu_s);
        last.peak_bytes = last.peak_bytes.max(now.peak_bytes);
        // Elsewhere nothing is known, and this is how the end shows.
        let is_unknown = now.cpu_s.is_none();
        if (now.has_ended || is_unknown)
            && let Some(status) = child.try_wait()?
        {
            return Ok((last, Some(status)));
        }
        if start.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok((last, None));
        }
        thread::sleep(LOOK);
    }
}

/// What this process has used so far; 0 where that is not known.
pub(super) fn own_cpu_seconds() -> f64 {
    look(std::process::id()).cpu_s.unwrap_or(0.0)
}

fn look(pid: u32) -> Look {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    let (cpu_s, has_ended) = stat.ok().and_then(|stat| parse_stat(&stat)).unzip();
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let peak_bytes = status.ok().and_then(|status| parse_peak(&status));
    Look { cpu_s, peak_bytes, has_ended: has_ended.unwrap_or(false) }
}

/// CPU seconds, and whether the process only waits to be waited for.
fn parse_stat(stat: &str) -> Option<(f64, bool)> {
    // The second field is the program's name in parentheses, which may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let has_ended = fields.next()? == "Z";
    let mut times = fields.skip(10).map(str::parse::<f64>);
    let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
    Some(((user + system) / TICKS_PER_SECOND, has_ended))
}

fn parse_peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024)
}

fn text(file: &mut File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_it_prints_and_how_it_ends() {
        let measured = run(shell("echo one; echo two; echo no >&2"), "x", LIMIT).ok().unwrap();
        assert_eq!(measured.stdout, "one\ntwo\n");
        let error = run(shell("echo why >&2; exit 3"), "x", LIMIT).err().unwrap().to_string();
        assert!(error.starts_with("run x: exit status: 3"), "{error}");
        assert!(error.ends_with("\nwhy\n"), "{error}");
        let error = run(shell("sleep 600"), "x", Duration::ZERO).err().unwrap().to_string();
        assert_eq!(error, "run x: not done after 0ns");
        assert!(run(Command::new("no such program"), "x", LIMIT).is_err());
    }

    #[test]
    fn names_may_hold_anything() {
        let stat = "7 (a) Z 9) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20";
        assert_eq!(parse_stat(stat), Some((3.0, false)));
        assert_eq!(parse_stat(&stat.replace(") S", ") Z")), Some((3.0, true)));
        assert_eq!(parse_stat("7 (a) S 1 2"), None);
        assert_eq!(parse_peak("Name:\tx\nVmHWM:\t    12 kB\nVmRSS:\t 9 kB\n"), Some(12 << 10));
        assert_eq!(parse_peak("VmRSS:\t 9 kB\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_it_used_is_known_when_it_has_ended() {
        let busy = "i=0; while [ $i -lt 60000 ]; do i=$((i + 1)); done";
        let measured = run(shell(busy), "x", LIMIT).ok().unwrap();
        assert!(measured.cpu_s.unwrap() > 0.0);
        assert!(measured.peak_bytes.unwrap() > 100 << 10);
    }
}
