//! A listing as an SVG picture: the recorded ops on the left, the resulting kernels on the right.

use std::fmt::Write;

use crate::listing::{Listing, Row};

/// The most rows drawn of each list.
pub const ROWS_MAX: usize = 400;

const WIDTH: usize = 1180;
const BOX_WIDTH: usize = 460;
const BOX_HEIGHT: usize = 44;
const ROW_HEIGHT: usize = 60;
const TOP: usize = 70;
const LEFT: usize = 90;

const STYLE: &str = "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1f2430}.title{font-size:15px;font-weight:bold}\
    .faint{fill:#4a5568}.box{fill:#eef3fa;stroke:#3b6fb5}.once{fill:#f5f0e6;stroke:#b58a3b}.edge{fill:none;stroke:#8492a6}\
    .ground{fill:#ffffff}@media(prefers-color-scheme:dark){text{fill:#e6e9ef}.faint{fill:#a9b2c3}\
    .box{fill:#1e2733;stroke:#6d9fe0}.once{fill:#2b261c;stroke:#d1a85a}.ground{fill:#16181d}}";

/// The picture of a listing under a title.
pub fn svg(title: &str, listing: &Listing) -> String {
    let rows = listing.before.len().min(ROWS_MAX).max(listing.after.len().min(ROWS_MAX));
    let height = TOP + rows * ROW_HEIGHT + 50;
    let mut body = String::new();
    // Writing into a string does not fail.
    let _ = write!(body, "<text class=\"title\" x=\"16\" y=\"26\">{}</text>", escaped(title));
    column(&mut body, LEFT, "as recorded", &listing.before);
    column(&mut body, LEFT + BOX_WIDTH + 110, "as it runs", &listing.after);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\
         <style>{STYLE}</style><rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>{body}</svg>\n"
    )
}

fn column(body: &mut String, x: usize, title: &str, rows: &[Row]) {
    let (total, time_ns) = Listing::total(rows);
    let heading = format!(
        "{title}: {} kernels, {} read and written, {}",
        rows.iter().filter(|row| !row.is_once).count(),
        bytes_text(total.bytes),
        time_text(time_ns)
    );
    let _ = write!(body, "<text class=\"faint\" x=\"{x}\" y=\"{}\">{}</text>", TOP - 16, escaped(&heading));
    let middle = |row: usize| TOP + row * ROW_HEIGHT + BOX_HEIGHT / 2;
    for (index, row) in rows.iter().take(ROWS_MAX).enumerate() {
        let y = TOP + index * ROW_HEIGHT;
        for from in row.reads.iter().filter(|from| **from < ROWS_MAX) {
            let reach = (10 + (index - from) * 6).min(74);
            let (start, end) = (middle(*from), middle(index));
            let _ = write!(body, "<path class=\"edge\" d=\"M{x} {start} h-{reach} V{end} h{reach}\"/>");
        }
        let class = if row.is_once { "once" } else { "box" };
        let _ = write!(
            body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"5\"/>\
             <text x=\"{}\" y=\"{}\">{}</text><text class=\"faint\" x=\"{}\" y=\"{}\">{}</text>",
            x + 10,
            y + 18,
            escaped(&clipped(&format!("{} = {}", row.node, row.op), 62)),
            x + 10,
            y + 36,
            escaped(&clipped(&detail(row), 62)),
        );
    }
    if rows.len() > ROWS_MAX {
        let y = TOP + ROWS_MAX * ROW_HEIGHT + 16;
        let _ = write!(body, "<text class=\"faint\" x=\"{x}\" y=\"{y}\">and {} more</text>", rows.len() - ROWS_MAX);
    }
}

fn detail(row: &Row) -> String {
    let once = if row.is_once { ", once" } else { "" };
    let (bytes, time) = (bytes_text(row.cost.bytes), time_text(row.time_ns));
    format!("{}: {bytes}, {} flops, {time}{once}", row.output, count_text(row.cost.flops))
}

/// Bytes with a unit.
pub fn bytes_text(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// Operations with a unit.
pub fn count_text(count: u64) -> String {
    scaled(count as f64, 1000.0, &["", "k", "M", "G", "T"])
}

/// A time with a unit.
pub fn time_text(time_ns: f64) -> String {
    scaled(time_ns, 1000.0, &["ns", "µs", "ms", "s"])
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = if value < 10.0 && unit > 0 { 1 } else { 0 };
    format!("{value:.digits$} {}", units[unit]).trim_end().to_owned()
}

fn clipped(text: &str, letters_max: usize) -> String {
    match text.chars().count() > letters_max {
        true => text.chars().take(letters_max - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{PROCESSOR, RATES};
    use crate::text;
    use panoply_core::graph::SymbolSizes;

    #[test]
    fn a_picture_shows_both_lists() {
        let graph = text::parse(
            "symbol b\ninput x f32 [b, 8]\nconst w f32 [8, 4] = random(1)\nconst v f32 [4] = fill(1)\n\
             h = matmul(x, w)\nh1 = add(h, v)\ny = relu(h1)\noutput y",
        );
        let graph = graph.unwrap();
        let listing = Listing::new(&graph, &SymbolSizes([4, 1, 1, 1]), &PROCESSOR, &RATES).unwrap();
        assert_eq!((listing.before.len(), listing.after.len()), (3, 1));
        assert_eq!(listing.after[0].op, "matmul + bias + relu");
        assert_eq!(listing.before[1].reads, [0]);
        assert_eq!(Listing::total(&listing.after).0.flops, 2 * 4 * 8 * 4);
        let picture = svg("a < b", &listing);
        assert!(
            picture.contains("matmul + bias + relu") && picture.contains("a &lt; b") && picture.ends_with("</svg>\n")
        );
        assert_eq!(
            (bytes_text(1536), time_text(2500.0), count_text(12_000_000)),
            ("1.5 KiB".to_owned(), "2.5 µs".to_owned(), "12 M".to_owned())
        );
    }
}
