//! Draws results as a horizontal bar chart in SVG. Each unit has its own group and scale, because
//! rates and times cannot share a scale.

use std::fmt::Write;

use super::row::{CaseRow, Figures, Measurement, rate_text, time_text};

const WIDTH: usize = 960;
const LABEL_WIDTH: usize = 330;
const FIGURE_WIDTH: usize = 170;
const BAR_WIDTH_MAX: usize = WIDTH - LABEL_WIDTH - FIGURE_WIDTH;
const BAR_HEIGHT: usize = 16;
const ROW_HEIGHT: usize = 24;
const GROUP_HEIGHT: usize = 44;
const MARGIN: usize = 16;

const STYLE: &str = "text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#1f2430}\
    .title{font-weight:bold;font-size:15px}.unit{font-weight:bold;fill:#4a5568}.figure{fill:#4a5568}.bar{fill:#3b6fb5}\
    .ground{fill:#ffffff}\
    @media(prefers-color-scheme:dark){text{fill:#e6e9ef}.unit,.figure{fill:#a9b2c3}.bar{fill:#6d9fe0}.ground{fill:#16181d}}";

struct Bar {
    label: String,
    figure: String,
    length: f64,
}

/// Draws the chart of all rows that have figures.
pub fn svg(rows: &[CaseRow]) -> String {
    let groups = groups(rows);
    let bars: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
    let height = 2 * MARGIN + ROW_HEIGHT + groups.len() * GROUP_HEIGHT + bars * ROW_HEIGHT;
    let mut body = String::new();
    let mut y = MARGIN + ROW_HEIGHT;
    for (unit, bars) in &groups {
        y += GROUP_HEIGHT;
        text(&mut body, MARGIN, y - 10, "unit", unit);
        let longest = bars.iter().map(|bar| bar.length).fold(f64::MIN_POSITIVE, f64::max);
        for bar in bars {
            draw(&mut body, bar, longest, y);
            y += ROW_HEIGHT;
        }
    }
    let mut title = String::new();
    text(&mut title, MARGIN, MARGIN + BAR_HEIGHT, "title", &title_text(rows));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>\n{title}{body}</svg>\n"
    )
}

fn title_text(rows: &[CaseRow]) -> String {
    let mut devices: Vec<String> = rows.iter().map(|row| format!("{}, {} threads", row.device, row.threads)).collect();
    devices.dedup();
    devices.sort();
    devices.dedup();
    format!("panoply bench on {}", devices.join("; "))
}

/// Groups the bars by unit, in the order in which the units first occur.
fn groups(rows: &[CaseRow]) -> Vec<(&'static str, Vec<Bar>)> {
    let mut groups: Vec<(&'static str, Vec<Bar>)> = Vec::new();
    for row in rows {
        let Measurement::Done(figures) = &row.result else { continue };
        let (unit, bar) = bar(row, figures);
        match groups.iter_mut().find(|(known, _)| *known == unit) {
            Some((_, bars)) => bars.push(bar),
            None => groups.push((unit, vec![bar])),
        }
    }
    groups
}

fn bar(row: &CaseRow, figures: &Figures) -> (&'static str, Bar) {
    let label = format!("{} {}", row.case, row.api);
    let time = time_text(figures.ms);
    match figures.rate() {
        Some((rate, unit)) => {
            let figure = format!("{} ({})", rate_text(rate), time_text(figures.rated_ms()));
            (rate_heading(unit), Bar { label, figure, length: rate })
        }
        None => ("milliseconds: shorter is better", Bar { label, figure: time, length: figures.ms }),
    }
}

fn rate_heading(unit: &'static str) -> &'static str {
    match unit {
        "GFLOP/s" => "GFLOP/s: longer is better",
        "GB/s" => "GB/s: longer is better",
        _ => "queries/s: longer is better",
    }
}

fn draw(body: &mut String, bar: &Bar, longest: f64, y: usize) {
    let length = (bar.length / longest * BAR_WIDTH_MAX as f64).max(1.0);
    text(body, MARGIN, y + BAR_HEIGHT - 3, "label", &bar.label);
    // Writing to a String cannot fail.
    let _ = writeln!(
        body,
        "<rect class=\"bar\" x=\"{LABEL_WIDTH}\" y=\"{y}\" width=\"{length:.1}\" height=\"{BAR_HEIGHT}\" rx=\"2\"/>"
    );
    let after = LABEL_WIDTH + length as usize + 8;
    text(body, after, y + BAR_HEIGHT - 3, "figure", &bar.figure);
}

fn text(body: &mut String, x: usize, y: usize, class: &str, content: &str) {
    let content = escaped(content);
    // Writing to a String cannot fail.
    let _ = writeln!(body, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{content}</text>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, result: Measurement) -> CaseRow {
        CaseRow { case: case.to_owned(), api: "cpu".to_owned(), device: "cpu:0".to_owned(), threads: 2, result }
    }

    fn figures(ms: f64, gflops: Option<f64>) -> Measurement {
        Measurement::Done(Figures {
            ms,
            wall_ms: ms,
            device_ms: None,
            device_best_ms: None,
            gflops,
            gb_per_s: None,
            queries_per_s: None,
            repeats: 3,
        })
    }

    #[test]
    fn every_case_with_figures_has_a_bar() {
        let failed = Measurement::Failed { error: "lost".to_owned() };
        let rows = [row("a<b", figures(2.0, Some(50.0))), row("b", figures(4.0, Some(25.0))), row("c", failed)];
        let chart = svg(&rows);
        assert_eq!(chart.matches("class=\"bar\"").count(), 2);
        assert!(chart.contains("a&lt;b cpu") && chart.contains("50.00 (2.000 ms)"));
        let full = format!("width=\"{BAR_WIDTH_MAX}.0\"");
        let half = format!("width=\"{}.0\"", BAR_WIDTH_MAX / 2);
        assert!(chart.contains(&full) && chart.contains(&half), "{chart}");
    }

    #[test]
    fn times_and_rates_have_scales_of_their_own() {
        let chart = svg(&[row("a", figures(2.0, Some(50.0))), row("b", figures(4.0, None))]);
        assert!(chart.contains("GFLOP/s: longer") && chart.contains("milliseconds: shorter"));
    }

    #[test]
    fn no_rows_give_a_chart_all_the_same() {
        assert!(svg(&[]).starts_with("<svg") && svg(&[]).ends_with("</svg>\n"));
    }
}
