//! Runs keylane's models: `cargo xtask ci --only loom` builds it with `--cfg loom` and calls it.
//!
//! ```text
//! keylane-models [--model NAME [--without TRANSITION]]
//! ```
//!
//! Without options: each model in a process of its own, which must succeed, and then once for each
//! of its transitions, without it, which must fail. A process each, because `loom` ends the process
//! where it finds a deadlock. Exit status 1 where a model failed, or did not when it should have; 2
//! for options that cannot work.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[cfg(loom)]
mod run;

#[cfg(loom)]
fn main() -> ExitCode {
    run::main()
}

#[cfg(not(loom))]
#[expect(clippy::print_stderr, reason = "it is a program that prints")]
fn main() -> ExitCode {
    eprintln!("this build has no models: --cfg loom makes one that has");
    ExitCode::from(2)
}
