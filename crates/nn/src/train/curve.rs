//! A training curve as an SVG picture.

use std::fmt::Write;

/// One line of the picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name of the line.
    pub name: String,
    /// The name of the axis below, which counts in whole numbers: `step` or `epoch`.
    pub counted: &'static str,
    /// The points in order: step or epoch, and value.
    pub points: Vec<(f64, f64)>,
}

const COLOURS: [&str; 6] = ["#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#475569"];
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 76.0;
const RIGHT: f64 = 32.0;
/// The most steps between the marks of an axis.
const STEPS_MAX: usize = 8;
/// The largest number of points of one line that are drawn.
const POINTS_MAX: usize = 2_000;

/// Returns round numbers from `low` to `high` to mark an axis with, and the number of decimals that
/// they need. They are at least `step_min` apart, and divide the axis into at most `steps_max`
/// parts.
pub fn round_marks(low: f64, high: f64, steps_max: usize, step_min: f64) -> (Vec<f64>, usize) {
    let rough = ((high - low) / steps_max.max(1) as f64).max(step_min).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(rough.log10().floor());
    let is_enough = |times: &f64| times * power >= rough * (1.0 - 1e-9);
    let step = power * [1.0, 2.0, 5.0].into_iter().find(is_enough).unwrap_or(10.0);
    let decimals = (-(step.log10() + 1e-9).floor()).max(0.0) as usize;
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    let count = (last - first).clamp(0.0, steps_max as f64) as usize;
    // Adding zero turns -0 into 0.
    let marks = (0..=count).map(|at| (first + at as f64) * step + 0.0).filter(|mark| mark.is_finite());
    (if first <= last { marks.collect() } else { Vec::new() }, decimals)
}

/// Draws the lines below each other, each with its own axes.
pub fn svg(title: &str, lines: &[Series]) -> String {
    let mut text = String::new();
    let height = HEIGHT * lines.len().max(1) as f64 + 40.0;
    // Writing into a string cannot fail.
    let _ = write!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/><text x=\"{MARGIN}\" y=\"26\" font-size=\"16\">{}</text>",
        escaped(title)
    );
    for (place, line) in lines.iter().enumerate() {
        panel(&mut text, line, 40.0 + HEIGHT * place as f64, COLOURS[place % COLOURS.len()]);
    }
    text.push_str("</svg>\n");
    text
}

fn panel(text: &mut String, line: &Series, top: f64, colour: &str) {
    let points: Vec<(f64, f64)> = thinned(&line.points);
    let (left, right, bottom) = (MARGIN, WIDTH - RIGHT, top + HEIGHT - 56.0);
    let head = top + 24.0;
    // Writing into a string cannot fail.
    let _ = write!(text, "<text x=\"{left}\" y=\"{}\" fill=\"{colour}\">{}</text>", top + 14.0, escaped(&line.name));
    if points.is_empty() {
        let _ = write!(text, "<text x=\"{left}\" y=\"{}\">no points</text>", head + 16.0);
        return;
    }
    let ((x_low, x_high), (y_low, y_high)) = (range(&points, |point| point.0), range(&points, |point| point.1));
    let across = |x: f64| left + (x - x_low) / (x_high - x_low) * (right - left);
    let up = |y: f64| bottom - (y - y_low) / (y_high - y_low) * (bottom - head);
    let (marks, decimals) = round_marks(y_low, y_high, STEPS_MAX, 0.0);
    for mark in marks {
        let at = up(mark);
        let _ = write!(
            text,
            "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#e2e8f0\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mark:.decimals$}</text>",
            left - 6.0,
            at + 4.0,
        );
    }
    let (marks, decimals) = round_marks(x_low, x_high, STEPS_MAX, 1.0);
    for mark in marks {
        let at = across(mark);
        let _ = write!(
            text,
            "<line x1=\"{at:.1}\" y1=\"{bottom}\" x2=\"{at:.1}\" y2=\"{}\" stroke=\"#64748b\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{mark:.decimals$}</text>",
            bottom + 5.0,
            bottom + 18.0,
        );
    }
    let ((middle, low), (height, side)) = (((left + right) / 2.0, bottom + 36.0), ((head + bottom) / 2.0, 16.0));
    let _ = write!(
        text,
        "<text x=\"{middle}\" y=\"{low}\" text-anchor=\"middle\">{}</text>\
         <text x=\"{side}\" y=\"{height}\" text-anchor=\"middle\" transform=\"rotate(-90 {side} {height})\">{}</text>",
        escaped(line.counted),
        escaped(&line.name),
    );
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{:.1},{:.1}", across(*x), up(*y))).collect();
    let _ = write!(
        text,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>",
        path.join(" ")
    );
}

/// The smallest and the largest value; a single value gets room on both sides.
fn range(points: &[(f64, f64)], pick: fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let low = points.iter().map(pick).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(pick).fold(f64::NEG_INFINITY, f64::max);
    if high > low { (low, high) } else { (low - 0.5, low + 0.5) }
}

/// At most [`POINTS_MAX`] finite points, taken at even intervals.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let finite: Vec<(f64, f64)> = points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    let step = finite.len().div_ceil(POINTS_MAX).max(1);
    finite.into_iter().step_by(step).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: epochs were marked at 8.25 and 15.50, and values at 0.5882.
    #[test]
    fn marks_are_round() {
        assert_eq!(round_marks(1.0, 30.0, 8, 1.0), (vec![5.0, 10.0, 15.0, 20.0, 25.0, 30.0], 0));
        assert_eq!(round_marks(1.0, 3.0, 8, 1.0), (vec![1.0, 2.0, 3.0], 0));
        assert_eq!(round_marks(-0.1, 0.25, 4, 0.0), (vec![-0.1, 0.0, 0.1, 0.2], 1));
        assert_eq!(round_marks(0.5, 1.5, 8, 1.0), (vec![1.0], 0));
        assert!(round_marks(f64::NAN, 1.0, 8, 0.0).0.is_empty());
        let line = Series { name: "loss".to_owned(), counted: "epoch", points: vec![(1.0, 0.04), (30.0, 0.9)] };
        let picture = svg("title", &[line]);
        assert!(picture.contains(">25</text>") && picture.contains(">epoch</text>") && picture.contains("rotate(-90"));
    }

    #[test]
    fn a_picture_has_its_lines_and_no_markup_of_others() {
        let line = |name: &str, points: Vec<(f64, f64)>| Series { name: name.to_owned(), counted: "step", points };
        let many: Vec<(f64, f64)> = (0..10_000).map(|step| (f64::from(step), 1.0 / f64::from(step + 1))).collect();
        let picture = svg(
            "a <b> & c",
            &[line("loss", many), line("none", vec![]), line("flat", vec![(0.0, 2.0), (1.0, f64::NAN)])],
        );
        assert!(picture.contains("a &lt;b&gt; &amp; c") && picture.contains(">loss<") && picture.contains("no points"));
        assert_eq!(picture.matches("<polyline").count(), 2);
        assert!(!picture.contains("NaN") && picture.len() < 100_000);
    }
}
