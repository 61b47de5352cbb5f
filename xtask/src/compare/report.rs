//! One HTML file that needs nothing beside it, and the pictures by themselves.

use std::fs;
use std::path::Path;

use super::{Cell, MODES, Setting, find, plot, whole};
use crate::outcome::{Ended, Failure};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto}\
    table{border-collapse:collapse}\
    td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
    td:nth-child(2){text-align:left}\
    svg{max-width:100%;height:auto}\
    .no{color:#b00}";

/// Writes the report, over an older one.
pub(super) fn write(path: &Path, settings: &[Setting], threads: &[u32], cells: &[Cell]) -> Ended {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <title>Keylane: modes compared</title><style>{STYLE}</style>\
         <h1>Keylane: modes compared</h1><p>The same messages, from memory, in each mode; every \
         run checked for order, exclusion, loss and commits.</p><p>At full speed all messages are \
         there from the beginning, and the engine pulls as many as its budget allows: a latency \
         then says how many were pulled before. So the distributions are of runs of their own, at \
         a rate that every mode keeps up with.</p>"
    );
    for setting in settings {
        html.push_str(&format!("<h2>{}</h2>", setting.title()));
        html.push_str(&plot::throughput(*setting, threads, cells).map_err(drawn)?);
        if let Some(svg) = plot::distribution(*setting, threads, cells).map_err(drawn)? {
            html.push_str(&svg);
        }
        html.push_str(&plot::latency(*setting, threads, cells).map_err(drawn)?);
        html.push_str(&table(*setting, threads, cells));
    }
    html.push_str("</html>\n");
    save(path, &html)
}

/// Writes throughput and latency of each setting as pictures of their own.
pub(super) fn write_pictures(
    folder: &Path,
    settings: &[Setting],
    threads: &[u32],
    cells: &[Cell],
) -> Ended {
    for setting in settings {
        let work: String = setting.work.chars().filter(char::is_ascii_alphanumeric).collect();
        let skew = if setting.skew == 0.0 { "uniform" } else { "zipf" };
        let svg = plot::throughput(*setting, threads, cells).map_err(drawn)?;
        save(&folder.join(format!("compare-{work}-{skew}.svg")), &svg)?;
        if let Some(svg) = plot::distribution(*setting, threads, cells).map_err(drawn)? {
            save(&folder.join(format!("latency-{work}-{skew}.svg")), &svg)?;
        }
    }
    Ok(())
}

fn table(setting: Setting, threads: &[u32], cells: &[Cell]) -> String {
    let mut html =
        "<table><tr><th>threads<th>mode<th>messages/s<th>of bare threads<th>fullest shard \
         over mean<th>pull to listener p50 / p99<th>pull to done p50 / p99 / p99.9\
         <th>CPU µs a message<th>guarantees"
            .to_owned();
    for &threads in threads {
        for (_, mode) in MODES {
            let Some(Cell { figures, .. }) = find(cells, setting, threads, mode) else { continue };
            let in_engine = &figures.engine_latency_us;
            let share = figures.ceiling_per_s.map_or("-".to_owned(), |ceiling| {
                format!("{:.0} %", figures.messages_per_s / ceiling * 100.0)
            });
            let cpu = figures.cpu_us_a_message.map_or("-".to_owned(), |cpu| format!("{cpu:.1}"));
            let held =
                if figures.broken.is_empty() { "held" } else { "<span class=\"no\">broken</span>" };
            html.push_str(&format!(
                "<tr><td>{threads}<td>{mode}<td>{}<td>{share}<td>{:.2}<td>{}<td>{}<td>{cpu}\
                 <td>{held}",
                whole(figures.messages_per_s),
                figures.imbalance,
                shown(&[figures.latency_us.p50, figures.latency_us.p99]),
                shown(&[in_engine.p50, in_engine.p99, in_engine.p999]),
            ));
        }
    }
    html.push_str("</table>");
    html
}

/// Microseconds, as milliseconds.
fn shown(latencies: &[u64]) -> String {
    let ms = |us: &u64| format!("{:.2}", *us as f64 / 1_000.0);
    format!("{} ms", latencies.iter().map(ms).collect::<Vec<_>>().join(" / "))
}

fn drawn(error: Box<dyn std::error::Error>) -> Failure {
    Failure::other("draw the comparison", error)
}

fn save(path: &Path, text: &str) -> Ended {
    let failed = |error: std::io::Error| Failure::other(format!("write {}", path.display()), error);
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(path, text).map_err(failed)
}
