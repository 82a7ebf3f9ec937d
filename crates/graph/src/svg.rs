//! A listing as an SVG picture: the recorded ops on the left, the resulting kernels on the right.

use std::fmt::Write;

use crate::listing::{KernelRow, Listing};

/// The most rows drawn of each list.
pub const ROWS_MAX: usize = 400;

const BOX_WIDTH: usize = 460;
const BOX_HEIGHT: usize = 44;
const ROW_HEIGHT: usize = 64;
const TOP: usize = 70;
const MARGIN: usize = 24;
/// The distance of two lanes, in which edges run beside the boxes.
const LANE_WIDTH: usize = 12;
/// The most lanes of a list; further edges share them.
const LANES_MAX: usize = 24;
/// The colours of edges: all edges from one box have the same.
const COLOURS: [&str; 6] = ["#3b6fb5", "#c2571a", "#2f8f5b", "#8a4fa3", "#a3822a", "#64748b"];

const STYLE: &str = "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1f2430}.title{font-size:15px;font-weight:bold}\
    .faint{fill:#4a5568}.box{fill:#eef3fa;stroke:#3b6fb5}.once{fill:#f5f0e6;stroke:#b58a3b}.edge{fill:none;stroke-width:1.4}\
    .ground{fill:#ffffff}@media(prefers-color-scheme:dark){text{fill:#e6e9ef}.faint{fill:#a9b2c3}\
    .box{fill:#1e2733;stroke:#6d9fe0}.once{fill:#2b261c;stroke:#d1a85a}.ground{fill:#16181d}}";

/// The picture of a listing under a title.
pub fn svg(title: &str, listing: &Listing) -> String {
    let rows = listing.before.len().min(ROWS_MAX).max(listing.after.len().min(ROWS_MAX));
    let height = TOP + rows * ROW_HEIGHT + 50;
    let mut body = String::new();
    // Writing into a string does not fail.
    let _ = write!(body, "<text class=\"title\" x=\"16\" y=\"26\">{}</text><defs>", escaped(title));
    for (number, colour) in COLOURS.iter().enumerate() {
        let _ = write!(
            body,
            "<marker id=\"arrow{number}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
             orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"{colour}\"/></marker>"
        );
    }
    body.push_str("</defs>");
    let before = column(&mut body, MARGIN, "as recorded", &listing.before);
    let width = column(&mut body, before + MARGIN, "as it runs", &listing.after);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\
         <style>{STYLE}</style><rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>{body}</svg>\n"
    )
}

/// The edges from one box to boxes further down. They share a lane beside the boxes.
struct Trunk {
    from: usize,
    /// The boxes that read it, in order, without the one directly below.
    to: Vec<usize>,
    lane: usize,
}

/// The trunks of a list, and the number of their lanes. No two trunks overlap in a lane, as long as
/// there are lanes enough.
fn trunks(rows: &[KernelRow]) -> (Vec<Trunk>, usize) {
    let mut trunks: Vec<Trunk> = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        for from in row.reads.iter().copied().filter(|from| from + 1 < index) {
            match trunks.iter_mut().find(|trunk| trunk.from == from) {
                Some(trunk) if trunk.to.last() == Some(&index) => {}
                Some(trunk) => trunk.to.push(index),
                None => trunks.push(Trunk { from, to: vec![index], lane: 0 }),
            }
        }
    }
    trunks.sort_by_key(|trunk| trunk.from);
    // For each lane, the last row of the trunk in it.
    let mut ends: Vec<usize> = Vec::new();
    for trunk in &mut trunks {
        let end = trunk.to.last().copied().unwrap_or(trunk.from);
        trunk.lane = match ends.iter().position(|taken| *taken < trunk.from) {
            Some(lane) => lane,
            None if ends.len() < LANES_MAX => {
                ends.push(end);
                ends.len() - 1
            }
            None => trunk.from % LANES_MAX,
        };
        ends[trunk.lane] = ends[trunk.lane].max(end);
    }
    (trunks, ends.len())
}

/// Draws the edges of a list whose boxes begin at `x`. An edge leaves its box below the middle and
/// enters another one above it, so that arrows do not lie on each other.
fn edges(body: &mut String, x: usize, rows: &[KernelRow], trunks: &[Trunk]) {
    let top = |row: usize| TOP + row * ROW_HEIGHT;
    for (index, row) in rows.iter().enumerate().skip(1) {
        if row.reads.contains(&(index - 1)) {
            let (from, middle) = (index - 1, x + BOX_WIDTH / 2);
            edge(body, from, &format!("M{middle} {} V{}", top(from) + BOX_HEIGHT, top(index) - 1));
        }
    }
    for Trunk { from, to, lane } in trunks {
        let lane_x = x - (lane + 1) * LANE_WIDTH;
        for target in to {
            let place = rows[*target].reads.iter().position(|read| read == from).unwrap_or(0);
            let enters = top(*target) + 8 + (place * 7).min(BOX_HEIGHT - 16);
            edge(body, *from, &format!("M{x} {} H{lane_x} V{enters} H{}", top(*from) + BOX_HEIGHT - 8, x - 1));
        }
    }
}

fn edge(body: &mut String, from: usize, path: &str) {
    let (number, colour) = (from % COLOURS.len(), COLOURS[from % COLOURS.len()]);
    let _ = write!(body, "<path class=\"edge\" d=\"{path}\" stroke=\"{colour}\" marker-end=\"url(#arrow{number})\"/>");
}

/// Draws a list whose lanes begin at `left`. Returns the place of its right edge.
fn column(body: &mut String, left: usize, title: &str, rows: &[KernelRow]) -> usize {
    let (total, time_ns) = Listing::total(rows);
    let heading = format!(
        "{title}: {} kernels, {} read and written, {}",
        rows.iter().filter(|row| !row.is_once).count(),
        bytes_text(total.bytes),
        time_text(time_ns)
    );
    let shown = &rows[..rows.len().min(ROWS_MAX)];
    let (trunks, lanes) = trunks(shown);
    let x = left + (lanes + 1) * LANE_WIDTH;
    let _ = write!(body, "<text class=\"faint\" x=\"{x}\" y=\"{}\">{}</text>", TOP - 16, escaped(&heading));
    for (index, row) in shown.iter().enumerate() {
        let y = TOP + index * ROW_HEIGHT;
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
    edges(body, x, shown, &trunks);
    if rows.len() > ROWS_MAX {
        let y = TOP + ROWS_MAX * ROW_HEIGHT + 16;
        let _ = write!(body, "<text class=\"faint\" x=\"{x}\" y=\"{y}\">and {} more</text>", rows.len() - ROWS_MAX);
    }
    x + BOX_WIDTH + MARGIN
}

fn detail(row: &KernelRow) -> String {
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

    /// Regression: one line joined all boxes, so the edges could not be told apart, and none had an
    /// arrow.
    #[test]
    fn every_edge_has_an_arrow_and_no_two_sources_share_a_lane() {
        let graph = text::parse(
            "input x f32 [8]\na = relu(x)\nb = neg(x)\nc = add(a, b)\nd = mul(a, c)\ne = add(b, d)\nf = add(a, e)\noutput f",
        );
        let listing = Listing::new(&graph.unwrap(), &SymbolSizes([1; 4]), &PROCESSOR, &RATES).unwrap();
        let edges: usize = listing.before.iter().chain(&listing.after).map(|row| row.reads.len()).sum();
        assert_eq!(svg("edges", &listing).matches("marker-end").count(), edges);
        let (trunks, lanes) = trunks(&listing.before);
        assert_eq!((trunks.len(), lanes), (2, 2), "a and b are read further down, at the same time");
        assert!(trunks.iter().all(|trunk| trunk.to.iter().all(|to| *to > trunk.from + 1)));
    }

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
