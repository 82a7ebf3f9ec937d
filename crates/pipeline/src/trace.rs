//! A run as a trace for Perfetto and Chrome: a track for each stage, each device and each device's
//! copies.
//!
//! Spans on a stage's track are the calls of a program's code, or ops from sending until their
//! outputs are available. Spans on a device's track are the times in which its engine had the op.
//! Spans on its copies' track are the part of those times that moved data, as reported by the
//! engine; they are drawn at the start of the op.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use panoply_core::{DeviceId, Report};
use panoply_runtime::TaskReport;
use panoply_runtime::time::{later, nanoseconds};

use super::control::lock;

/// The track of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Track {
    Stage(usize),
    Device(DeviceId),
    Copies(DeviceId),
}

#[derive(Clone, Copy, Debug)]
struct Span {
    track: Track,
    stage: usize,
    item: u64,
    start_ns: u64,
    end_ns: u64,
}

/// Collects spans during a run, up to a fixed number.
pub(crate) struct Tracer {
    epoch: Instant,
    events_max: usize,
    spans: Mutex<(Vec<Span>, u64)>,
}

impl Tracer {
    pub(crate) fn new(epoch: Instant, events_max: usize) -> Tracer {
        // The memory is allocated before the run begins.
        Tracer { epoch, events_max, spans: Mutex::new((Vec::with_capacity(events_max), 0)) }
    }

    pub(crate) fn stage(&self, stage: usize, item: u64, start: Instant, end: Instant) {
        self.add(Track::Stage(stage), stage, item, start, end);
    }

    /// Records an op that was sent at `start` and whose output was available at `end`.
    pub(crate) fn op(&self, stage: usize, item: u64, (start, end): (Instant, Instant), report: &Report) {
        self.stage(stage, item, start, end);
        self.device(stage, item, (start, end), report);
    }

    fn device(&self, stage: usize, item: u64, (start, end): (Instant, Instant), report: &Report) {
        let begun = later(start, report.queued).min(end);
        let done = later(begun, report.ran).min(end);
        let computes = match report.transferred.filter(|time| !time.is_zero()) {
            Some(copied) => {
                let copied = later(begun, copied).min(done);
                self.add(Track::Copies(report.device), stage, item, begun, copied);
                copied
            }
            None => begun,
        };
        let stops = report.device_time.map_or(done, |time| later(computes, time).min(done));
        self.add(Track::Device(report.device), stage, item, computes, stops);
    }

    /// Records a task whose steps followed each other from `start` to `end`.
    pub(crate) fn task(&self, stage: usize, item: u64, (start, end): (Instant, Instant), report: &TaskReport) {
        self.stage(stage, item, start, end);
        let mut begun = start;
        for step in &report.steps {
            let done = later(begun, step.took).min(end);
            if let Some(report) = &step.op {
                self.device(stage, item, (begun, done), report);
            }
            begun = done;
        }
    }

    pub(crate) fn finish(&self, stages: &[String]) -> Trace {
        let spans = lock(&self.spans);
        Trace { stages: stages.to_vec(), spans: spans.0.clone(), lost: spans.1 }
    }

    fn add(&self, track: Track, stage: usize, item: u64, start: Instant, end: Instant) {
        let ns = |time: Instant| nanoseconds(time.saturating_duration_since(self.epoch));
        let span = Span { track, stage, item, start_ns: ns(start), end_ns: ns(end) };
        let mut spans = lock(&self.spans);
        if spans.0.len() < self.events_max {
            spans.0.push(span);
        } else {
            spans.1 += 1;
        }
    }
}

/// The spans of a run.
#[derive(Clone, Debug)]
pub struct Trace {
    stages: Vec<String>,
    spans: Vec<Span>,
    lost: u64,
}

impl Trace {
    /// Number of spans.
    pub fn spans(&self) -> usize {
        self.spans.len()
    }

    /// Number of spans that did not fit.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The time in which both stages were inside a span. `None` if a stage name is unknown.
    pub fn overlap(&self, one: &str, other: &str) -> Option<Duration> {
        let index = |name: &str| self.stages.iter().position(|stage| stage == name);
        let (one, other) = (self.merged(Track::Stage(index(one)?)), self.merged(Track::Stage(index(other)?)));
        let mut total = 0;
        let (mut a, mut b) = (0, 0);
        while let (Some(x), Some(y)) = (one.get(a), other.get(b)) {
            total += x.1.min(y.1).saturating_sub(x.0.max(y.0));
            if x.1 < y.1 { a += 1 } else { b += 1 }
        }
        Some(Duration::from_nanos(total))
    }

    /// Writes the trace as JSON in the Chrome trace event format. Open it in ui.perfetto.dev or
    /// chrome://tracing.
    pub fn write_json(&self, mut to: impl Write) -> io::Result<()> {
        let mut tracks: BTreeMap<Track, Vec<&Span>> = BTreeMap::new();
        for span in &self.spans {
            tracks.entry(span.track).or_default().push(span);
        }
        writeln!(to, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        for (pid, name) in [(1, "stages"), (2, "devices"), (3, "copy engines")] {
            writeln!(to, "{{\"ph\":\"M\",\"pid\":{pid},\"name\":\"process_name\",\"args\":{{\"name\":\"{name}\"}}}},")?;
        }
        let mut tid = 0;
        for (track, mut spans) in tracks {
            spans.sort_by_key(|span| (span.start_ns, span.end_ns));
            tid = self.write_track(&mut to, track, &spans, tid)?;
        }
        writeln!(
            to,
            "{{\"ph\":\"M\",\"pid\":1,\"name\":\"trace\",\"args\":{{\"spans that did not fit\":{}}}}}]}}",
            self.lost
        )
    }

    /// Writes one track. Overlapping spans are drawn in rows below each other; the viewer shows
    /// each row as a thread.
    fn write_track(&self, to: &mut impl Write, track: Track, spans: &[&Span], first: usize) -> io::Result<usize> {
        let (pid, name) = match track {
            Track::Stage(stage) => (1, self.name(stage)),
            Track::Device(device) => (2, device.to_string()),
            Track::Copies(device) => (3, format!("copies of {device}")),
        };
        let mut rows: Vec<u64> = Vec::new();
        for span in spans {
            let row = rows.iter().position(|end| *end <= span.start_ns).unwrap_or(rows.len());
            if row == rows.len() {
                rows.push(0);
                let (tid, name) = (first + row, escaped(&name));
                writeln!(
                    to,
                    "{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}}},"
                )?;
            }
            rows[row] = span.end_ns;
            let (ts, dur) = (span.start_ns as f64 / 1e3, (span.end_ns - span.start_ns.min(span.end_ns)) as f64 / 1e3);
            let (tid, stage, item) = (first + row, escaped(&self.name(span.stage)), span.item);
            writeln!(
                to,
                "{{\"ph\":\"X\",\"pid\":{pid},\"tid\":{tid},\"ts\":{ts:.3},\"dur\":{dur:.3},\"name\":{stage},\
                 \"args\":{{\"item\":{item}}}}},"
            )?;
        }
        Ok(first + rows.len())
    }

    fn name(&self, stage: usize) -> String {
        self.stages.get(stage).cloned().unwrap_or_default()
    }

    /// A track's spans, merged into times that do not overlap.
    fn merged(&self, track: Track) -> Vec<(u64, u64)> {
        let mut spans: Vec<(u64, u64)> =
            self.spans.iter().filter(|span| span.track == track).map(|span| (span.start_ns, span.end_ns)).collect();
        spans.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, end) in spans {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        merged
    }
}

/// A text as a JSON string.
fn escaped(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => json.extend(['\\', letter]),
            letter if u32::from(letter) < 0x20 => json.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => json.push(letter),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_spans_get_rows_of_their_own_and_text_is_escaped() {
        let epoch = Instant::now();
        let at = |us: u64| epoch + Duration::from_micros(us);
        let tracer = Tracer::new(epoch, 3);
        tracer.stage(0, 0, at(0), at(10));
        tracer.stage(0, 1, at(5), at(15));
        tracer.stage(1, 0, at(12), at(20));
        tracer.stage(1, 1, at(20), at(30));
        let trace = tracer.finish(&["read \"a\"\n".to_owned(), "write".to_owned()]);
        assert_eq!((trace.spans(), trace.lost()), (3, 1));
        assert_eq!(trace.overlap("read \"a\"\n", "write"), Some(Duration::from_micros(3)));
        assert_eq!(trace.overlap("read", "write"), None);
        let mut json = Vec::new();
        trace.write_json(&mut json).unwrap();
        let json = String::from_utf8(json).unwrap();
        assert_eq!(json.matches("thread_name").count(), 3, "two rows for the first stage, one for the second: {json}");
        assert!(json.contains(r#""name":"read \"a\"\u000a","args":{"item":1}"#), "{json}");
    }
}
