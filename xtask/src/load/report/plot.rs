//! The pictures, as SVG text.

use std::error::Error;

use hdrhistogram::Histogram;
use plotters::prelude::*;

use crate::load::result::RunResult;

const SIZE: (u32, u32) = (900, 320);
type Drawn = Result<String, Box<dyn Error>>;

/// Messages per second, over time.
pub(super) fn throughput(result: &RunResult) -> Drawn {
    let points: Vec<(f64, f64)> = rates(result);
    let end = points.last().map_or(1.0, |last| last.0).max(1e-3);
    let most = points.iter().map(|point| point.1).fold(1.0, f64::max);
    let ceiling = result.ceiling_for_these_keys();
    let top = most.max(ceiling.unwrap_or(0.0)) * 1.1;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .caption("messages per second, over time", ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(0.0..end, 0.0..top)?;
        chart.configure_mesh().x_desc("seconds").y_desc("messages per second").draw()?;
        chart
            .draw_series(LineSeries::new(points, BLUE.stroke_width(2)))?
            .label("consumed")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLUE));
        if let Some(ceiling) = ceiling {
            chart
                .draw_series(LineSeries::new([(0.0, ceiling), (end, ceiling)], RED))?
                .label("bare threads with these keys")
                .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], RED));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
        root.present()?;
    }
    Ok(svg)
}

/// The rate between samples, each over about a fortieth of the run.
fn rates(result: &RunResult) -> Vec<(f64, f64)> {
    let samples = &result.samples;
    let step = (samples.len() / 40).max(1);
    let pairs = samples.iter().zip(samples.iter().skip(step)).step_by(step);
    pairs
        .filter(|(from, to)| to.at > from.at)
        .map(|(from, to)| {
            let seconds = (to.at - from.at).as_secs_f64();
            (to.at.as_secs_f64(), to.done.saturating_sub(from.done) as f64 / seconds)
        })
        .collect()
}

/// How long messages took: the share of them that took at most so long.
pub(super) fn latencies(result: &RunResult) -> Drawn {
    let tally = &result.tally;
    let mut lines = vec![("pulled → call", BLUE, &tally.hand_off)];
    lines.push(("pulled → done", GREEN, &tally.in_engine));
    lines.extend(tally.end_to_end.as_ref().map(|all| ("produced → done", RED, all)));
    let longest = lines.iter().map(|(_, _, histogram)| histogram.max()).max().unwrap_or(1);
    let longest = (longest as f64 / 1_000.0).max(0.01);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .caption("share of messages that took at most so long", ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d((0.001..longest).log_scale(), 0.0..100.0)?;
        chart.configure_mesh().x_desc("milliseconds").y_desc("percent of messages").draw()?;
        for (label, colour, histogram) in lines {
            chart
                .draw_series(LineSeries::new(cumulative(histogram), colour.stroke_width(2)))?
                .label(label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
        root.present()?;
    }
    Ok(svg)
}

/// Milliseconds, and the percentage at or below.
fn cumulative(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    let all = histogram.len().max(1) as f64;
    let mut below = 0.0;
    let recorded = histogram.iter_recorded().map(|value| {
        below += value.count_since_last_iteration() as f64;
        (value.value_iterated_to() as f64 / 1_000.0, below * 100.0 / all)
    });
    recorded.collect()
}

/// How many messages each shard had.
pub(super) fn shards(result: &RunResult) -> Drawn {
    let per_shard = &result.tally.per_shard;
    let most = per_shard.iter().max().copied().unwrap_or(0).max(1) as f64 * 1.1;
    let mean = per_shard.iter().sum::<u64>() as f64 / per_shard.len().max(1) as f64;
    let count = per_shard.len().max(1) as f64;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .caption("messages per shard", ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(0.0..count, 0.0..most)?;
        chart.configure_mesh().disable_x_mesh().x_desc("shard").y_desc("messages").draw()?;
        chart.draw_series(per_shard.iter().enumerate().map(|(index, messages)| {
            let left = index as f64;
            Rectangle::new([(left + 0.1, 0.0), (left + 0.9, *messages as f64)], BLUE.filled())
        }))?;
        chart
            .draw_series(LineSeries::new([(0.0, mean), (count, mean)], RED))?
            .label("mean")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], RED));
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
        root.present()?;
    }
    Ok(svg)
}
