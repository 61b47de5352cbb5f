//! One object per run, for programs.

use std::io::Write;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::plan::name;
use super::result::{Flights, RunResult};
use crate::outcome::{Ended, Failure};

/// The contract: names and meanings stay. New fields may be added at the end.
#[derive(Debug, Serialize)]
struct Object<'a> {
    mode: String,
    source: &'a str,
    shards: u32,
    queues: usize,
    keys: u64,
    messages: u64,
    /// Distinct messages that reached the listener and succeeded.
    delivered: u64,
    elapsed_s: f64,
    messages_per_s: f64,
    /// From the pull to the beginning of the listener call, first attempts.
    latency_us: Percentiles,
    order_violations: u64,
    overlap_violations: u64,
    lost: u64,
    /// Deliveries of a (queue, offset) after it had succeeded.
    duplicates: u64,
    /// Whether every queue is committed at its end.
    committed: bool,
    commit_violations: u64,
    in_flight_max: u64,
    cpu_s: Option<f64>,
    rss_peak_bytes: Option<u64>,
    seed: u64,

    // Beyond the contract.
    /// What the contract's numbers do not count: everything that is not as it should be, in words.
    broken: Vec<String>,
    other_violations: u64,
    keyless: u64,
    /// Below what the group had committed when the run began.
    finished_before: u64,
    work: &'a str,
    failed_attempts: u64,
    panics: u64,
    /// From the pull until the message was done.
    engine_latency_us: Percentiles,
    /// From when it was produced until it was done; only with a rate.
    end_to_end_latency_us: Option<Percentiles>,
    ceiling_per_s: Option<f64>,
    imbalance: f64,
    by_queue: Vec<Queue<'a>>,
    flights: Option<Balances>,
}

/// Of a latency, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

#[derive(Debug, Serialize)]
struct Queue<'a> {
    name: &'a str,
    delivered: u64,
    committed: u64,
    end: u64,
}

#[derive(Debug, Serialize)]
struct Balances {
    dep_delay_sum: i64,
    balance_sum: i64,
    balance_max: i64,
    right: bool,
}

/// Prints them on standard output, a line each.
pub(super) fn print(results: &[RunResult]) -> Ended {
    let failed = |error: &dyn std::fmt::Display| Failure::other("write the result", error);
    let mut out = std::io::stdout().lock();
    for result in results {
        serde_json::to_writer(&mut out, &object(result)).map_err(|error| failed(&error))?;
        writeln!(out).map_err(|error| failed(&error))?;
    }
    out.flush().map_err(|error| failed(&error))
}

fn object(result: &RunResult) -> Object<'_> {
    let (verdict, tally) = (&result.verdict, &result.tally);
    Object {
        mode: name(result.mode),
        source: &result.source,
        shards: result.shards,
        queues: result.queues.len(),
        keys: result.keys,
        messages: result.messages,
        delivered: result.delivered(),
        elapsed_s: result.elapsed.as_secs_f64(),
        messages_per_s: result.per_second(),
        latency_us: Percentiles::of(&tally.hand_off),
        order_violations: verdict.order_violations,
        overlap_violations: verdict.overlap_violations,
        lost: verdict.lost,
        duplicates: verdict.duplicates,
        committed: result.committed(),
        commit_violations: verdict.commit_violations,
        in_flight_max: result.metrics.in_flight_max,
        cpu_s: result.cpu_seconds.map(|cpu| (cpu * 100.0).round() / 100.0),
        rss_peak_bytes: result.peak_bytes,
        seed: result.seed,
        broken: result.broken(),
        other_violations: verdict.other_violations,
        keyless: result.keyless,
        finished_before: result.finished_before,
        work: &result.work,
        failed_attempts: tally.failures,
        panics: tally.panics,
        engine_latency_us: Percentiles::of(&tally.in_engine),
        end_to_end_latency_us: tally.end_to_end.as_ref().map(Percentiles::of),
        ceiling_per_s: result.ceiling_for_these_keys(),
        imbalance: result.imbalance(),
        by_queue: result
            .queues
            .iter()
            .map(|queue| Queue {
                name: &queue.name,
                delivered: queue.delivered,
                committed: queue.committed,
                end: queue.end,
            })
            .collect(),
        flights: result.flights.as_ref().map(Balances::of),
    }
}

impl Percentiles {
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: histogram.max() }
    }
}

impl Balances {
    fn of(flights: &Flights) -> Self {
        Self {
            dep_delay_sum: flights.got.delays,
            balance_sum: flights.got.balances,
            balance_max: flights.got.largest,
            right: flights.wrong().is_empty(),
        }
    }
}
