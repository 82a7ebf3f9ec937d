//! `panoply infer --profile`: the time of each node, as JSON and as a table.

use panoply::models::NodeTime;
use serde::Serialize;

use super::HOST;
use crate::failure::Failure;
use crate::screen::{Screen, padded, shortened};

/// The most nodes that the table shows.
const SHOWN_MAX: usize = 30;
/// The narrowest column of names of nodes.
const NAME_WIDTH_MIN: usize = 8;
/// The widest columns of ops and devices.
const OP_WIDTH_MAX: usize = 24;
const DEVICE_WIDTH_MAX: usize = 16;
/// The width of the columns of times and shares.
const FIGURES_WIDTH: usize = 19;

/// The time of one node.
#[derive(Debug, Serialize)]
pub struct ProfileRow {
    pub node: String,
    pub op: String,
    /// The device's id, or `host`.
    pub device: String,
    /// The median time in milliseconds. All executions in a run together.
    pub ms: f64,
    /// The share of the time of all nodes, 0 to 1.
    pub share: f64,
    pub executions: u64,
}

/// The rows of a profile, those that take longest first.
pub fn rows(times: &[NodeTime]) -> Vec<ProfileRow> {
    let all: f64 = times.iter().map(|node| node.time.as_secs_f64()).sum();
    let row = |node: &NodeTime| ProfileRow {
        node: node.node.clone(),
        op: node.op.clone(),
        device: node.device.map_or(HOST.to_owned(), |device| device.to_string()),
        ms: node.time.as_secs_f64() * 1e3,
        share: node.time.as_secs_f64() / all.max(f64::MIN_POSITIVE),
        executions: node.executions,
    };
    let mut rows: Vec<ProfileRow> = times.iter().map(row).collect();
    rows.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    rows
}

/// Prints the nodes that take longest, and the rest in one line.
pub fn print(rows: &[ProfileRow], screen: &mut Screen) -> Result<(), Failure> {
    let widest = |text: fn(&ProfileRow) -> &String, title: &str, max: usize| {
        let widths = rows.iter().take(SHOWN_MAX).map(|row| text(row).chars().count());
        widths.max().unwrap_or(0).max(title.len()).min(max) + 2
    };
    let op_width = widest(|row| &row.op, "OP", OP_WIDTH_MAX);
    let device_width = widest(|row| &row.device, "DEVICE", DEVICE_WIDTH_MAX);
    let left = screen.width().saturating_sub(op_width + device_width + FIGURES_WIDTH).max(NAME_WIDTH_MIN);
    let name_width = widest(|row| &row.node, "NODE", left.saturating_sub(2));
    let line = |name: &str, op: &str, device: &str, time: &str, share: &str| {
        let cell = |text: &str, width: usize| padded(&shortened(text, width.saturating_sub(2)), width);
        let cells = [cell(name, name_width), cell(op, op_width), cell(device, device_width)].concat();
        format!("{cells}{time:>11}{share:>8}")
    };
    screen.line("")?;
    screen.line(screen.strong(&line("NODE", "OP", "DEVICE", "TIME", "SHARE")))?;
    let figures = |ms: f64, share: f64| (format!("{ms:.3} ms"), format!("{:.1} %", share * 100.0));
    for row in rows.iter().take(SHOWN_MAX) {
        let (time, share) = figures(row.ms, row.share);
        screen.line(line(&row.node, &row.op, &row.device, &time, &share))?;
    }
    let rest = rows.get(SHOWN_MAX..).unwrap_or_default();
    if !rest.is_empty() {
        let (time, share) = figures(rest.iter().map(|row| row.ms).sum(), rest.iter().map(|row| row.share).sum());
        screen.line(line(&format!("{} others", rest.len()), "", "", &time, &share))?;
    }
    let all: f64 = rows.iter().map(|row| row.ms).sum();
    let count = rows.len();
    screen.prose(&format!(
        "{count} nodes take {all:.1} ms one after the other, each by itself. An ordinary run fuses them and takes less."
    ))
}
