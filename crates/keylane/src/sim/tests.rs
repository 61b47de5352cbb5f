//! Seeds that always run.

use super::*;

#[test]
fn a_seed_is_a_run() {
    let digest = |seed| run_once(seed, false).map(|summary| summary.digest).unwrap_or_default();
    assert_eq!(digest(1), digest(1));
    assert_ne!(digest(1), digest(2));
}

#[test]
fn these_seeds_break_nothing() {
    let broken: Vec<_> = (0..300).filter_map(|seed| run(seed).err()).collect();
    if let Some(failure) = broken.first() {
        let seeds: Vec<_> = broken.iter().map(|failure| failure.seed).collect();
        panic!("seeds {seeds:?} break something; the first:\n{failure}");
    }
}
