//! Models of what threads share: each holds in every order of events, and fails without each of the
//! transitions that it is about (`crates/keylane/src/models.rs`).
//!
//! The build has loom's locks and atomics in place of the real ones, and a folder of its own.

use super::shell::{cargo, must_pass, program};
use super::{Depth, Done, target_folder};
use crate::outcome::Ended;

pub(super) fn run(_: Depth) -> Ended<Done> {
    let folder = target_folder().join("loom");
    let shown = folder.to_string_lossy();
    let mut build = cargo(&["build", "--locked", "--quiet", "--release", "-p", "keylane-models"]);
    build.args(["--target-dir", &shown]).env("RUSTFLAGS", "--cfg loom");
    must_pass(build)?;
    let models = folder.join("release").join("keylane-models");
    must_pass(program(&models.with_extension(std::env::consts::EXE_EXTENSION), &[]))?;
    Ok(Done::Passed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use crate::ci::root;

    /// The names in `removed!("...")` below this folder.
    fn marked(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                marked(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let names = text.split("removed!(\"").skip(1);
                found.extend(names.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
            }
        }
    }

    #[test]
    fn every_transition_that_is_marked_has_a_model_and_the_other_way_round() {
        let mut found = BTreeSet::new();
        marked(&root().join("crates/keylane/src"), &mut found);
        let models = root().join("crates/keylane/src/models.rs");
        let text = std::fs::read_to_string(models).unwrap();
        let lists = text.split("transitions: &[").skip(1).filter_map(|rest| rest.split(']').next());
        let named = lists.flat_map(|list| list.split('"').skip(1).step_by(2)).map(str::to_owned);
        assert_eq!(found, named.collect());
    }
}
