//! Every example of every crate, run to its end.

use std::time::Duration;

use serde::Deserialize;

use super::shell::{cargo, must_pass, must_pass_within, output};
use super::{Depth, Done};
use crate::outcome::{Ended, Failure, say};

/// No example has more to show than this.
const LIMIT: Duration = Duration::from_secs(120);
/// The packages whose examples talk to a broker: the stages of the brokers run what they have.
const NEED_A_BROKER: [&str; 2] = ["keylane-kafka", "keylane-rocketmq"];

/// The part of `cargo metadata` that is looked at.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

pub(super) fn run(_: Depth) -> Ended<Done> {
    let metadata = output(cargo(&["metadata", "--no-deps", "--format-version", "1", "--locked"]))?;
    let examples = examples(&metadata)?;
    if examples.is_empty() {
        return Err(Failure::Broken("there are no examples".to_owned()));
    }
    let mut ran = 0;
    for (package, example) in &examples {
        if NEED_A_BROKER.contains(&package.as_str()) {
            say(&format!("skipped: {package}'s example {example} needs a broker"));
            continue;
        }
        // Built first, so that the limit is the example's own; in the profile that tests have, whose
        // dependencies are built already.
        let which = ["--package", package, "--example", example, "--profile", "test", "--locked"];
        must_pass(cargo(&[&["build", "--quiet"], &which[..]].concat()))?;
        must_pass_within(cargo(&[&["run", "--quiet"], &which[..]].concat()), LIMIT)?;
        ran += 1;
    }
    say(&format!("{ran} of {} examples ran", examples.len()));
    Ok(Done::Passed)
}

/// Package and name of each.
fn examples(metadata: &str) -> Ended<Vec<(String, String)>> {
    let metadata: Metadata =
        serde_json::from_str(metadata).map_err(|error| Failure::other("cargo metadata", error))?;
    let mut examples = Vec::new();
    for package in metadata.packages {
        let targets = package.targets.into_iter();
        let of_package = targets.filter(|target| target.kind.iter().any(|kind| kind == "example"));
        examples.extend(of_package.map(|target| (package.name.clone(), target.name)));
    }
    examples.sort();
    Ok(examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_found_in_cargos_list() {
        let metadata = r#"{"packages": [
            {"name": "b", "targets": [{"name": "x", "kind": ["lib"], "more": 1},
                                      {"name": "hello", "kind": ["example"]}]},
            {"name": "a", "targets": [{"name": "hello", "kind": ["example"]}]}], "version": 1}"#;
        let named = |(package, example): &(&str, &str)| (package.to_string(), example.to_string());
        let expected: Vec<_> = [("a", "hello"), ("b", "hello")].iter().map(named).collect();
        assert_eq!(examples(metadata).unwrap(), expected);
        assert!(examples("[]").is_err());
    }
}
