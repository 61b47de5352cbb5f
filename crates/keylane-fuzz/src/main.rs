//! Fuzz targets: everything of the project that parses foreign bytes.
//!
//! Built with `--cfg keylane_fuzz` and the passes that count what code is reached, this is libFuzzer
//! around the target that `KEYLANE_FUZZ_TARGET` names. Built without, it replays files:
//!
//! ```text
//! keylane-fuzz TARGET FILE...
//! ```
//!
//! Below `seeds/` are inputs to begin with, below `found/` those that once broke something; the
//! tests replay both. `cargo xtask ci --only fuzz` builds the fuzzer and runs each target.
#![cfg_attr(keylane_fuzz, no_main)]
#![cfg_attr(not(keylane_fuzz), forbid(unsafe_code))]

mod engine;
// Modules of a program, which nobody can depend on.
#[path = "../../../xtask/src/flags/load.rs"]
mod flags;
#[path = "../../../xtask/src/load/input.rs"]
#[expect(dead_code, reason = "what the program needs beside reading rows")]
mod input;
#[path = "../../../xtask/src/outcome.rs"]
#[expect(dead_code, reason = "what the program needs beside its failures")]
mod outcome;
mod targets;
#[path = "../../../xtask/src/flags/value.rs"]
mod value;

#[cfg(keylane_fuzz)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::from_environment()(bytes));

#[cfg(not(keylane_fuzz))]
fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let Some(target) = targets::named(&name) else {
        let names: Vec<_> = targets::TARGETS.iter().map(|(name, _)| *name).collect();
        outcome::say(&format!("TARGET FILE...; the targets are {}", names.join(", ")));
        return std::process::ExitCode::from(2);
    };
    for file in arguments {
        match std::fs::read(&file) {
            Ok(bytes) => target(&bytes),
            Err(error) => {
                outcome::say(&format!("{file}: {error}"));
                return std::process::ExitCode::from(3);
            }
        }
    }
    std::process::ExitCode::SUCCESS
}
