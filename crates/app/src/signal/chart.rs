//! Draws curves as SVG, and as block columns on a terminal.

use std::fmt::Write;

use panoply::nn::train::curve::round_marks;

use crate::screen::shortened;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 480.0;
/// The place of the axes: room for a whole mark at each end, and for the names of the axes.
const LEFT: f64 = 96.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 64.0;
/// The most steps between the marks of an axis.
const STEPS_MAX: usize = 10;
const COLOURS: [&str; 4] = ["#3b6fb5", "#c2571a", "#2f8f5b", "#8a4fa3"];
const STYLE: &str = "text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#1f2430}.title{font-weight:bold;font-size:15px}\
    .faint{fill:#4a5568}.grid{stroke:#d5dae3;stroke-width:1}.curve{fill:none;stroke-width:1.8}.ground{fill:#ffffff}\
    @media(prefers-color-scheme:dark){text{fill:#e6e9ef}.faint{fill:#a9b2c3}.grid{stroke:#2c313b}.ground{fill:#16181d}}";

/// A curve, or single points.
pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    pub dots: bool,
}

/// An axis: its name with the unit, its ends, and its marks with their texts.
pub struct Axis {
    pub name: String,
    pub from: f64,
    pub to: f64,
    pub marks: Vec<(f64, String)>,
}

impl Axis {
    /// Makes an axis with marks at round numbers.
    pub fn round(name: &str, from: f64, to: f64) -> Axis {
        Axis::scaled(name, from, to, 1.0)
    }

    /// Makes an axis of frequencies, in the unit that suits the largest. Its name says the unit.
    pub fn frequency(from: f64, to: f64) -> Axis {
        let (unit, scale) = match from.abs().max(to.abs()) {
            size if size >= 1e9 => ("GHz", 1e9),
            size if size >= 1e6 => ("MHz", 1e6),
            size if size >= 1e3 => ("kHz", 1e3),
            _ => ("Hz", 1.0),
        };
        Axis::scaled(&format!("frequency, {unit}"), from, to, scale)
    }

    /// Makes an axis of the time from 0 to `seconds`, in the unit that suits it.
    pub fn time(seconds: f64) -> Axis {
        let (unit, scale) = match seconds {
            size if size < 1e-3 => ("µs", 1e-6),
            size if size < 1.0 => ("ms", 1e-3),
            _ => ("s", 1.0),
        };
        Axis::scaled(&format!("time, {unit}"), 0.0, seconds, scale)
    }

    /// Makes an axis whose marks show the values divided by `scale`.
    fn scaled(name: &str, from: f64, to: f64, scale: f64) -> Axis {
        let (from, to) = if from < to { (from, to) } else { (from - 1.0, from + 1.0) };
        let (marks, decimals) = round_marks(from / scale, to / scale, STEPS_MAX, 0.0);
        let marks = marks.into_iter().map(|mark| (mark * scale, format!("{mark:.decimals$}"))).collect();
        Axis { name: name.to_owned(), from, to, marks }
    }

    /// The place of a value on the axis, from 0 to 1.
    pub fn share(&self, value: f64) -> f64 {
        ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }
}

/// Draws the chart.
pub fn svg(title: &str, x: &Axis, y: &Axis, curves: &[Curve]) -> String {
    let across = |value: f64| LEFT + x.share(value) * (WIDTH - LEFT - RIGHT);
    let up = |value: f64| HEIGHT - BOTTOM - y.share(value) * (HEIGHT - TOP - BOTTOM);
    let mut body = axes(x, y, true);
    let mut put = |line: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(body, "{line}");
    };
    for (index, curve) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let finite = curve.points.iter().filter(|(a, b)| a.is_finite() && b.is_finite());
        if curve.dots {
            finite.for_each(|(a, b)| {
                put(format!("<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>", across(*a), up(*b)))
            });
        } else {
            let path: Vec<String> = finite.map(|(a, b)| format!("{:.1},{:.1}", across(*a), up(*b))).collect();
            put(format!("<polyline class=\"curve\" stroke=\"{colour}\" points=\"{}\"/>", path.join(" ")));
        }
        let (name_x, name_y) = (WIDTH - RIGHT - 8.0, TOP + 16.0 + 18.0 * index as f64);
        put(format!(
            "<text x=\"{name_x}\" y=\"{name_y}\" text-anchor=\"end\" style=\"fill:{colour}\">{}</text>",
            escaped(&curve.name)
        ));
    }
    document(title, &body)
}

/// Draws the axes of a chart: the marks, their texts, and the names. Values of `y` grow upwards, or
/// downwards if `rises` is false.
pub fn axes(x: &Axis, y: &Axis, rises: bool) -> String {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let mut body = String::new();
    for (value, text) in &y.marks {
        let share = if rises { 1.0 - y.share(*value) } else { y.share(*value) };
        let (at, end) = (TOP + share * (bottom - TOP), LEFT - 8.0);
        let from = if rises { right } else { LEFT - 5.0 };
        // Writing to a String cannot fail.
        let _ = writeln!(
            body,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{from}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\n\
             <text class=\"faint\" x=\"{end}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            at + 4.0,
            escaped(text)
        );
    }
    for (value, text) in &x.marks {
        let at = LEFT + x.share(*value) * (right - LEFT);
        let _ = writeln!(
            body,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom}\" y2=\"{}\"/>\n\
             <text class=\"faint\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 5.0,
            bottom + 20.0,
            escaped(text)
        );
    }
    let (middle, low) = ((LEFT + right) / 2.0, HEIGHT - 14.0);
    let (height, side) = ((TOP + bottom) / 2.0, 20.0);
    let _ = writeln!(
        body,
        "<text class=\"faint\" x=\"{middle}\" y=\"{low}\" text-anchor=\"middle\">{}</text>\n\
         <text class=\"faint\" x=\"{side}\" y=\"{height}\" text-anchor=\"middle\" transform=\"rotate(-90 {side} {height})\">{}</text>",
        escaped(&x.name),
        escaped(&y.name)
    );
    body
}

/// The place of the area between the axes: left, top, width and height.
pub const AREA: [f64; 4] = [LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM];

/// Makes an SVG document around `body`. A title that is too long is cut.
pub fn document(title: &str, body: &str) -> String {
    const LETTERS_MAX: usize = 92;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <style>{STYLE}</style>\n<rect class=\"ground\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"28\">{}</text>\n{body}</svg>\n",
        escaped(&shortened(title, LETTERS_MAX))
    )
}

/// Escapes text for SVG: file names come from outside.
fn escaped(text: &str) -> String {
    let safe = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    safe.chars().filter(|letter| !letter.is_control()).collect()
}

/// Returns the largest value of each of `count` parts.
pub fn columns(values: &[f32], count: usize) -> Vec<f32> {
    let count = count.clamp(1, values.len().max(1));
    let part = |at: usize| &values[at * values.len() / count..(at + 1) * values.len() / count];
    (0..count).map(|at| part(at).iter().copied().fold(f32::NEG_INFINITY, f32::max)).collect()
}

/// Draws values as columns of block characters, `lines` lines high, top line first.
pub fn blocks(values: &[f32], low: f32, high: f32, lines: usize) -> Vec<String> {
    const PARTS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let height = |value: f32| ((value - low) / (high - low).max(1e-6)).clamp(0.0, 1.0) * (8 * lines) as f32;
    let line = |number: usize| {
        let below = (8 * (lines - 1 - number)) as f32;
        values.iter().map(|value| PARTS[(height(*value) - below).clamp(0.0, 8.0) as usize]).collect()
    };
    (0..lines).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_hold_what_they_are_given() {
        let (x, y) = (Axis::round("<x>", 0.0, 10.0), Axis::round("y", 0.0, 1.0));
        let dots = Curve { name: "a & b".into(), points: vec![(1.0, 0.5), (2.0, f64::NAN)], dots: true };
        let line = Curve { name: "line".into(), points: vec![(0.0, 0.0), (50.0, 9.0)], dots: false };
        let chart = svg("<script>", &x, &y, &[dots, line]);
        assert_eq!((chart.matches("<circle").count(), chart.matches("<polyline").count()), (1, 1));
        assert!(!chart.contains("<script>") && chart.contains("a &amp; b") && !chart.contains("NaN"));
        assert!(Axis::round("", 3.0, 3.0).share(3.0) == 0.5);
    }

    /// Regression: the last label of an axis was cut ("96.00 kH"), labels did not belong to their
    /// lines ("-33" at -33.3), and the name of the vertical axis lay on its first label.
    #[test]
    fn marks_are_round_and_whole() {
        let x = Axis::frequency(-96_000.0, 96_000.0);
        assert_eq!(x.name, "frequency, kHz");
        let texts: Vec<&str> = x.marks.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["-80", "-60", "-40", "-20", "0", "20", "40", "60", "80"]);
        let tuned = Axis::frequency(100.05e6, 100.25e6);
        assert_eq!((tuned.marks[0].1.as_str(), tuned.name.as_str()), ("100.06", "frequency, MHz"));
        assert_eq!((Axis::time(0.064).name.as_str(), Axis::time(0.064).marks[1].1.as_str()), ("time, ms", "10"));
        let chart = svg("title", &Axis::round("Eb/N0, dB", 0.0, 15.0), &Axis::round("power, dB", -50.0, 0.0), &[]);
        for part in chart.split("text-anchor=\"middle\"").collect::<Vec<_>>().windows(2) {
            let x = part[0].rsplit("x=\"").next().and_then(|text| text.split('"').next()).unwrap_or("0");
            let text = part[1].trim_start_matches('>').split('<').next().unwrap_or("");
            let room = 8.0 * text.chars().count() as f64 / 2.0;
            assert!(
                x.parse::<f64>().is_ok_and(|x| part[1].starts_with(" transform") || x + room <= WIDTH),
                "{text} at {x}"
            );
        }
    }

    #[test]
    fn columns_and_blocks() {
        assert_eq!(columns(&[1.0, 5.0, 2.0, 3.0], 2), [5.0, 3.0]);
        assert_eq!(columns(&[1.0], 80), [1.0]);
        assert_eq!(blocks(&[0.0, 0.5, 1.0, -9.0], 0.0, 1.0, 2), ["  █ ", " ██ "]);
        assert_eq!(blocks(&[f32::NAN], 0.0, 1.0, 1).len(), 1);
    }
}
