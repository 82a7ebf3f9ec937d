//! A training curve as an SVG picture.

use std::fmt::Write;

/// One line of the picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name of the line.
    pub name: String,
    /// The points in order: step and value.
    pub points: Vec<(f64, f64)>,
}

const COLOURS: [&str; 6] = ["#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#475569"];
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 56.0;
/// The largest number of points of one line that are drawn.
const POINTS_MAX: usize = 2_000;

/// Draws the lines below each other over the same steps, each with its own axis.
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
    let (left, right, bottom) = (MARGIN, WIDTH - 16.0, top + HEIGHT - 36.0);
    let head = top + 24.0;
    let _ = write!(text, "<text x=\"{left}\" y=\"{}\" fill=\"{colour}\">{}</text>", top + 14.0, escaped(&line.name));
    let range = |pick: fn(&(f64, f64)) -> f64| {
        let low = points.iter().map(pick).fold(f64::INFINITY, f64::min);
        let high = points.iter().map(pick).fold(f64::NEG_INFINITY, f64::max);
        if high > low { (low, high) } else { (low.min(high) - 0.5, low.min(high) + 0.5) }
    };
    if points.is_empty() {
        let _ = write!(text, "<text x=\"{left}\" y=\"{}\">no points</text>", head + 16.0);
        return;
    }
    let ((x_low, x_high), (y_low, y_high)) = (range(|point| point.0), range(|point| point.1));
    for tick in 0..=4 {
        let part = f64::from(tick) / 4.0;
        let (x, y) = (left + part * (right - left), bottom - part * (bottom - head));
        let _ = write!(
            text,
            "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#e2e8f0\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            left - 6.0,
            y + 4.0,
            short(y_low + part * (y_high - y_low)),
            bottom + 16.0,
            short(x_low + part * (x_high - x_low)),
        );
    }
    let path: Vec<String> = points
        .iter()
        .map(|(x, y)| {
            let across = left + (x - x_low) / (x_high - x_low) * (right - left);
            let up = bottom - (y - y_low) / (y_high - y_low) * (bottom - head);
            format!("{across:.1},{up:.1}")
        })
        .collect();
    let _ = write!(
        text,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>",
        path.join(" ")
    );
}

/// At most [`POINTS_MAX`] finite points, taken at even intervals.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let finite: Vec<(f64, f64)> = points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    let step = finite.len().div_ceil(POINTS_MAX).max(1);
    finite.into_iter().step_by(step).collect()
}

fn short(value: f64) -> String {
    if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else if value.abs() >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_its_lines_and_no_markup_of_others() {
        let line = |name: &str, points: Vec<(f64, f64)>| Series { name: name.to_owned(), points };
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
