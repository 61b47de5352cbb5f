//! `cargo xtask compare`: the same messages in every mode, over threads, work and skew. Each run
//! has the load generator's checkers on; what comes out is a table, a report and pictures.
//!
//! Two kinds of runs: as fast as it goes, which says how many messages a second; and at a rate that
//! every mode can keep up with, which says how long a message takes. At full speed a latency only
//! says how many messages were pulled before this one.

use std::path::PathBuf;

use clap::Parser;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::flags::{CompareFlags, LoadFlags, Mode};
use crate::load::{self, Figures};
use crate::outcome::{Ended, Failure, say};

mod plot;
mod report;

const MODES: [(Mode, &str); 3] = [
    (Mode::QueueLocked, "queue-locked"),
    (Mode::KeySharded, "key-sharded"),
    (Mode::Concurrent, "concurrent"),
];
const QUEUES: u32 = 4;

/// What is varied beside mode and threads.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Setting {
    work: &'static str,
    /// The exponent of the keys' Zipf distribution.
    skew: f64,
}

/// One run that is to be made.
#[derive(Debug, Clone, Copy)]
struct Run {
    setting: Setting,
    threads: u32,
    mode: &'static str,
    /// Messages per second; `None`: as fast as it goes.
    rate: Option<u64>,
}

/// One run that was made.
#[derive(Debug, Serialize)]
struct Cell {
    mode: &'static str,
    threads: u32,
    work: &'static str,
    skew: f64,
    queues: u32,
    /// The messages per second that were offered; `None`: as many as it takes.
    rate: Option<u64>,
    #[serde(flatten)]
    figures: Figures,
}

impl Setting {
    fn title(self) -> String {
        let keys = if self.skew == 0.0 {
            "keys alike".into()
        } else {
            format!("Zipf({}) keys", self.skew)
        };
        format!("work {}, {keys}, {QUEUES} queues", self.work)
    }
}

/// The task.
pub(crate) fn run(flags: &CompareFlags) -> Ended {
    let (settings, threads) = plan(flags.quick);
    let runs = runs(flags.quick, &settings, &threads);
    let bar = ProgressBar::new(runs.len() as u64);
    let style =
        ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} [{elapsed} so far, {eta} left]");
    bar.set_style(style.map_err(|error| Failure::other("draw the progress", error))?);
    let mut cells = Vec::new();
    for run in runs {
        let Run { setting, threads, mode, .. } = run;
        bar.set_message(format!("{mode}, {threads} threads, {}", setting.title()));
        if bar.is_hidden() && mode == MODES[0].1 {
            // No terminal: a line for all modes together.
            let (made, all) = (cells.len(), bar.length().unwrap_or(0));
            say(&format!("{made} of {all} runs; now {threads} threads, {}", setting.title()));
        }
        cells.push(measure(flags, run)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let report = flags.report.clone().unwrap_or_else(|| default_folder().join("compare.html"));
    report::write(&report, &settings, &threads, &cells)?;
    if let Some(folder) = &flags.svg {
        report::write_pictures(folder, &settings, &threads, &cells)?;
    }
    if flags.json {
        for cell in &cells {
            let line = serde_json::to_string(cell);
            out(&line.map_err(|error| Failure::other("write the JSON", error))?);
        }
    } else {
        for setting in &settings {
            print_table(*setting, &threads, &cells);
        }
        out(&format!("report: {}", report.display()));
    }
    let broken: Vec<_> = cells.iter().filter(|cell| !cell.figures.broken.is_empty()).collect();
    match broken.first() {
        None => Ok(()),
        Some(cell) => Err(Failure::Broken(format!(
            "{} of {} runs were not as they should be; the first: {}, {} threads, work {}: {}",
            broken.len(),
            cells.len(),
            cell.mode,
            cell.threads,
            cell.work,
            cell.figures.broken.join("; ")
        ))),
    }
}

fn plan(quick: bool) -> (Vec<Setting>, Vec<u32>) {
    let setting = |work, skew| Setting { work, skew };
    if quick {
        let settings = vec![setting("none", 0.0), setting("sleep:1ms", 0.0)];
        return (settings, vec![1, 4, 16, 64]);
    }
    let works = ["none", "sleep:1ms", "spin:10us"];
    let settings =
        works.into_iter().flat_map(|work| [setting(work, 0.0), setting(work, 1.0)]).collect();
    (settings, vec![1, 2, 4, 8, 16, 32, 64, 128])
}

/// Every run, in the order in which they are made: the modes of one setting side by side.
fn runs(quick: bool, settings: &[Setting], threads: &[u32]) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut in_each_mode = |setting, threads, rate| {
        runs.extend(MODES.map(|(_, mode)| Run { setting, threads, mode, rate }));
    };
    for &setting in settings {
        threads.iter().for_each(|&threads| in_each_mode(setting, threads, None));
        let panels = match (quick, setting.work) {
            (false, _) => &[4, 16, 64][..],
            (true, "none") => &[],
            (true, _) => &[4, 64],
        };
        let rate = Some(rate(setting.work));
        panels.iter().for_each(|&threads| in_each_mode(setting, threads, rate));
    }
    runs
}

/// What all modes keep up with, four queues at a time: about half of what they could.
fn rate(work: &str) -> u64 {
    match work {
        "none" => 50_000,
        "spin:10us" => 5_000,
        _ => 1_600,
    }
}

fn default_folder() -> PathBuf {
    crate::ci::target_folder().join("keylane")
}

/// Runs the load generator once, over messages in memory.
fn measure(flags: &CompareFlags, run: Run) -> Ended<Cell> {
    let Run { setting, threads, mode, rate } = run;
    let messages = messages(flags.quick, run).to_string();
    let (threads_text, queues, skew) =
        (threads.to_string(), QUEUES.to_string(), setting.skew.to_string());
    let (seed, rate_text) = (flags.seed.to_string(), rate.map(|rate| rate.to_string()));
    let options = [
        "load",
        "--source",
        "memory",
        "--mode",
        mode,
        "--queues",
        &queues,
        "--keys",
        "10000",
        "--skew",
        &skew,
        "--messages",
        &messages,
        "--shards",
        &threads_text,
        "--work",
        setting.work,
        "--seed",
        &seed,
    ];
    let paced = rate_text.iter().flat_map(|rate| ["--rate", rate]);
    let options = Options::try_parse_from(options.into_iter().chain(paced))
        .map_err(|error| Failure::other("read the load generator's options", error))?;
    let figures = load::figures(&options.load)?;
    let Setting { work, skew } = setting;
    Ok(Cell { mode, threads, work, skew, queues: QUEUES, rate, figures })
}

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    load: LoadFlags,
}

/// So many that the run takes about a second (a quarter of one when it is quick): enough to reach a
/// steady state. At a rate it takes longer, for the slowest in a thousand.
fn messages(quick: bool, run: Run) -> u64 {
    let Run { setting, threads, mode, rate } = run;
    if let Some(rate) = rate {
        return rate * if quick { 1 } else { 2 };
    }
    let parallel = if mode == "queue-locked" { threads.min(QUEUES) } else { threads };
    let a_second = match setting.work {
        "none" => 400_000,
        "spin:10us" => 30_000,
        _ => u64::from(parallel) * 800,
    };
    (a_second / if quick { 4 } else { 1 }).max(400)
}

fn print_table(setting: Setting, threads: &[u32], cells: &[Cell]) {
    out(&format!("\n{}", setting.title()));
    out(&format!(
        "  {:>7}  {:>14} {:>14} {:>14}  {:>16}  {:>30}",
        "threads",
        "queue-locked/s",
        "key-sharded/s",
        "concurrent/s",
        "sharded/locked",
        "key-sharded, of bare threads"
    ));
    for &threads in threads {
        let figures = |mode| find(cells, setting, threads, mode).map(|cell| &cell.figures);
        let rate = |mode| figures(mode).map_or(0.0, |figures| figures.messages_per_s);
        let (locked, sharded, free) =
            (rate("queue-locked"), rate("key-sharded"), rate("concurrent"));
        let of_ceiling = figures("key-sharded")
            .and_then(|figures| Some(figures.messages_per_s / figures.ceiling_per_s?))
            .map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
        out(&format!(
            "  {threads:>7}  {:>14} {:>14} {:>14}  {:>15.1}x  {of_ceiling:>30}",
            whole(locked),
            whole(sharded),
            whole(free),
            sharded / locked.max(1.0)
        ));
    }
}

/// The run at full speed.
fn find<'a>(cells: &'a [Cell], setting: Setting, threads: u32, mode: &str) -> Option<&'a Cell> {
    cells.iter().find(|cell| cell.rate.is_none() && cell.is_of(setting, threads, mode))
}

/// The run at a rate.
fn find_paced<'a>(
    cells: &'a [Cell],
    setting: Setting,
    threads: u32,
    mode: &str,
) -> Option<&'a Cell> {
    cells.iter().find(|cell| cell.rate.is_some() && cell.is_of(setting, threads, mode))
}

impl Cell {
    fn is_of(&self, setting: Setting, threads: u32, mode: &str) -> bool {
        (self.work, self.skew, self.threads, self.mode)
            == (setting.work, setting.skew, threads, mode)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate, to be shown")]
fn whole(rate: f64) -> String {
    HumanCount(rate.round() as u64).to_string()
}

#[expect(clippy::print_stdout, reason = "the result of the task")]
fn out(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_messages_for_each_thread() {
        for quick in [false, true] {
            let (settings, threads) = plan(quick);
            for run in runs(quick, &settings, &threads) {
                let messages = messages(quick, run);
                assert!((400..=400_000).contains(&messages), "{run:?}");
            }
        }
    }

    #[test]
    fn every_setting_runs_in_every_mode_with_every_number_of_threads() {
        let (settings, threads) = plan(false);
        assert_eq!((settings.len(), &threads[..]), (6, &[1, 2, 4, 8, 16, 32, 64, 128][..]));
        let runs = runs(false, &settings, &threads);
        let at_full_speed = runs.iter().filter(|run| run.rate.is_none()).count();
        assert_eq!((at_full_speed, runs.len() - at_full_speed), (6 * 8 * 3, 6 * 3 * 3));
    }

    #[test]
    fn the_names_of_modes_are_those_of_the_load_generator() {
        use clap::ValueEnum;
        for (mode, name) in MODES {
            assert_eq!(
                mode.to_possible_value().map(|value| value.get_name().to_owned()),
                Some(name.to_owned())
            );
        }
    }
}
