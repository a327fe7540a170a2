//! Charts as inline SVG. Drawn at a phone's width (360) so that labels stay readable there; the page
//! scales them up on wide screens. Grey axes and coloured lines read on light and dark; the page
//! sets the colour of text.

use maud::{Markup, PreEscaped};
use plotters::prelude::*;

use crate::predict::answer::{AllReduceTime, Point};

const SIZE: (u32, u32) = (360, 260);
/// Size of labels; the SVG backend writes it over 1.24, which is 12 px at a phone's width.
const LABEL_PX: i32 = 15;
const GREY: RGBColor = RGBColor(140, 140, 140);
const BLUE_LINE: RGBColor = RGBColor(72, 120, 207);
/// One for each all-reduce that a chart can hold (nine), so that no two lines are alike.
const SERIES: [RGBColor; 9] = [
    RGBColor(72, 120, 207),
    RGBColor(209, 121, 58),
    RGBColor(106, 168, 79),
    RGBColor(204, 75, 75),
    RGBColor(138, 99, 201),
    RGBColor(95, 179, 179),
    RGBColor(154, 154, 154),
    RGBColor(201, 162, 39),
    RGBColor(184, 92, 148),
];

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn svg(draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Drawn) -> Markup {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        if let Err(error) = draw(&area).and_then(|()| Ok(area.present()?)) {
            return PreEscaped(format!("<p>chart not drawn: {error}</p>"));
        }
    }
    PreEscaped(text)
}

/// Speedup by users with its band; users on a logarithmic axis.
pub(super) fn speedup(points: &[Point]) -> Markup {
    let usable: Vec<&Point> = points
        .iter()
        .filter(|p| {
            p.speedup.is_finite() && p.speedup_low.is_finite() && p.speedup_high.is_finite()
        })
        .collect();
    let (Some(first), Some(last)) = (usable.first(), usable.last()) else {
        return PreEscaped("<p>no point to draw</p>".to_string());
    };
    let high = usable.iter().fold(1.2_f64, |m, p| m.max(p.speedup_high)) * 1.05;
    let low = usable.iter().fold(0.8_f64, |m, p| m.min(p.speedup_low)) * 0.95;
    // Users double from point to point: powers of two are the labels people expect.
    let log = |users: u32| f64::from(users.max(1)).log2();
    let left = log(first.concurrency) - 0.15;
    let right = log(last.concurrency).max(left + 0.6) + 0.15;
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(42)
            .y_label_area_size(50)
            .build_cartesian_2d(left..right, low..high)?;
        chart
            .configure_mesh()
            .axis_style(GREY)
            .bold_line_style(GREY.mix(0.25))
            .light_line_style(GREY.mix(0.0))
            .label_style(("sans-serif", LABEL_PX))
            .x_desc("users")
            .y_desc("speedup")
            .x_labels(8)
            .y_labels(7)
            .x_label_formatter(&|v| power_of_two(*v, |users| format!("{users:.0}")))
            .y_label_formatter(&|v| format!("{v:.1}x"))
            .draw()?;
        let upper = usable.iter().map(|p| (log(p.concurrency), p.speedup_high));
        let lower = usable
            .iter()
            .rev()
            .map(|p| (log(p.concurrency), p.speedup_low));
        let outline: Vec<(f64, f64)> = upper.chain(lower).collect();
        chart.draw_series(std::iter::once(Polygon::new(outline, BLUE_LINE.mix(0.2))))?;
        chart.draw_series(LineSeries::new([(left, 1.0), (right, 1.0)], RED.mix(0.7)))?;
        let line = usable.iter().map(|p| (log(p.concurrency), p.speedup));
        chart.draw_series(LineSeries::new(line.clone(), BLUE_LINE.stroke_width(2)))?;
        chart.draw_series(line.map(|at| Circle::new(at, 3, BLUE_LINE.filled())))?;
        Ok(())
    })
}

/// The lines of [`allreduce()`], each with its colour as CSS writes it, for a legend beside the chart:
/// inside it, it would lie over the lines.
pub(super) fn allreduce_legend(times: &[AllReduceTime]) -> Vec<(&str, String)> {
    families(times)
        .into_iter()
        .enumerate()
        .map(|(index, name)| {
            let RGBColor(r, g, b) = SERIES[index % SERIES.len()];
            (name, format!("rgb({r},{g},{b})"))
        })
        .collect()
}

fn families(times: &[AllReduceTime]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for time in times {
        let family = family(&time.algorithm);
        if !names.contains(&family) {
            names.push(family);
        }
    }
    names
}

/// Time by bytes, one line an algorithm, both axes logarithmic.
pub(super) fn allreduce(times: &[AllReduceTime]) -> Markup {
    let names = families(times);
    let drawable = |t: &&AllReduceTime| t.time_us.is_finite() && t.time_us > 0.0 && t.bytes > 0;
    let bounds = times.iter().filter(drawable).fold(
        (f64::MAX, 0.0_f64, f64::MAX, 0.0_f64),
        |(x0, x1, y0, y1), t| {
            let x = t.bytes as f64;
            (x0.min(x), x1.max(x), y0.min(t.time_us), y1.max(t.time_us))
        },
    );
    if bounds.1 <= 0.0 {
        return PreEscaped("<p>no time to draw</p>".to_string());
    }
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(42)
            .y_label_area_size(56)
            .build_cartesian_2d(
                bounds.0.log2() - 0.4..bounds.1.log2() + 0.4,
                (bounds.2 * 0.7..bounds.3 * 1.5).log_scale(),
            )?;
        chart
            .configure_mesh()
            .axis_style(GREY)
            .bold_line_style(GREY.mix(0.25))
            .light_line_style(GREY.mix(0.0))
            .label_style(("sans-serif", LABEL_PX))
            .x_desc("bytes")
            .y_desc("µs")
            .x_labels(8)
            .x_label_formatter(&|v| power_of_two(*v, short_bytes))
            .y_label_formatter(&|v| round_step(*v, bounds.3 / bounds.2))
            .draw()?;
        for (index, name) in names.iter().enumerate() {
            let colour = SERIES[index % SERIES.len()];
            let mut line: Vec<(f64, f64)> = times
                .iter()
                .filter(drawable)
                .filter(|t| family(&t.algorithm) == *name)
                .map(|t| ((t.bytes as f64).log2(), t.time_us))
                .collect();
            line.sort_by(|a, b| a.0.total_cmp(&b.0));
            chart.draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?;
            chart.draw_series(
                line.into_iter()
                    .map(|at| Circle::new(at, 3, colour.filled())),
            )?;
        }
        Ok(())
    })
}

/// `nccl-ring-ll` and `nccl-tree-simple` are one line: NCCL picks among them by size; so are the
/// host-staged ones.
fn family(algorithm: &str) -> &str {
    if pcie_sim::is_nccl_plan(algorithm) {
        "nccl"
    } else if algorithm.starts_with("host-staged") {
        "host-staged"
    } else {
        algorithm
    }
}

/// A label of a logarithmic axis: 1, 2 and 5 of a decade, over more than two decades only 1.
fn round_step(value: f64, span: f64) -> String {
    let leading = value / 10_f64.powf(value.log10().floor());
    let near = |digit: f64| (leading - digit).abs() < 1e-3 * digit;
    if near(1.0) || near(10.0) || (span < 100.0 && (near(2.0) || near(5.0))) {
        format!("{value:.0}")
    } else {
        String::new()
    }
}

/// A label for a power of two; nothing between them.
fn power_of_two(exponent: f64, label: impl Fn(f64) -> String) -> String {
    if (exponent - exponent.round()).abs() < 1e-6 {
        label(exponent.round().exp2())
    } else {
        String::new()
    }
}

fn short_bytes(value: f64) -> String {
    if value >= 1048576.0 {
        format!("{:.0}M", value / 1048576.0)
    } else if value >= 1024.0 {
        format!("{:.0}k", value / 1024.0)
    } else {
        format!("{value:.0}")
    }
}
