//! Draws the predicted finish over size as SVG, both logarithmic, and marks the sizes at which the
//! best device changes.

use std::fmt::Write;

use super::Curve;
use crate::op_kind::OpKind;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 110.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 64.0;
/// The most marks on the axis of sizes, which may span many powers of ten.
const MARKS_MAX: usize = 8;
const COLOURS: [&str; 6] = ["#3b6fb5", "#c2571a", "#2f8f5b", "#8a4fa3", "#b5a33b", "#4a5568"];
const STYLE: &str = "text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#1f2430}.title{font-weight:bold;font-size:15px}\
    .faint{fill:#4a5568}.grid{stroke:#d5dae3;stroke-width:1}.cross{stroke:#4a5568;stroke-dasharray:4 4}.curve{fill:none;stroke-width:2.5}\
    .ground{fill:#ffffff}@media(prefers-color-scheme:dark){text{fill:#e6e9ef}.faint{fill:#a9b2c3}.grid{stroke:#2c313b}.ground{fill:#16181d}}";

/// A logarithmic scale: maps a value between `low` and `high` to 0 to 1.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn over(values: impl Iterator<Item = f64>) -> Scale {
        let (low, high) =
            values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| (low.min(value), high.max(value)));
        if low < high { Scale { low, high } } else { Scale { low: high / 2.0, high: high * 2.0 } }
    }

    fn place(&self, value: f64) -> f64 {
        (value / self.low).ln() / (self.high / self.low).ln()
    }
}

/// Draws the chart.
pub fn svg(op: OpKind, curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|curve| curve.points.iter());
    let sizes = Scale::over(points().map(|point| point.0));
    let times = Scale::over(points().map(|point| point.1.max(1e-9)));
    let x = |size: f64| LEFT + sizes.place(size) * (WIDTH - LEFT - RIGHT);
    let y = |time: f64| HEIGHT - BOTTOM - times.place(time.max(1e-9)) * (HEIGHT - TOP - BOTTOM);
    let mut body = String::new();
    let mut put = |line: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(body, "{line}");
    };
    let first = times.low.log10().floor() as i32;
    for power in first..=times.high.log10().ceil() as i32 {
        let time = 10_f64.powi(power);
        if time >= times.low && time <= times.high {
            let (at, end) = (y(time), WIDTH - RIGHT);
            put(format!("<line class=\"grid\" x1=\"{LEFT}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"));
            let beside = LEFT - 8.0;
            put(format!(
                "<text class=\"faint\" x=\"{beside}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                at + 4.0,
                seconds_text(time)
            ));
        }
    }
    let base = HEIGHT - BOTTOM;
    for size in size_marks(&sizes) {
        let (at, below, text) = (x(size), base + 5.0, base + 20.0);
        put(format!("<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{base}\" y2=\"{below}\"/>"));
        put(format!(
            "<text class=\"faint\" x=\"{at:.1}\" y=\"{text}\" text-anchor=\"middle\">{}</text>",
            size_text(size)
        ));
    }
    let (middle, low) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0);
    put(format!(
        "<text class=\"faint\" x=\"{middle}\" y=\"{low}\" text-anchor=\"middle\">size, elements of a side or in all</text>"
    ));
    let (side, height) = (24.0, (TOP + base) / 2.0);
    put(format!(
        "<text class=\"faint\" x=\"{side}\" y=\"{height}\" text-anchor=\"middle\" transform=\"rotate(-90 {side} {height})\">predicted time</text>"
    ));
    for (index, curve) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let path: Vec<String> =
            curve.points.iter().map(|(size, time)| format!("{:.1},{:.1}", x(*size), y(*time))).collect();
        put(format!("<polyline class=\"curve\" stroke=\"{colour}\" points=\"{}\"/>", path.join(" ")));
        if let Some((size, time)) = curve.points.last() {
            let (at_x, at_y) = (x(*size) + 8.0, y(*time) + 4.0);
            put(format!("<text x=\"{at_x:.1}\" y=\"{at_y:.1}\" style=\"fill:{colour}\">{}</text>", curve.device));
        }
    }
    for (size, from, to) in crossovers(curves) {
        let (at, bottom) = (x(size), HEIGHT - BOTTOM);
        put(format!("<line class=\"cross\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>"));
        let text = format!("{from} → {to} at {size:.0}");
        put(format!("<text class=\"faint\" x=\"{:.1}\" y=\"{:.1}\">{text}</text>", at + 4.0, TOP + 14.0));
    }
    let title = format!("{}: predicted finish by size", op.name());
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <style>{STYLE}</style>\n<rect class=\"ground\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"28\">{title}</text>\n{body}</svg>\n"
    )
}

/// Powers of ten to mark the axis of sizes with; powers of two if it spans less than a factor of
/// hundred.
fn size_marks(sizes: &Scale) -> Vec<f64> {
    let base: f64 = if sizes.high / sizes.low >= 100.0 { 10.0 } else { 2.0 };
    let (first, last) = (sizes.low.log(base).ceil() as i32, (sizes.high.log(base) + 1e-9).floor() as i32);
    let step = ((last - first).max(0) as usize / MARKS_MAX + 1).min(64);
    (first..=last).step_by(step).map(|power| base.powi(power)).collect()
}

/// Formats a size with a suffix for thousands, millions and so on.
fn size_text(size: f64) -> String {
    match size {
        size if size < 1.0 => format!("{size:.2}"),
        size if size < 1e4 => format!("{size:.0}"),
        size if size < 1e6 => format!("{:.0}k", size / 1e3),
        size if size < 1e9 => format!("{:.0}M", size / 1e6),
        size => format!("{:.0}G", size / 1e9),
    }
}

/// Returns the sizes at which the best device changes, with the devices before and after.
fn crossovers(curves: &[Curve]) -> Vec<(f64, String, String)> {
    let mut sizes: Vec<f64> = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.0)).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let best = |size: f64| {
        let at = |curve: &Curve| curve.points.iter().find(|point| point.0 == size).map(|point| point.1);
        let timed = curves.iter().filter_map(|curve| Some((at(curve)?, curve)));
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, curve)| curve.device.clone())
    };
    let winners: Vec<(f64, String)> = sizes.into_iter().filter_map(|size| Some((size, best(size)?))).collect();
    let changes = winners.windows(2).filter(|pair| pair[0].1 != pair[1].1);
    changes.map(|pair| ((pair[0].0 * pair[1].0).sqrt(), pair[0].1.clone(), pair[1].1.clone())).collect()
}

fn seconds_text(seconds: f64) -> String {
    match seconds {
        value if value < 0.99e-6 => format!("{:.0} ns", value * 1e9),
        value if value < 0.99e-3 => format!("{:.0} µs", value * 1e6),
        value if value < 0.99 => format!("{:.0} ms", value * 1e3),
        value => format!("{value:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crossing_is_marked() {
        let line = |device: &str, base: f64, slope: f64| Curve {
            device: device.to_owned(),
            points: (0..10).map(|power| (f64::from(1 << power), base + slope * f64::from(1 << power))).collect(),
        };
        let curves = [line("cpu:0", 1e-6, 1e-6), line("cuda:0", 2e-5, 1e-8)];
        let found = crossovers(&curves);
        assert_eq!(found.len(), 1);
        assert!((16.0..32.0).contains(&found[0].0) && found[0].1 == "cpu:0", "{found:?}");
        let chart = svg(OpKind::MatMul, &curves);
        assert_eq!(chart.matches("class=\"curve\"").count(), 2);
        assert!(chart.contains("cpu:0 → cuda:0"));
        // Regression: the axis of sizes had its two ends alone, and neither axis had a name.
        assert!(chart.contains(">10</text>") && chart.contains(">100</text>"), "{chart}");
        assert!(chart.contains(">size, elements") && chart.contains(">predicted time</text>"));
        assert!(svg(OpKind::MatMul, &[]).starts_with("<svg"));
    }
}
