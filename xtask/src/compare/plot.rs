//! The pictures, as SVG text.

use std::error::Error;

use plotters::prelude::*;

use super::{Cell, MODES, Setting, find};

const SIZE: (u32, u32) = (900, 380);
const COLOURS: [RGBColor; 3] = [RED, BLUE, GREEN];
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
    let mut all = lines(setting, threads, cells, " p50", |cell| us(cell.figures.hand_off_p50_us));
    all.extend(lines(setting, threads, cells, " p99", |cell| us(cell.figures.hand_off_p99_us)));
    chart(&format!("from pull to listener; {}", setting.title()), "milliseconds", threads, &all)
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
        Some((f64::from(threads), value(cell)?))
    };
    threads.iter().filter_map(point).collect()
}

fn chart(title: &str, unit: &str, threads: &[u32], lines: &[Line]) -> Drawn {
    let most_threads = threads.iter().max().copied().map_or(2.0, f64::from).max(2.0);
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
                (1.0..most_threads * 1.05).log_scale(),
                (least.min(most) * 0.7..most * 1.5).log_scale(),
            )?;
        chart.configure_mesh().x_desc("threads").y_desc(unit).draw()?;
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
