//! `cargo xtask integration`: the tests that need a real broker. It is started unless it runs, the
//! suites run, and it is stopped if it was started for them.

use std::time::Duration;

use clap::Args;

use crate::brokers;
use crate::ci::shell::{cargo, must_pass_within};
use crate::flags::Broker;
use crate::outcome::{EXIT_STATUS, Ended, Failure, say};

/// What a suite may take, compiling and a busy machine included.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// The tests that need real brokers: starts them, runs the suites, stops them
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS)]
pub(crate) struct IntegrationFlags {
    /// Which broker; both when not given
    broker: Option<Broker>,
}

/// The task.
pub(crate) fn run(flags: &IntegrationFlags) -> Ended {
    let brokers = flags.broker.map_or_else(|| vec![Broker::Kafka, Broker::Rocketmq], |b| vec![b]);
    for broker in brokers {
        let started = start(broker)?;
        test(broker, started, true)?;
    }
    Ok(())
}

/// A broker that answers.
pub(crate) struct Started {
    running: brokers::Running,
    /// Whether it ran already: then it goes on.
    ran_before: bool,
}

/// Starts the broker, or finds the one that runs.
pub(crate) fn start(broker: Broker) -> Ended<Started> {
    let ran_before = brokers::status(broker)?.is_some();
    let running = brokers::up(broker)?;
    say(&running.to_string());
    Ok(Started { running, ran_before })
}

/// Runs the broker's suites, those too that kill it if asked for, and stops what was started for
/// them.
pub(crate) fn test(broker: Broker, started: Started, with_restarts: bool) -> Ended {
    let mut suites = suites(broker).into_iter().filter(|suite| with_restarts || !suite.restarts);
    let tested = suites.try_for_each(|suite| suite.run(&started.running));
    let tested = tested.and_then(|()| run_examples(&started.running));
    if started.ran_before {
        return tested.map_err(|failure| match failure {
            Failure::Broken(why) => Failure::Broken(format!("{why} ({broker:?} goes on)")),
            other => other,
        });
    }
    let stopped = brokers::down(broker);
    tested?;
    stopped
}

const THREADS: &str = "--test-threads=4";

/// Some tests of a package.
struct Suite {
    package: &'static str,
    /// What goes to the test program.
    arguments: &'static [&'static str],
    /// Whether the broker is killed meanwhile: such tests run by themselves, one after the other.
    restarts: bool,
}

fn suites(broker: Broker) -> Vec<Suite> {
    let suite = |package, arguments, restarts| Suite { package, arguments, restarts };
    match broker {
        Broker::Kafka => vec![
            // Those that have a broker of librdkafka's own run in plain `cargo test`. Most of the
            // time is waiting for sessions to end: more at a time than there are cores.
            suite(
                "keylane-kafka",
                &["conformance::", "real_broker::", "engine::", "--skip", "restart::", THREADS],
                false,
            ),
            suite("keylane-kafka", &["restart::", "--test-threads=1"], true),
        ],
        Broker::Rocketmq => vec![suite("keylane-rocketmq", &[], false)],
    }
}

impl Suite {
    fn run(&self, broker: &brokers::Running) -> Ended {
        let mut tests = cargo(&["test", "--package", self.package, "--tests", "--locked", "--"]);
        tests.args(self.arguments);
        let name = format!("KEYLANE_{}", broker.broker.name().to_uppercase());
        tests.env(&name, &broker.address);
        if self.restarts {
            tests.env(format!("{name}_RESTART"), restart_command(broker.broker)?);
        }
        must_pass_within(tests, LIMIT)
    }
}

/// The examples that need it.
fn run_examples(broker: &brokers::Running) -> Ended {
    let Broker::Kafka = broker.broker else { return Ok(()) };
    let which = ["run", "--package", "keylane-kafka", "--example", "orders", "--profile", "test"];
    let mut example = cargo(&which);
    example.args(["--locked", "--", &broker.address]);
    must_pass_within(example, LIMIT)
}

/// What kills and restarts the broker, for `sh -c`: this very program.
fn restart_command(broker: Broker) -> Ended<String> {
    let program = std::env::current_exe();
    let program = program.map_err(|error| Failure::other("find this program", error))?;
    let quoted = program.display().to_string().replace('\'', r"'\''");
    Ok(format!("'{quoted}' brokers restart {}", broker.name()))
}
