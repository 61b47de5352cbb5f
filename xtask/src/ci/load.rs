//! The load generator as users run it, in every mode; its JSON is looked at field by field.

use serde_json::{Map, Value};

use super::shell::{output, program};
use super::{Depth, Done};
use crate::outcome::{Ended, Failure};

/// What the contract says that there is, and nothing may be null where it can be known.
const FIELDS: [&str; 20] = [
    "mode",
    "source",
    "shards",
    "queues",
    "keys",
    "messages",
    "delivered",
    "elapsed_s",
    "messages_per_s",
    "latency_us",
    "order_violations",
    "overlap_violations",
    "lost",
    "duplicates",
    "committed",
    "commit_violations",
    "in_flight_max",
    "cpu_s",
    "rss_peak_bytes",
    "seed",
];
const MODES: [&str; 3] = ["key-sharded", "queue-locked", "concurrent"];

pub(super) fn run(depth: Depth) -> Ended<Done> {
    let extent: &[&str] = if depth == Depth::Deep { &["--full"] } else { &["--quick"] };
    for mode in MODES {
        check(&[&["load", "--json", "--mode", mode], extent].concat())?;
    }
    // Retries, panics and batches, which the flights alone do not bring.
    let rough = ["load", "--json", "--quick", "--fail-rate", "0.02", "--panic-rate", "0.01"];
    check(&[&rough[..], &["--keys", "500", "--skew", "1", "--batch", "8"]].concat())?;
    check(&["load", "--json", "--quick", "--source", "memory", "--rate", "5000"])?;
    Ok(Done::Passed)
}

fn check(arguments: &[&str]) -> Ended {
    // This very program: it was built from what is checked.
    let xtask = std::env::current_exe().map_err(|error| Failure::other("find myself", error))?;
    let printed = output(program(&xtask, arguments))?;
    let problems = problems(&printed);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::Broken(format!("{}: {}", arguments.join(" "), problems.join("; ")))),
    }
}

/// What is wrong with what was printed.
fn problems(printed: &str) -> Vec<String> {
    let object: Map<String, Value> = match serde_json::from_str(printed) {
        Ok(Value::Object(object)) => object,
        Ok(_) => return vec!["it is no object".to_owned()],
        Err(error) => return vec![format!("it is not one object and nothing else: {error}")],
    };
    let mut problems: Vec<String> = FIELDS
        .iter()
        .filter(|field| object.get(**field).is_none_or(Value::is_null))
        .map(|field| format!("{field} is missing"))
        .collect();
    let zero =
        ["order_violations", "overlap_violations", "lost", "commit_violations", "duplicates"];
    for field in zero {
        if object.get(field).and_then(Value::as_u64) != Some(0) {
            problems.push(format!("{field} is {:?}", object.get(field)));
        }
    }
    if object.get("delivered") != object.get("messages") {
        problems.push("not everything was delivered".to_owned());
    }
    if object.get("committed") != Some(&Value::Bool(true)) {
        problems.push("not everything was committed".to_owned());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Map<String, Value> {
        let mut object: Map<String, Value> =
            FIELDS.iter().map(|field| ((*field).to_owned(), Value::from(0))).collect();
        object.insert("committed".to_owned(), Value::Bool(true));
        object
    }

    #[test]
    fn each_field_is_missed() {
        assert_eq!(problems(&Value::from(object()).to_string()), [""; 0]);
        for field in FIELDS {
            let mut object = object();
            object.remove(field);
            assert!(!problems(&Value::from(object).to_string()).is_empty(), "{field}");
        }
    }

    #[test]
    fn bad_values_and_other_text_are_seen() {
        let with = |field: &str, value: Value| {
            let mut object = object();
            object.insert(field.to_owned(), value);
            problems(&Value::from(object).to_string())
        };
        assert_eq!(with("committed", Value::Bool(false)), ["not everything was committed"]);
        assert_eq!(with("delivered", Value::from(1)), ["not everything was delivered"]);
        assert_eq!(with("lost", Value::from(1)), ["lost is Some(Number(1))"]);
        assert_eq!(problems("writing\n{}").len(), 1);
        assert_eq!(problems("{}\n{}").len(), 1);
        assert_eq!(problems("").len(), 1);
    }
}
