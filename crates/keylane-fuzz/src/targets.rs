//! The targets by name. Each takes any bytes and returns; what it must not do is panic, and some
//! check besides that what was read can be written and read again.

use std::io::Cursor;

use clap::{CommandFactory, FromArgMatches, Parser};
use csv::ByteRecord;
use keylane_rocketmq::{Config, RocketMqSource};

use crate::flags::LoadFlags;
use crate::input::Rows;
use crate::value;

/// What a fuzzer calls.
pub(crate) type Target = fn(&[u8]);

/// All of them.
pub(crate) const TARGETS: [(&str, Target); 12] = [
    ("log-block", keylane_log::fuzz_block),
    ("log-records", keylane_log::fuzz_records),
    ("rocketmq-frames", keylane_rocketmq::fuzz::frames),
    ("rocketmq-messages", keylane_rocketmq::fuzz::messages),
    ("rocketmq-pull", keylane_rocketmq::fuzz::pull),
    ("rocketmq-json", keylane_rocketmq::fuzz::json),
    ("rocketmq-config", rocketmq_config),
    ("kafka-properties", keylane_kafka::fuzz::properties),
    ("csv", csv_rows),
    ("options", options),
    ("load-flags", load_flags),
    ("engine-options", crate::engine::options),
];

/// The target of this name.
pub(crate) fn named(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}

/// The target that the environment names; the process ends where it names none.
#[cfg(keylane_fuzz)]
pub(crate) fn from_environment() -> Target {
    static TARGET: std::sync::OnceLock<Target> = std::sync::OnceLock::new();
    *TARGET.get_or_init(|| {
        let name = std::env::var("KEYLANE_FUZZ_TARGET").unwrap_or_default();
        named(&name).unwrap_or_else(|| {
            crate::outcome::say(&format!("KEYLANE_FUZZ_TARGET={name:?} is no target"));
            std::process::exit(2)
        })
    })
}

/// A file as the load generator reads it, plain or gzip: each row that is read can be written as a
/// message's payload, and read again from there.
fn csv_rows(bytes: &[u8]) {
    let reader = Cursor::new(bytes.to_vec());
    let Ok(mut rows) = Rows::read(reader, "fuzz.csv", "key", "queue") else { return };
    let mut text = Vec::new();
    while let Ok(Some(row)) = rows.next() {
        let (key, queue) = (row.key().map(<[u8]>::to_vec), row.queue().to_vec());
        row.write_to(&mut text);
        let mut again = csv::ReaderBuilder::new().has_headers(false).from_reader(&text[..]);
        let mut record = ByteRecord::new();
        let read = again.read_byte_record(&mut record);
        assert!(read.is_ok_and(|is_there| is_there), "the payload is no row: {text:?}");
        let has = |field: &[u8]| record.iter().any(|there| there == field);
        assert!(has(&queue) && key.is_none_or(|key| has(&key)), "not the row: {text:?}");
    }
}

/// A consumer group as from a properties file: lines `name=value` are options, others a topic and
/// what is read of it. What is wrong is refused, in words; a source that is made has no connection
/// before it is polled.
fn rocketmq_config(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let mut config = Config::new([""; 0], "");
    for line in text.lines() {
        config = match (line.split_once('='), line.split_once(' ')) {
            (Some((name, value)), _) => match config.clone().set(name, value) {
                Ok(with) => with,
                Err(error) => {
                    assert!(error.to_string().contains(name), "{name:?}: {error}");
                    config
                }
            },
            (None, Some((topic, expression))) => config.subscribe(topic, expression),
            (None, None) => config.client_id(line),
        };
    }
    if let Err(error) = RocketMqSource::new(config) {
        assert!(!error.to_string().is_empty(), "refused without a word: {text:?}");
    }
}

/// Values of options that have a notation of their own.
fn options(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Ok(work) = value::work(text) {
        assert!(value::work_duration(work).as_secs() <= 3_600, "{text}");
    }
    assert!(value::count(text) != Ok(0), "{text}");
    let within = |number: Result<f64, String>, low: f64, high: f64| {
        let Ok(number) = number else { return };
        assert!(number >= low && number <= high, "{text}: {number}");
    };
    within(value::share(text), 0.0, 0.9);
    within(value::exponent(text), 0.0, 10.0);
    within(value::key_share(text), 0.0, 1.0);
    within(value::rate(text), 0.001, 1e9);
}

/// The load generator's command line.
#[derive(Debug, Parser)]
struct Load {
    #[command(flatten)]
    flags: LoadFlags,
}

/// The options of `cargo xtask load`, one argument a line: what is refused is refused in words, and
/// what is accepted lies within the bounds that the help states.
fn load_flags(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let arguments = std::iter::once("load").chain(text.lines());
    let matches = Load::command().try_get_matches_from(arguments);
    let flags = match matches.and_then(|matches| Load::from_arg_matches(&matches)) {
        Ok(load) => load.flags,
        Err(error) => return assert!(!error.to_string().is_empty(), "refused without a word"),
    };
    assert!((1..=4_096).contains(&flags.shards), "{flags:?}");
    assert!((1..=100_000_000).contains(&flags.in_flight), "{flags:?}");
    assert!(flags.messages != Some(0), "{flags:?}");
    assert!(flags.batch.is_none_or(|batch| (1..=65_536).contains(&batch)), "{flags:?}");
    assert!(flags.queues.is_none_or(|queues| (1..=65_536).contains(&queues)), "{flags:?}");
    assert!(flags.keys.is_none_or(|keys| (1..=10_000_000).contains(&keys)), "{flags:?}");
    assert!(flags.payload.is_none_or(|bytes| bytes <= 16 << 20), "{flags:?}");
    assert!(flags.rate.is_none_or(|rate| rate > 0.0 && rate.is_finite()), "{flags:?}");
    assert!((0.0..=0.9).contains(&flags.fail_rate), "{flags:?}");
    assert!((0.0..=0.9).contains(&flags.panic_rate), "{flags:?}");
    assert!(value::work_duration(flags.work).as_secs() <= 3_600, "{flags:?}");
    let has_all = flags.input.is_none() || (flags.key.is_some() && flags.queue.is_some());
    assert!(has_all && !(flags.quick && flags.full), "they do not go together: {flags:?}");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn seeds_and_what_was_found_break_nothing() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut replayed = 0;
        for (name, target) in TARGETS {
            target(&[]);
            for folder in ["seeds", "found"] {
                let Ok(files) = std::fs::read_dir(here.join(folder).join(name)) else { continue };
                for file in files {
                    target(&std::fs::read(file.unwrap().path()).unwrap());
                    replayed += 1;
                }
            }
        }
        assert!(replayed >= TARGETS.len(), "seeds are missing: {replayed} files");
    }
}
