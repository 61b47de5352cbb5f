//! Running other programs, with their names in what goes wrong.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::ci::root;
use crate::outcome::{Ended, Failure, say};

/// Cargo, the one that runs us, at the repository's root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    program(Path::new(&cargo), arguments)
}

/// Any program, at the repository's root, without standard input.
pub(crate) fn program(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs it to its end; anything but success is a failed check.
pub(crate) fn must_pass(mut command: Command) -> Ended {
    let shown = shown(&command);
    say(&format!("$ {shown}"));
    let status = command.status().map_err(|error| Failure::other(&shown, error))?;
    if status.success() { Ok(()) } else { Err(Failure::Broken(format!("{shown}: {status}"))) }
}

/// Runs it for at most so long, then ends it, which is a failed check too.
pub(crate) fn must_pass_within(mut command: Command, limit: Duration) -> Ended {
    let shown = shown(&command);
    say(&format!("$ {shown}"));
    let mut child = command.spawn().map_err(|error| Failure::other(&shown, error))?;
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait().map_err(|error| Failure::other(&shown, error))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(Failure::Broken(format!("{shown}: {status}"))),
            None if Instant::now() >= deadline => {
                drop(child.kill());
                drop(child.wait());
                return Err(Failure::Broken(format!("{shown}: still running after {limit:?}")));
            }
            None => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Runs it and gives what it printed on standard output.
pub(crate) fn output(mut command: Command) -> Ended<String> {
    let shown = shown(&command);
    say(&format!("$ {shown}"));
    command.stderr(Stdio::inherit());
    let output = command.output().map_err(|error| Failure::other(&shown, error))?;
    if !output.status.success() {
        return Err(Failure::Broken(format!("{shown}: {}", output.status)));
    }
    String::from_utf8(output.stdout).map_err(|error| Failure::other(&shown, error))
}

/// As one would type it, with the variables that were set.
fn shown(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default();
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={} ", name.to_string_lossy(), value?.to_string_lossy()))
    });
    let arguments = command.get_args().map(|argument| format!(" {}", argument.to_string_lossy()));
    let variables: String = variables.collect();
    let arguments: String = arguments.collect();
    format!("{variables}{}{arguments}", name.to_string_lossy())
}
