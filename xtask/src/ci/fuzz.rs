//! Parsers of foreign bytes, fuzzed with coverage: 15 seconds each, a minute with `--deep`.
//!
//! The pinned toolchain can do it: the passes that count what code is reached are LLVM's, and
//! `rustc` takes them without being a nightly. libFuzzer comes with `libfuzzer-sys` and needs a C++
//! compiler. What was reached before is kept below the target folder, and is where the next run
//! begins.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use super::shell::{cargo, must_pass, output, program};
use super::{Depth, Done, is_gate, root, target_folder};
use crate::outcome::{Ended, Failure, say};

/// As `crates/keylane-fuzz/src/targets.rs` names them.
const TARGETS: [&str; 12] = [
    "log-block",
    "log-records",
    "rocketmq-frames",
    "rocketmq-messages",
    "rocketmq-pull",
    "rocketmq-json",
    "rocketmq-config",
    "kafka-properties",
    "csv",
    "options",
    "load-flags",
    "engine-options",
];

/// What a fuzzer needs of the compiler: counters for each edge, comparisons it can see, and panics
/// where arithmetic overflows (the profile's).
const FLAGS: &str = "--cfg keylane_fuzz -Cpasses=sancov-module \
                     -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-trace-compares \
                     -Ccodegen-units=1";
/// How many fuzz at the same time.
const AT_ONCE: usize = 2;
/// Seconds for each, unless more are asked for.
const SHORT: u32 = 15;
/// Longer input finds little more, slowly.
const LENGTH_MAX: usize = 4_096;

pub(super) fn run(depth: Depth) -> Ended<Done> {
    let cxx = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let has_cxx = Command::new(&cxx).arg("--version").stdout(Stdio::null()).status();
    if !has_cxx.is_ok_and(|status| status.success()) {
        let missing = "no C++ compiler, which libFuzzer needs (c++, or CXX)";
        return match is_gate() {
            true => Err(Failure::Other(missing.to_owned())),
            false => Ok(Done::Skipped(missing.to_owned())),
        };
    }
    let fuzzer = build()?;
    let seconds = match depth {
        Depth::Short => SHORT,
        Depth::Deep => 60,
    };
    say(&format!("{} targets, {seconds} s each", TARGETS.len()));
    let mut failed = Vec::new();
    for some in TARGETS.chunks(AT_ONCE) {
        let ended = thread::scope(|scope| {
            let fuzzer = &fuzzer;
            let each = |name| scope.spawn(move || fuzz(fuzzer, name, seconds));
            let running: Vec<_> = some.iter().map(|name| each(*name)).collect();
            running.into_iter().map(|one| one.join()).collect::<Vec<_>>()
        });
        for (name, ended) in some.iter().zip(ended) {
            match ended.unwrap_or_else(|_| Err(Failure::Other("its thread panicked".to_owned()))) {
                Ok(line) => say(&format!("{name:<18} {line}")),
                Err(failure) => failed.push(format!("{name}: {failure}")),
            }
        }
    }
    match failed.is_empty() {
        true => Ok(Done::Passed),
        false => Err(Failure::Broken(failed.join("\n"))),
    }
}

/// Builds all targets, which are one program, for this machine; the `--target` keeps the counters
/// out of build scripts.
fn build() -> Ended<PathBuf> {
    let version = output(program(Path::new("rustc"), &["-vV"]))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| Failure::Other("rustc -vV names no host".to_owned()))?;
    let folder = target_folder().join("fuzz");
    let shown = folder.to_string_lossy();
    let mut command = cargo(&["build", "--locked", "--quiet", "-p", "keylane-fuzz"]);
    command.args(["--profile", "sim", "--target", host, "--target-dir", &shown]);
    command.env("RUSTFLAGS", FLAGS);
    must_pass(command)?;
    Ok(folder.join(host).join("sim").join("keylane-fuzz"))
}

/// Runs one target for its time; what it did, in a line.
fn fuzz(fuzzer: &Path, name: &str, seconds: u32) -> Ended<String> {
    let other = |error: std::io::Error| Failure::other(format!("fuzz {name}"), error);
    let folder = target_folder().join("fuzz");
    let corpus = folder.join("corpus").join(name);
    let artifacts = folder.join("artifacts");
    for needed in [&corpus, &artifacts] {
        std::fs::create_dir_all(needed).map_err(other)?;
    }
    let mut command = program(fuzzer, &[]);
    command.env("KEYLANE_FUZZ_TARGET", name);
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={LENGTH_MAX}"));
    command.args(["-timeout=60", "-rss_limit_mb=2048", "-use_value_profile=1"]);
    command.args(["-verbosity=0", "-print_final_stats=1"]);
    command.arg(format!("-artifact_prefix={}/{name}-", artifacts.display()));
    if seconds == SHORT {
        // The same change is judged the same way, as far as time allows.
        command.arg("-seed=1");
    }
    // New inputs go to the first folder; the others are only read.
    command.arg(&corpus);
    let kept = ["seeds", "found"].map(|kept| root().join("crates/keylane-fuzz").join(kept));
    command.args(kept.iter().map(|kept| kept.join(name)).filter(|kept| kept.is_dir()));
    let ended = command.output().map_err(other)?;
    let said = String::from_utf8_lossy(&ended.stderr);
    if ended.status.success() {
        let runs =
            said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        let runs = runs.map_or("?", str::trim);
        if matches!(runs, "?" | "0") {
            return Err(Failure::Other(format!("fuzz {name}: it ran nothing: {said}")));
        }
        let inputs = std::fs::read_dir(&corpus).map_or(0, Iterator::count);
        if inputs == 0 {
            let blind = "nothing that it tried reached new code, so it sees no code at all";
            return Err(Failure::Other(format!("fuzz {name}: {blind}: {said}")));
        }
        return Ok(format!("{runs} inputs tried, {inputs} kept"));
    }
    let from = said.find("panicked at").unwrap_or(0);
    let why: String = said[from..].chars().take(1_500).collect();
    Err(Failure::Broken(format!(
        "{}\n{why}\nthe input is the newest {}/{name}-*; it belongs into \
         crates/keylane-fuzz/found/{name}",
        ended.status,
        artifacts.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_run() {
        let targets = root().join("crates/keylane-fuzz/src/targets.rs");
        let text = std::fs::read_to_string(targets).unwrap();
        let quoted = text.lines().filter_map(|line| line.trim().strip_prefix("(\""));
        let named: Vec<_> = quoted.filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(named, TARGETS);
    }
}
