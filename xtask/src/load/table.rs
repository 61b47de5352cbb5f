//! What people look at, on standard output.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use hdrhistogram::Histogram;
use indicatif::{HumanBytes, HumanCount};

use super::plan::name;
use super::result::{Flights, RunResult, per_second};
use crate::outcome::{Ended, Failure};

/// Prints all runs, and where the report lies.
pub(super) fn print(results: &[RunResult], report: &Path) -> Ended {
    let mut text = String::new();
    results.iter().for_each(|result| text.push_str(&shown(result)));
    if let [first, others @ ..] = results {
        for other in others {
            let factor = first.per_second() / other.per_second().max(f64::MIN_POSITIVE);
            let (first, other) = (name(first.mode), name(other.mode));
            text.push_str(&format!("{first} was {factor:.1} times as fast as {other}\n\n"));
        }
    }
    text.push_str(&format!("report: {}\n", report.display()));
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Failure::other("write the result", error))
}

/// One run.
fn shown(result: &RunResult) -> String {
    let mut rows = Rows::default();
    let threads = format!("{} shards, work {}", result.shards, result.work);
    rows.title(&format!("{} · {} · {threads}", name(result.mode), result.source));
    speed(&mut rows, result);
    latencies(&mut rows, result);
    rows.row(
        "CPU",
        &result.cpu_seconds.map_or("unknown".to_owned(), |cpu| {
            let per_message = cpu * 1e6 / (result.delivered().max(1) as f64);
            format!("{cpu:.2} s, {per_message:.1} µs a message, checkers included")
        }),
    );
    rows.row(
        "peak memory",
        &result.peak_bytes.map_or("unknown".to_owned(), |bytes| HumanBytes(bytes).to_string()),
    );
    if result.tally.failures + result.tally.panics > 0 {
        let (failures, panics) = (result.tally.failures, result.tally.panics);
        rows.row(
            "planned faults",
            &format!("{} failures, {} panics", count(failures), count(panics)),
        );
    }
    rows.row("duplicates", &count(result.verdict.duplicates));
    queues(&mut rows, result);
    rows.gap();
    for line in result.guarantees() {
        let mark = if line.held { "✓" } else { "✗" };
        rows.row(&format!("{mark} {}", line.what), &line.detail);
    }
    if let Some(flights) = &result.flights {
        let mark = if flights.wrong().is_empty() { "✓" } else { "✗" };
        rows.row(&format!("{mark} balances"), &balances(flights));
    }
    rows.gap();
    rows.0
}

fn speed(rows: &mut Rows, result: &RunResult) {
    let messages = format!(
        "{} in {} queues, {} keys, {} without a key",
        count(result.messages),
        result.queues.len(),
        count(result.keys),
        count(result.keyless)
    );
    rows.row("messages", &messages);
    if result.finished_before > 0 {
        rows.row("before", &format!("{} finished by earlier runs", count(result.finished_before)));
    }
    if let Some(took) = result.written_in {
        let rate = per_second(result.messages, took);
        rows.row("written", &format!("{} a second, in {took:.2?}", whole(rate)));
    }
    let rate = result.per_second();
    let took = format!("{} in {:.2?}", count(result.delivered()), result.elapsed);
    rows.row("consumed", &format!("{} a second ({took})", whole(rate)));
    let imbalance = result.imbalance();
    match (result.ceiling, result.ceiling_for_these_keys()) {
        (Some(even), Some(ceiling)) => rows.row("ceiling", &format!(
            "{} a second for bare threads with these keys: {:.0} % reached ({} if keys were even; \
             fullest shard {imbalance:.2} × the mean)",
            whole(ceiling), rate * 100.0 / ceiling, whole(even)
        )),
        _ => rows.row("shards", &format!("fullest {imbalance:.2} × the mean")),
    }
}

fn latencies(rows: &mut Rows, result: &RunResult) {
    let tally = &result.tally;
    rows.row("pulled → call", &percentiles(&tally.hand_off));
    rows.row("pulled → done", &percentiles(&tally.in_engine));
    rows.row(
        "produced → done",
        &match &tally.end_to_end {
            Some(histogram) => percentiles(histogram),
            None => "not measured: all was written before (see --rate)".to_owned(),
        },
    );
}

fn queues(rows: &mut Rows, result: &RunResult) {
    const SHOWN: usize = 8;
    for queue in result.queues.iter().take(SHOWN) {
        let label = format!("queue {}", queue.name);
        let (delivered, committed, end) =
            (count(queue.delivered), count(queue.committed), count(queue.end));
        rows.row(
            &label,
            &format!("delivered {delivered:>9} · committed {committed:>9} of {end:>9}"),
        );
    }
    if let Some(more) = result.queues.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        let behind = result.queues.iter().filter(|queue| queue.committed != queue.end).count();
        rows.row("", &format!("and {more} more queues; {behind} of all are not at their end"));
    }
}

fn balances(flights: &Flights) -> String {
    let got = &flights.got;
    let sums = format!(
        "delays {}, balances {}, largest {}",
        signed(got.delays),
        signed(got.balances),
        signed(got.largest)
    );
    let whole =
        if flights.is_whole_file() { "known for the whole file" } else { "of these flights" };
    match flights.wrong().is_empty() {
        true => format!("{sums}: as {whole}, which depends on the order"),
        false => format!("{sums}: wrong"),
    }
}

fn percentiles(histogram: &Histogram<u64>) -> String {
    if histogram.is_empty() {
        return "nothing measured".to_owned();
    }
    let at = |quantile| duration(histogram.value_at_quantile(quantile));
    let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
    format!("p50 {p50} · p99 {p99} · p99.9 {p999} · max {}", duration(histogram.max()))
}

/// Three significant digits are what was measured.
fn duration(micros: u64) -> String {
    format!("{:.1?}", Duration::from_micros(micros))
}

fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

fn signed(number: i64) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}", count(number.unsigned_abs()))
}

fn whole(rate: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "`as` stops at the ends of u64")]
    let rate = rate.round() as u64;
    count(rate)
}

/// Labels on the left, values on the right.
#[derive(Default)]
struct Rows(String);

impl Rows {
    fn title(&mut self, title: &str) {
        self.0.push_str(&format!("{title}\n\n"));
    }

    fn row(&mut self, label: &str, value: &str) {
        self.0.push_str(&format!("  {label:<18} {value}\n"));
    }

    fn gap(&mut self) {
        self.0.push('\n');
    }
}
