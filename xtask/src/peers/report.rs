//! What came of the runs: a line each while they go on, then a table of medians, or JSON.

use std::io::Write;

use indicatif::HumanCount;
use serde::Serialize;

use super::measured::Measured;
use super::{Printed, Setting};
use crate::flags::Broker;
use crate::outcome::{Ended, Failure};

/// What the names of our own contestants begin with.
pub(super) const OURS: &str = "Keylane";

/// One contestant in one round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Run {
    broker: &'static str,
    contestant: String,
    queues: u32,
    keys: u32,
    skew: f64,
    threads: u32,
    work_us: u128,
    messages: u64,
    round: u32,
    delivered: u64,
    elapsed_s: f64,
    messages_per_s: f64,
    /// While it consumed.
    cpu_s_per_million: f64,
    /// From outside, over the whole life of the process; unknown where there is no /proc.
    process_cpu_s: Option<f64>,
    rss_peak_bytes: Option<u64>,
    order_violations: u64,
    duplicates: u64,
    #[serde(skip)]
    title: String,
}

impl Run {
    pub(super) fn new(
        broker: Broker,
        setting: &Setting,
        contestant: String,
        round: u32,
        printed: &Printed,
        measured: &Measured,
    ) -> Self {
        let delivered = printed.delivered as f64;
        Self {
            broker: broker.name(),
            contestant,
            queues: setting.queues,
            keys: setting.keys,
            skew: setting.skew,
            threads: setting.threads,
            work_us: setting.work.as_micros(),
            messages: setting.messages,
            round,
            delivered: printed.delivered,
            elapsed_s: printed.elapsed_s,
            messages_per_s: delivered / printed.elapsed_s.max(1e-9),
            cpu_s_per_million: printed.cpu_s * 1e6 / delivered.max(1.0),
            process_cpu_s: measured.cpu_s,
            rss_peak_bytes: measured.peak_bytes,
            order_violations: printed.order_violations,
            duplicates: printed.duplicates,
            title: setting.title(),
        }
    }

    /// While the others still run.
    pub(super) fn line(&self) -> String {
        let Self { contestant, round, delivered, messages, .. } = self;
        let rate = whole(self.messages_per_s);
        format!("{contestant}, round {round}: {rate} a second, {delivered} of {messages}")
    }

    /// What is wrong with it, if it is ours.
    pub(super) fn broken_promise(&self) -> Option<String> {
        let Self { contestant, title, delivered, messages, .. } = self;
        let (disorder, twice) = (self.order_violations, self.duplicates);
        let is_well = delivered == messages && disorder == 0 && twice == 0;
        (contestant.starts_with(OURS) && !is_well).then(|| {
            format!(
                "{contestant}, {title}: {delivered} of {messages} delivered, {disorder} out of \
                 order, {twice} twice"
            )
        })
    }
}

/// Prints what came of it on standard output.
pub(super) fn print(runs: &[Run], json: bool) -> Ended {
    let failed = |error: &dyn std::fmt::Display| Failure::other("write the result", error);
    let mut out = std::io::stdout().lock();
    if json {
        for run in runs {
            serde_json::to_writer(&mut out, run).map_err(|error| failed(&error))?;
            writeln!(out).map_err(|error| failed(&error))?;
        }
    } else {
        out.write_all(table(runs).as_bytes()).map_err(|error| failed(&error))?;
    }
    out.flush().map_err(|error| failed(&error))
}

/// Medians by setting and contestant, in the order of the runs, as Markdown. What must not happen
/// is shown with its worst round.
fn table(runs: &[Run]) -> String {
    let mut text = "| setting | | messages/s | CPU s per million | peak MB | out of order | twice \
                    | lost |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for title in distinct(runs.iter().map(|run| &run.title)) {
        let of_title: Vec<&Run> = runs.iter().filter(|run| run.title == *title).collect();
        let contestants = distinct(of_title.iter().map(|run| &run.contestant));
        for (index, contestant) in contestants.into_iter().enumerate() {
            let its: Vec<&Run> =
                of_title.iter().filter(|run| run.contestant == *contestant).copied().collect();
            text.push_str(&row(if index == 0 { title } else { "" }, contestant, &its));
        }
    }
    text
}

fn row(title: &str, contestant: &str, runs: &[&Run]) -> String {
    let worst = |of: fn(&Run) -> u64| runs.iter().map(|run| of(run)).max().unwrap_or(0);
    let peaks: Option<Vec<f64>> =
        runs.iter().map(|run| run.rss_peak_bytes.map(|bytes| bytes as f64 / 1e6)).collect();
    let peak = peaks.map_or_else(|| "unknown".to_owned(), |peaks| format!("{:.0}", median(peaks)));
    format!(
        "| {title} | {contestant} | {} | {:.1} | {peak} | {} | {} | {} |\n",
        whole(median(runs.iter().map(|run| run.messages_per_s).collect())),
        median(runs.iter().map(|run| run.cpu_s_per_million).collect()),
        worst(|run| run.order_violations),
        worst(|run| run.duplicates),
        worst(|run| run.messages.saturating_sub(run.delivered)),
    )
}

/// Each once, in the order in which they come first.
fn distinct<'a>(all: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

/// The one in the middle; of two, the lower one.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len().saturating_sub(1) / 2;
    numbers.get(middle).copied().unwrap_or(0.0)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate, to be shown")]
fn whole(rate: f64) -> String {
    HumanCount(rate.round() as u64).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn run(contestant: &str, round: u32, elapsed_s: f64, duplicates: u64) -> Run {
        let setting = Setting {
            queues: 4,
            keys: 10,
            skew: 0.0,
            threads: 2,
            work: Duration::from_millis(1),
            messages: 3_000,
        };
        let delivered = 3_000 - duplicates;
        let printed = Printed { delivered, elapsed_s, order_violations: 0, duplicates, cpu_s: 0.3 };
        let peak_bytes = Some(u64::from(round) * 1_000_000);
        let measured = Measured { stdout: String::new(), cpu_s: Some(1.0), peak_bytes };
        Run::new(Broker::Rocketmq, &setting, contestant.to_owned(), round, &printed, &measured)
    }

    #[test]
    fn the_table_has_medians_and_the_worst_of_what_must_not_happen() {
        let runs = [
            run("Java", 1, 3.0, 0),
            run("Keylane key-sharded", 1, 1.0, 0),
            run("Java", 2, 2.0, 0),
            run("Java", 3, 1.0, 7),
        ];
        let expected = "\
| setting | | messages/s | CPU s per million | peak MB | out of order | twice | lost |
| --- | --- | --- | --- | --- | --- | --- | --- |
| 4 queues, 10 keys, 2 threads, work 1ms | Java | 1,500 | 100.0 | 2 | 0 | 7 | 7 |
|  | Keylane key-sharded | 3,000 | 100.0 | 1 | 0 | 0 | 0 |
";
        assert_eq!(table(&runs), expected);
        assert_eq!(runs[0].line(), "Java, round 1: 1,000 a second, 3000 of 3000");
    }

    #[test]
    fn only_our_own_promises_are_judged() {
        assert_eq!(run("Java", 1, 1.0, 7).broken_promise(), None);
        assert_eq!(run("Keylane key-sharded", 1, 1.0, 0).broken_promise(), None);
        assert_eq!(
            run("Keylane key-sharded", 1, 1.0, 7).broken_promise().unwrap(),
            "Keylane key-sharded, 4 queues, 10 keys, 2 threads, work 1ms: 2993 of 3000 delivered, 0 \
             out of order, 7 twice"
        );
    }
}
