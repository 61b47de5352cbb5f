//! The pictures, as SVG text.

use std::error::Error;

use hdrhistogram::Histogram;
use plotters::prelude::*;

use super::{Cell, MODES, Setting, find, find_paced, whole};

const SIZE: (u32, u32) = (900, 380);
/// One for each mode; told apart also by those who see no red or green.
const COLOURS: [RGBColor; 3] =
    [RGBColor(200, 60, 30), RGBColor(30, 90, 200), RGBColor(30, 150, 110)];
/// The slowest in ten thousand: further to the right there are too few messages.
const MOST_NINES: f64 = 4.0;
type Drawn = Result<String, Box<dyn Error>>;
type Line = (String, RGBColor, Vec<(f64, f64)>);

/// Messages per second against threads, with what bare threads reach.
pub(super) fn throughput(setting: Setting, threads: &[u32], cells: &[Cell]) -> Drawn {
    let value = |cell: &Cell| Some(cell.figures.messages_per_s);
    let mut lines = lines(setting, threads, cells, "", value);
    let ceiling = points(setting, threads, cells, "concurrent", |cell| cell.figures.ceiling_per_s);
    lines.push(("bare threads, keys alike".to_owned(), BLACK, ceiling));
    chart(
        &format!("messages per second; {}", setting.title()),
        "messages per second",
        threads,
        &lines,
    )
}

/// From pull to listener, the middle and the slowest hundredth.
pub(super) fn latency(setting: Setting, threads: &[u32], cells: &[Cell]) -> Drawn {
    let us = |us: u64| Some((us as f64 / 1_000.0).max(0.001));
    let mut all = lines(setting, threads, cells, " p50", |cell| us(cell.figures.latency_us.p50));
    all.extend(lines(setting, threads, cells, " p99", |cell| us(cell.figures.latency_us.p99)));
    chart(&format!("from pull to listener; {}", setting.title()), "milliseconds", threads, &all)
}

/// From pull to done, at a rate: how long the quick half took, the slowest hundredth, and what lies
/// between and beyond. One panel for each number of threads; nothing where there was no such run.
pub(super) fn distribution(
    setting: Setting,
    threads: &[u32],
    cells: &[Cell],
) -> Result<Option<String>, Box<dyn Error>> {
    let panel = |&threads: &u32| {
        let line = |((_, mode), colour)| {
            let cell = find_paced(cells, setting, threads, mode)?;
            Some((mode, colour, by_nines(&cell.figures.engine_latency)))
        };
        let lines: Vec<_> = MODES.into_iter().zip(COLOURS).filter_map(line).collect();
        (threads, lines)
    };
    let panels: Vec<_> = threads.iter().map(panel).filter(|(_, lines)| !lines.is_empty()).collect();
    let of_setting = |cell: &&Cell| (cell.work, cell.skew) == (setting.work, setting.skew);
    let rate = cells.iter().filter(of_setting).find_map(|cell| cell.rate);
    let (false, Some(rate)) = (panels.is_empty(), rate) else { return Ok(None) };
    let title = format!(
        "from pull to done, by percentile, at {} messages per second; {}",
        whole(rate as f64),
        setting.title()
    );
    draw_panels(&title, panels).map(Some)
}

type Panel = (u32, Vec<(&'static str, RGBColor, Vec<(f64, f64)>)>);

fn draw_panels(title: &str, panels: Vec<Panel>) -> Drawn {
    let values = || panels.iter().flat_map(|(_, lines)| lines).flat_map(|line| &line.2);
    let most = values().map(|point| point.1).fold(0.01, f64::max);
    let least = values().map(|point| point.1).fold(most, f64::min);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let below = root.titled(title, ("sans-serif", 17))?;
        for (area, (threads, lines)) in
            below.split_evenly((1, panels.len().max(1))).iter().zip(panels)
        {
            let mut chart = ChartBuilder::on(area)
                .caption(format!("{threads} threads"), ("sans-serif", 15))
                .margin(8)
                .margin_right(24)
                .x_label_area_size(40)
                .y_label_area_size(65)
                .build_cartesian_2d(0.0..MOST_NINES, (least * 0.7..most * 2.0).log_scale())?;
            chart
                .configure_mesh()
                .x_labels(5)
                .y_labels(6)
                .x_max_light_lines(0)
                .y_max_light_lines(1)
                .x_label_formatter(&|nines| percent(*nines))
                .y_label_formatter(&|ms| milliseconds(*ms))
                .x_desc("percentile of the messages")
                .y_desc("at most so long")
                .draw()?;
            for (mode, colour, points) in lines {
                let style = colour.stroke_width(2);
                chart
                    .draw_series(LineSeries::new(points, style))?
                    .label(mode)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK.mix(0.4))
                .draw()?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// Milliseconds against nines: 1 is the 90th percentile, 2 the 99th. As far as there are messages
/// that say something.
fn by_nines(latency: &Histogram<u64>) -> Vec<(f64, f64)> {
    let known = (latency.len().max(1) as f64).log10().min(MOST_NINES);
    let steps = (0..).map(|step| f64::from(step) / 20.0);
    let at = |nines: f64| latency.value_at_quantile(1.0 - 10_f64.powf(-nines)) as f64 / 1_000.0;
    steps.take_while(|nines| *nines <= known + 1e-9).map(|nines| (nines, at(nines))).collect()
}

/// How an axis of nines is written.
fn percent(nines: f64) -> String {
    let percent = 100.0 - 100.0 * 10_f64.powf(-nines.round());
    if nines < 0.5 { "quickest".to_owned() } else { format!("{percent} %") }
}

fn plain(value: f64) -> String {
    if value < 1.0 { format!("{value}") } else { whole(value) }
}

fn milliseconds(ms: f64) -> String {
    match ms {
        _ if ms >= 1_000.0 => format!("{} s", ms / 1_000.0),
        _ if ms >= 1.0 => format!("{ms} ms"),
        _ => format!("{:.0} µs", ms * 1_000.0),
    }
}

fn lines(
    setting: Setting,
    threads: &[u32],
    cells: &[Cell],
    what: &str,
    value: impl Fn(&Cell) -> Option<f64> + Copy,
) -> Vec<Line> {
    let line = |((_, mode), colour): ((_, &'static str), RGBColor)| {
        (format!("{mode}{what}"), colour, points(setting, threads, cells, mode, value))
    };
    MODES.into_iter().zip(COLOURS).map(line).collect()
}

fn points(
    setting: Setting,
    threads: &[u32],
    cells: &[Cell],
    mode: &str,
    value: impl Fn(&Cell) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let point = |&threads: &u32| {
        let cell = find(cells, setting, threads, mode)?;
        Some((f64::from(threads).log2(), value(cell)?))
    };
    threads.iter().filter_map(point).collect()
}

fn chart(title: &str, unit: &str, threads: &[u32], lines: &[Line]) -> Drawn {
    let most_threads = threads.iter().max().copied().map_or(2.0, f64::from).max(2.0);
    let doublings = most_threads.log2();
    let values = || lines.iter().flat_map(|(_, _, points)| points).map(|point| point.1);
    let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(1e-3, f64::max));
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 17))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(90)
            .build_cartesian_2d(
                0.0..doublings * 1.02,
                (least.min(most) * 0.7..most * 1.5).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_labels(9)
            .x_max_light_lines(0)
            .y_max_light_lines(1)
            .x_label_formatter(&|doublings| format!("{:.0}", doublings.exp2()))
            .y_label_formatter(&|value| plain(*value))
            .x_desc("threads")
            .y_desc(unit)
            .draw()?;
        for (index, (label, colour, points)) in lines.iter().enumerate() {
            // The second half of a figure's lines, where there are two of each, is thinner.
            let width = if index >= MODES.len() { 1 } else { 2 };
            let style = colour.stroke_width(width);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style).point_size(2))?
                .label(label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        root.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_says_how_long_all_but_the_slowest_took() {
        let mut latency = Histogram::new(2).unwrap();
        (1..=100).for_each(|us| latency.record(us).unwrap());
        let points = by_nines(&latency);
        let at = |nines: f64| points.iter().find(|point| (point.0 - nines).abs() < 1e-6);
        assert_eq!(at(0.0).map(|point| point.1), Some(0.001));
        assert_eq!(at(1.0).map(|point| point.1), Some(0.09));
        assert_eq!(at(2.0).map(|point| point.1), Some(0.099));
        assert_eq!(points.len(), 41, "100 messages say nothing of the slowest in 1,000");
    }

    #[test]
    fn axes_are_written_in_units_that_people_read() {
        let written: Vec<_> = [0.0, 1.0, 2.0, 3.0, 4.0].into_iter().map(percent).collect();
        assert_eq!(written, ["quickest", "90 %", "99 %", "99.9 %", "99.99 %"]);
        let written: Vec<_> = [0.01, 1.0, 100.0, 10_000.0].into_iter().map(milliseconds).collect();
        assert_eq!(written, ["10 µs", "1 ms", "100 ms", "10 s"]);
    }
}
