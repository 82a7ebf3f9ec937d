//! The result of one case, as JSON and as a line of the table.

use std::time::Duration;

use panoply::{DeviceId, Error};
use serde::Serialize;

use super::cases::{Amount, Case};
use super::measure::Times;

/// The result of one case on one device: its figures, or the error.
#[derive(Clone, Debug, Serialize)]
pub struct CaseRow {
    pub case: String,
    pub api: String,
    pub device: String,
    pub threads: usize,
    #[serde(flatten)]
    pub result: Measurement,
}

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Measurement {
    Done(Figures),
    Failed { error: String },
}

/// The figures of one case. Rates are computed from a best time: the device's own if it is
/// reported, else the time from the call to the output.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The best time, in milliseconds.
    pub ms: f64,
    /// The median time, in milliseconds.
    pub wall_ms: f64,
    /// The median of the device's own times, without queues, launches and waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_ms: Option<f64>,
    /// The best of the device's own times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_best_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gflops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gb_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queries_per_s: Option<f64>,
    pub repeats: usize,
}

impl CaseRow {
    /// Makes the row of a measured case.
    pub fn new(case: &dyn Case, device: DeviceId, threads: usize, times: Result<Times, Error>) -> CaseRow {
        let result = match times {
            Ok(times) => Measurement::Done(Figures::new(case.amount(), times)),
            Err(error) => Measurement::Failed { error: error.to_string() },
        };
        CaseRow { case: case.name(), api: device.api.to_string(), device: device.to_string(), threads, result }
    }

    /// The median time, if this is the row of this case on this device and it was measured.
    pub fn time_of(&self, case: &str, device: DeviceId) -> Option<f64> {
        match &self.result {
            Measurement::Done(figures) if self.case == case && self.device == device.to_string() => {
                Some(figures.wall_ms)
            }
            _ => None,
        }
    }

    /// Formats the line of the table.
    pub fn line(&self, case_width: usize) -> String {
        let (case, device) = (&self.case, &self.device);
        match &self.result {
            Measurement::Done(figures) => {
                let (best, median) = (time_text(figures.ms), time_text(figures.wall_ms));
                let device_time = figures.device_best_ms.map_or(String::new(), time_text);
                let (rate, unit) = figures.rate().map_or((String::new(), ""), |(rate, unit)| (rate_text(rate), unit));
                let repeats = figures.repeats;
                format!(
                    "{case:<case_width$}  {device:<8}{best:>11}{median:>11}{device_time:>11}{rate:>10} {unit:<10}{repeats:>8}"
                )
            }
            Measurement::Failed { error } => format!("{case:<case_width$}  {device:<8}{:>11}  {error}", "failed"),
        }
    }
}

/// Formats the head of the table.
pub fn head(case_width: usize) -> String {
    format!(
        "{:<case_width$}  {:<8}{:>11}{:>11}{:>11}{:>10} {:<10}{:>8}",
        "CASE", "DEVICE", "BEST", "MEDIAN", "ON DEVICE", "RATE", "", "RUNS"
    )
}

impl Figures {
    fn new(amount: Amount, times: Times) -> Figures {
        let seconds = times.device.map_or(times.best, |own| own.best).as_secs_f64().max(1e-9);
        let rate = |amount: f64| Some(significant(amount / seconds));
        let mut figures = Figures {
            ms: milliseconds(times.best),
            wall_ms: milliseconds(times.median),
            device_ms: times.device.map(|own| milliseconds(own.median)),
            device_best_ms: times.device.map(|own| milliseconds(own.best)),
            gflops: None,
            gb_per_s: None,
            queries_per_s: None,
            repeats: times.repeats,
        };
        match amount {
            Amount::Flops(flops) => figures.gflops = rate(flops / 1e9),
            Amount::Bytes(bytes) => figures.gb_per_s = rate(bytes / 1e9),
            Amount::Queries(queries) => figures.queries_per_s = rate(queries),
            Amount::TimeOnly => {}
        }
        figures
    }

    /// The time that rates are computed from, in milliseconds.
    pub fn rated_ms(&self) -> f64 {
        self.device_best_ms.unwrap_or(self.ms)
    }

    /// Returns the rate and its unit, if the case has one.
    pub fn rate(&self) -> Option<(f64, &'static str)> {
        let in_gflops = self.gflops.map(|rate| (rate, "GFLOP/s"));
        let in_bytes = self.gb_per_s.map(|rate| (rate, "GB/s"));
        in_gflops.or(in_bytes).or(self.queries_per_s.map(|rate| (rate, "queries/s")))
    }
}

/// Formats a time in the unit that suits its size.
pub fn time_text(ms: f64) -> String {
    if ms < 1.0 {
        format!("{:.2} µs", ms * 1e3)
    } else if ms < 1000.0 {
        format!("{ms:.3} ms")
    } else {
        format!("{:.3} s", ms / 1e3)
    }
}

/// Formats a rate: two decimals below 100, none above.
pub fn rate_text(rate: f64) -> String {
    if rate >= 100.0 { format!("{rate:.0}") } else { format!("{rate:.2}") }
}

fn milliseconds(time: Duration) -> f64 {
    significant(time.as_secs_f64() * 1e3)
}

/// Rounds to six decimals: milliseconds to the nanosecond.
fn significant(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::cases::Scale;
    use crate::bench::measure::DeviceTimes;
    use crate::bench::place::{BenchDevice, Runner};

    /// A case that reads and writes 64 × 64 elements.
    struct SmallCase;

    impl Case for SmallCase {
        fn name(&self) -> String {
            "transpose/f32/64x64".to_owned()
        }

        fn amount(&self) -> Amount {
            Amount::Bytes(2.0 * 64.0 * 64.0 * 4.0)
        }

        fn scale(&self) -> Scale {
            Scale::Small
        }

        fn prepare(&self, _: &BenchDevice) -> panoply::Result<Runner> {
            Ok(Box::new(|| Ok(None)))
        }
    }

    #[test]
    fn a_row_has_the_fields_that_others_join_on() {
        let times =
            Times { best: Duration::from_micros(2), median: Duration::from_micros(3), device: None, repeats: 5 };
        let row = CaseRow::new(&SmallCase, "cpu:0".parse().unwrap(), 2, Ok(times));
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"case":"transpose/f32/64x64","api":"cpu","device":"cpu:0","threads":2,"ms":0.002,"wall_ms":0.003,"gb_per_s":16.384,"repeats":5}"#
        );
    }

    /// Regression: the rate was computed from the median of the device's times, and shown beside
    /// the best time of all repeats.
    #[test]
    fn rates_and_times_are_of_the_same_statistic() {
        let micros = Duration::from_micros;
        let own = DeviceTimes { best: micros(2), median: micros(4) };
        let times = Times { best: micros(10), median: micros(20), device: Some(own), repeats: 5 };
        let figures = Figures::new(SmallCase.amount(), times);
        assert_eq!((figures.ms, figures.wall_ms), (0.01, 0.02));
        assert_eq!((figures.device_best_ms, figures.device_ms), (Some(0.002), Some(0.004)));
        assert_eq!((figures.rated_ms(), figures.gb_per_s), (0.002, Some(16.384)));
        let row = CaseRow::new(&SmallCase, "cpu:0".parse().unwrap(), 2, Ok(times));
        let line = row.line(20);
        assert!(line.contains("2.00 µs") && line.contains("16.38 GB/s") && !line.contains("4.00 µs"), "{line}");
    }

    #[test]
    fn a_row_that_failed_says_why() {
        let row = CaseRow::new(&SmallCase, "cpu:0".parse().unwrap(), 2, Err(Error::Cancelled));
        assert!(serde_json::to_string(&row).unwrap().ends_with(r#""error":"cancelled by the caller"}"#));
        assert!(row.line(20).contains("failed  cancelled"));
    }

    #[test]
    fn times_have_a_unit_that_suits() {
        assert_eq!(time_text(0.0015), "1.50 µs");
        assert_eq!(time_text(2.5), "2.500 ms");
        assert_eq!(time_text(2500.0), "2.500 s");
    }
}
