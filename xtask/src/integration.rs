//! `cargo xtask integration`: the tests that need a real broker. It is started unless it runs, the
//! suites run, and it is stopped if it was started for them. What kills its broker, or wants it as
//! this version configures it, has one of its own, empty at first: how soon a killed broker is back
//! depends on how much it holds.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::Args;

use crate::brokers::{Place, Running};
use crate::ci::shell::{cargo, must_pass, must_pass_within};
use crate::ci::{is_gate, target_folder};
use crate::flags::{Broker, VersionFlag};
use crate::outcome::{EXIT_STATUS, Ended, Failure, say};

/// What a suite may take on a busy machine; what it takes to compile it does not count.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// The tests that need real brokers: starts them, runs the suites, stops them
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct IntegrationFlags {
    /// Which broker; both when not given
    broker: Option<Broker>,
    #[command(flatten)]
    version: VersionFlag,
}

/// The task.
pub(crate) fn run(flags: &IntegrationFlags) -> Ended {
    let brokers = flags.broker.map_or_else(|| vec![Broker::Kafka, Broker::Rocketmq], |b| vec![b]);
    brokers.into_iter().try_for_each(|broker| {
        let place = Place::of_version(broker, flags.version.of(broker)?);
        test(start(place)?, Tls::Always)
    })
}

/// A broker that answers.
pub(crate) struct Started {
    place: Place,
    running: Running,
    /// Whether it ran already: then it goes on.
    ran_before: bool,
}

/// Starts the broker, or finds the one that runs.
pub(crate) fn start(place: Place) -> Ended<Started> {
    let ran_before = place.status()?.is_some();
    let running = place.up()?;
    say(&running.to_string());
    Ok(Started { place, running, ran_before })
}

/// Whether what needs OpenSSL is built and run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tls {
    /// Where this system has it: to compile it takes as long as all the rest.
    WhereItIs,
    /// It is compiled if need be.
    Always,
}

/// Runs the broker's suites, and stops what was started for them.
pub(crate) fn test(started: Started, tls: Tls) -> Ended {
    let Started { place, running, ran_before } = started;
    let tested = test_at(&running, &place).and_then(|()| test_apart(place.broker, tls));
    if ran_before {
        return tested.map_err(|failure| match failure {
            Failure::Broken(why) => Failure::Broken(format!("{why} ({:?} goes on)", place.broker)),
            other => other,
        });
    }
    let stopped = place.down();
    tested?;
    stopped?;
    // There nobody asks for what it stored again, and it is most of a gigabyte.
    if is_gate() { place.empty() } else { Ok(()) }
}

fn test_at(running: &Running, place: &Place) -> Ended {
    match place.broker {
        Broker::Kafka => {
            // Those that have a broker of librdkafka's own run in plain `cargo test`. Most of the
            // time is waiting for sessions to end: more at a time than there are cores.
            let which = ["conformance::", "real_broker::", "engine::", "--skip", "restart::"];
            let mut tests = tests("keylane-kafka", &[], running)?;
            tests.args(which).arg("--test-threads=4");
            must_pass_within(tests, LIMIT)?;
            run_example(running)
        }
        Broker::Rocketmq => {
            // As above. Tests that kill a broker have one of their own.
            let mut tests = tests("keylane-rocketmq", &[], running)?;
            tests.env("KEYLANE_ROCKETMQ_VERSION", place.version.name());
            tests.args(["conformance::real_broker", "real::", "engine::", "--test-threads=4"]);
            must_pass_within(tests, LIMIT)
        }
    }
}

/// The suites with a broker of their own.
fn test_apart(broker: Broker, tls: Tls) -> Ended {
    let Broker::Kafka = broker else { return Ok(()) };
    let folder = target_folder().join("brokers").join("kafka-apart");
    let place = Place { folder, ..Place::usual(broker) };
    place.down()?;
    if place.folder.exists() {
        let removed = fs::remove_dir_all(&place.folder);
        removed.map_err(|error| Failure::other(place.folder.display(), error))?;
    }
    let running = place.up()?;
    say(&running.to_string());
    let tested = test_tls(&running, tls).and_then(|()| test_kills(&running, &place));
    let stopped = place.down();
    tested?;
    stopped?;
    place.empty()
}

fn test_tls(running: &Running, tls: Tls) -> Ended {
    let (Some(at), Some(feature)) = (&running.tls, tls_feature(tls)) else {
        say("skipped: TLS; this system has no development files of OpenSSL");
        return Ok(());
    };
    let mut tests = tests("keylane-kafka", &["--features", feature], running)?;
    tests.env("KEYLANE_KAFKA_TLS", &at.servers).env("KEYLANE_KAFKA_CA", &at.certificate);
    tests.arg("tls::");
    must_pass_within(tests, LIMIT)
}

/// The feature that TLS is built with here; none where it is not to be built.
fn tls_feature(tls: Tls) -> Option<&'static str> {
    let found = Command::new("pkg-config").args(["--exists", "openssl"]).status();
    let found = found.is_ok_and(|status| status.success());
    match (found || std::env::var_os("OPENSSL_DIR").is_some(), tls) {
        (true, _) => Some("tls"),
        (false, Tls::Always) => Some("tls-vendored"),
        (false, Tls::WhereItIs) => None,
    }
}

/// One at a time: each kills the broker.
fn test_kills(running: &Running, place: &Place) -> Ended {
    let mut tests = tests("keylane-kafka", &[], running)?;
    tests.args(["restart::", "--test-threads=1"]);
    let program = place.folder.join("xtask");
    copy_this_program(&program)?;
    tests.env("KEYLANE_KAFKA_RESTART", restart_command(&program, place));
    let tested = must_pass_within(tests, LIMIT);
    let removed = fs::remove_file(&program);
    tested?;
    removed.map_err(|error| Failure::other(program.display(), error))
}

/// The tests of a package, built, with the broker; arguments of the test program may follow.
fn tests(package: &str, options: &[&str], running: &Running) -> Ended<Command> {
    let of_package = ["test", "--package", package, "--tests", "--locked"];
    let of_package = [&of_package[..], options].concat();
    must_pass(cargo(&[&of_package[..], &["--no-run"]].concat()))?;
    let mut tests = cargo(&of_package);
    tests.arg("--");
    tests.env(format!("KEYLANE_{}", running.broker.name().to_uppercase()), &running.address);
    Ok(tests)
}

/// The example that needs Kafka.
fn run_example(running: &Running) -> Ended {
    let which = ["--package", "keylane-kafka", "--example", "orders", "--profile", "test"];
    let which = [&which[..], &["--locked"]].concat();
    must_pass(cargo(&[&["build"], &which[..]].concat()))?;
    let mut example = cargo(&[&["run"], &which[..]].concat());
    example.args(["--", &running.address]);
    must_pass_within(example, LIMIT)
}

/// This very program, under a name that it keeps: a build meanwhile replaces the one that runs, which
/// is still to be had under the first of these names.
fn copy_this_program(to: &Path) -> Ended {
    let copied = fs::copy("/proc/self/exe", to);
    let copied = copied.or_else(|_| fs::copy(std::env::current_exe()?, to));
    copied.map(drop).map_err(|error| Failure::other(format!("copy it to {}", to.display()), error))
}

/// What kills and restarts the broker, for `sh -c`.
fn restart_command(program: &Path, place: &Place) -> String {
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    let (program, folder) = (quoted(program), quoted(&place.folder));
    format!("{program} brokers restart {} --folder {folder}", place.broker.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_restarted_by_a_copy_that_runs() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("it's");
        copy_this_program(&program).unwrap();
        let place = Place { folder: folder.path().to_owned(), ..Place::usual(Broker::Kafka) };
        let command = restart_command(&program, &place);
        let quoted = format!("'{}/it'\\''s'", folder.path().display());
        let expected =
            format!("{quoted} brokers restart kafka --folder '{}'", folder.path().display());
        assert_eq!(command, expected);
        // Here it is the test program, which lists its tests.
        let listed = Command::new("sh").args(["-c", &format!("{quoted} --list")]).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert!(listed.contains("a_broker_is_restarted_by_a_copy_that_runs"), "{listed}");
    }
}
