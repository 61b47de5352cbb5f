//! One HTML file that needs nothing beside it: the table's numbers, and three pictures a run.

use std::fs;
use std::path::Path;

use indicatif::{HumanBytes, HumanCount};

use super::plan::name;
use super::result::RunResult;
use crate::outcome::{Ended, Failure};

mod plot;

const STYLE: &str = include_str!("report/style.css");

/// Writes the report, over an older one.
pub(super) fn write(path: &Path, results: &[RunResult]) -> Ended {
    let failed = |error: std::io::Error| {
        Failure::other(format!("write the report {}", path.display()), error)
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(path, page(results)?).map_err(failed)
}

fn page(results: &[RunResult]) -> Ended<String> {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Keylane: load</title>\
         <style>{STYLE}</style><h1>Keylane: load</h1>"
    );
    for result in results {
        html.push_str(&section(result)?);
    }
    html.push_str("</html>\n");
    Ok(html)
}

fn section(result: &RunResult) -> Ended<String> {
    let mut html = format!("<h2>{}, {}</h2>", name(result.mode), escaped(&result.source));
    html.push_str(&numbers(result));
    html.push_str("<h3>Guarantees</h3><table>");
    for line in result.guarantees() {
        let held = if line.held { "held" } else { "<span class=\"no\">broken</span>" };
        let detail = escaped(&line.detail);
        html.push_str(&format!("<tr><th>{}<td>{held}<td>{detail}", line.what));
    }
    if let Some(flights) = &result.flights {
        let right = flights.wrong().is_empty();
        let held = if right { "right" } else { "<span class=\"no\">wrong</span>" };
        let sum = HumanCount(flights.got.balances.unsigned_abs());
        html.push_str(&format!("<tr><th>balances<td>{held}<td>sum {sum}, depends on the order"));
    }
    html.push_str("</table>");
    let broken = result.broken();
    if !broken.is_empty() {
        let items: String = broken.iter().map(|what| format!("<li>{}", escaped(what))).collect();
        html.push_str(&format!("<p class=\"no\">What is not as it should be:</p><ul>{items}</ul>"));
    }
    let plotted = |error| Failure::Other(format!("draw the report: {error}"));
    html.push_str(&plot::throughput(result).map_err(plotted)?);
    html.push_str(&plot::latencies(result).map_err(plotted)?);
    html.push_str(&plot::shards(result).map_err(plotted)?);
    Ok(html)
}

fn numbers(result: &RunResult) -> String {
    let unknown = || "unknown".to_owned();
    let rows = [
        ("messages", HumanCount(result.messages).to_string()),
        ("finished by earlier runs", HumanCount(result.finished_before).to_string()),
        ("delivered", HumanCount(result.delivered()).to_string()),
        ("keys", HumanCount(result.keys).to_string()),
        ("shards", result.shards.to_string()),
        ("work of a message", escaped(&result.work)),
        ("took", format!("{:.2?}", result.elapsed)),
        ("messages a second", format!("{:.0}", result.per_second())),
        (
            "bare threads with these keys",
            result.ceiling_for_these_keys().map_or_else(|| "-".to_owned(), |c| format!("{c:.0}")),
        ),
        ("fullest shard over the mean", format!("{:.2}", result.imbalance())),
        ("duplicates", HumanCount(result.verdict.duplicates).to_string()),
        ("in flight at most", HumanCount(result.metrics.in_flight_max).to_string()),
        ("CPU seconds", result.cpu_seconds.map_or_else(unknown, |cpu| format!("{cpu:.2}"))),
        (
            "peak memory",
            result.peak_bytes.map_or_else(unknown, |bytes| HumanBytes(bytes).to_string()),
        ),
        ("seed", result.seed.to_string()),
    ];
    let rows: String = rows
        .into_iter()
        .map(|(label, value)| format!("<tr><th>{label}<td class=\"n\">{value}"))
        .collect();
    let mut html =
        format!("<table>{rows}</table><table><tr><th>queue<th>delivered<th>committed<th>end");
    for queue in result.queues.iter().take(100) {
        let (delivered, committed, end) = (queue.delivered, queue.committed, queue.end);
        html.push_str(&format!(
            "<tr><td>{}<td class=\"n\">{delivered}<td class=\"n\">{committed}<td class=\"n\">{end}",
            escaped(&queue.name)
        ));
    }
    html.push_str("</table>");
    html
}

/// Names come from files.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_files_cannot_become_markup() {
        assert_eq!(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    }
}
