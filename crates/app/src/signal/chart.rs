//! Draws curves as SVG, and as block columns on a terminal.

use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 56.0;
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

/// An axis: its name, its ends, and its marks with their texts.
pub struct Axis {
    pub name: String,
    pub from: f64,
    pub to: f64,
    pub marks: Vec<(f64, String)>,
}

impl Axis {
    /// Makes an axis with `marks` equal steps between its marks.
    pub fn even(name: &str, from: f64, to: f64, marks: usize, text: impl Fn(f64) -> String) -> Axis {
        let (from, to) = if from < to { (from, to) } else { (from - 1.0, from + 1.0) };
        let place = |at: usize| from + (to - from) * at as f64 / marks.max(1) as f64;
        let marks = (0..=marks.max(1)).map(|at| (place(at), text(place(at)))).collect();
        Axis { name: name.to_owned(), from, to, marks }
    }

    fn share(&self, value: f64) -> f64 {
        ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }
}

/// Draws the chart.
pub fn svg(title: &str, x: &Axis, y: &Axis, curves: &[Curve]) -> String {
    let across = |value: f64| LEFT + x.share(value) * (WIDTH - LEFT - RIGHT);
    let up = |value: f64| HEIGHT - BOTTOM - y.share(value) * (HEIGHT - TOP - BOTTOM);
    let mut body = String::new();
    let mut put = |line: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(body, "{line}");
    };
    for (value, text) in &y.marks {
        let (at, end) = (up(*value), WIDTH - RIGHT);
        put(format!("<line class=\"grid\" x1=\"{LEFT}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"));
        put(format!("<text class=\"faint\" x=\"8\" y=\"{:.1}\">{}</text>", at + 4.0, escaped(text)));
    }
    for (value, text) in &x.marks {
        let (at, base) = (across(*value), HEIGHT - BOTTOM + 20.0);
        put(format!(
            "<text class=\"faint\" x=\"{at:.1}\" y=\"{base}\" text-anchor=\"middle\">{}</text>",
            escaped(text)
        ));
    }
    let (middle, low) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12.0);
    put(format!("<text class=\"faint\" x=\"{middle}\" y=\"{low}\" text-anchor=\"middle\">{}</text>", escaped(&x.name)));
    put(format!("<text class=\"faint\" x=\"8\" y=\"{}\">{}</text>", TOP - 8.0, escaped(&y.name)));
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
    document(title, WIDTH, HEIGHT, &body)
}

/// Makes an SVG document of this size around `body`.
pub fn document(title: &str, width: f64, height: f64, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <style>{STYLE}</style>\n<rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"28\">{}</text>\n{body}</svg>\n",
        escaped(title)
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
        let x = Axis::even("<x>", 0.0, 10.0, 5, |at| format!("{at:.0}"));
        let y = Axis::even("y", 0.0, 1.0, 4, |at| format!("{at:.2}"));
        let dots = Curve { name: "a & b".into(), points: vec![(1.0, 0.5), (2.0, f64::NAN)], dots: true };
        let line = Curve { name: "line".into(), points: vec![(0.0, 0.0), (50.0, 9.0)], dots: false };
        let chart = svg("<script>", &x, &y, &[dots, line]);
        assert_eq!((chart.matches("<circle").count(), chart.matches("<polyline").count()), (1, 1));
        assert!(!chart.contains("<script>") && chart.contains("a &amp; b") && !chart.contains("NaN"));
        assert!(Axis::even("", 3.0, 3.0, 2, |_| String::new()).share(3.0) == 0.5);
    }

    #[test]
    fn columns_and_blocks() {
        assert_eq!(columns(&[1.0, 5.0, 2.0, 3.0], 2), [5.0, 3.0]);
        assert_eq!(columns(&[1.0], 80), [1.0]);
        assert_eq!(blocks(&[0.0, 0.5, 1.0, -9.0], 0.0, 1.0, 2), ["  █ ", " ██ "]);
        assert_eq!(blocks(&[f32::NAN], 0.0, 1.0, 1).len(), 1);
    }
}
