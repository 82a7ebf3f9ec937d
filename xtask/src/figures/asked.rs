//! The target figures, each with its bar: the smallest ratio that is good enough.

use super::rows::Rows;

/// A target figure.
pub struct Figure {
    pub name: String,
    /// The API of the measured devices.
    pub api: &'static str,
    /// The smallest ratio that is good enough.
    pub bar: f64,
    measure: Measure,
}

/// How a ratio is computed. Larger is better.
enum Measure {
    /// A peer's time over ours, both of the same kind.
    Peer { case: String, peer_case: String, time: &'static str },
    /// The time that the hardware allows over the time on our device.
    Floor { case: String },
    /// Our time of another case, or of another API, over ours.
    Beside { case: String, api: &'static str, other: String },
    /// Our rate over a required rate.
    Rate { case: String, gflops: f64 },
    /// A limit over a number from the benchmarks of the runtime and of pipelines.
    Limit { number: &'static str, limit: f64 },
    /// The throughput of 64 callers with small products, relative to the throughput without
    /// batching.
    Callers { way: &'static str },
    /// The P99 latency that a batching strategy allows over the measured P99 latency.
    Latency { way: &'static str },
    /// The oracle's time for a trace over the router's.
    Trace,
}

/// Case, peer and bar. Compared are the best times from call to result.
const CPU_PEERS: &[(&str, &str, f64)] = &[
    ("matmul/f32/256", "numpy", 0.95),
    ("matmul/f32/1024", "numpy", 0.95),
    ("matmul/f32/2048", "numpy", 0.95),
    ("conv2d/f32/8x64x56x56k3", "onnxruntime", 0.9),
    ("sort/f32/16Mi", "numpy", 1.3),
    ("reduce/sum/f32/16Mi", "numpy", 1.3),
    ("scan/sum/f32/16Mi", "numpy", 3.0),
    ("add/f32/1Mi", "numpy", 1.2),
    ("map/relu(2x+y)/f32/16Mi", "numpy", 2.8),
    ("search/dot/f32/100000x128/q1k10", "faiss, usearch", 1.2),
    ("search/dot/f32/100000x768/q1k10", "faiss, usearch", 1.2),
    ("search/dot/f32/100000x128/q64k10", "faiss, usearch", 4.0),
    ("search/dot/f32/100000x768/q64k10", "faiss, usearch", 4.0),
];

/// Name, number in a benchmark, and limit.
const LIMITS: &[(&str, &str, f64)] = &[
    ("add of 64, parked: 5 µs above a round trip", "add64_parked_over_round_trip_us", 5.0),
    ("add of 64, hot: 5 µs", "add64_hot_us", 5.0),
    ("add of 64: 2 allocations", "add64_allocations", 2.0),
    ("choice among eight devices: 1 µs", "decision_of_eight_ns", 1000.0),
    ("telemetry: 3 % of a small op", "telemetry_percent", 3.0),
    ("seal of 1 KiB beside products of 4096: p99 200 µs", "seal_beside_product_p99_us", 200.0),
    ("products of 4096 beside seals: 5 % lost", "product_beside_seals_loss_percent", 5.0),
    ("ten stages that do nothing, two threads each: 1.1 of one", "pipeline of nothing: parallel(2) / parallel(1)", 1.1),
    (
        "ten stages that do nothing, four threads each: 1.1 of one",
        "pipeline of nothing: parallel(4) / parallel(1)",
        1.1,
    ),
    ("ten stages of 5 µs, two threads each: less than one", "pipeline of 5 µs: parallel(2) / parallel(1)", 1.0),
    ("ten stages of 5 µs, four threads each: less than one", "pipeline of 5 µs: parallel(4) / parallel(1)", 1.0),
];

/// Case and bar. Compared are the times on the device, ours and PyTorch's.
const CUDA_TORCH: &[(&str, f64)] = &[
    ("matmul/f32/4096", 0.97),
    ("matmul/f32/8192", 0.97),
    ("matmul/tf32/4096", 0.97),
    ("matmul/tf32/8192", 0.97),
    ("matmul/f16/4096", 0.97),
    ("matmul/f16/8192", 0.97),
    ("matmul/bf16/4096", 0.97),
    ("matmul/bf16/8192", 0.97),
    ("linear_relu/f32/4096", 0.97),
    ("linear_relu/f16/4096", 0.97),
    ("linear_relu/bf16/4096", 0.97),
    ("sort/f32/64Mi", 1.0),
    ("resize/f32/64x3x1080x1920to224", 1.0),
    ("conv2d/f16/64x256x56x56k3", 1.0),
    ("fft/c64/65536x1024", 1.0),
    ("fft/c64/16384x4096", 1.0),
    ("fft/c64/64x1048576", 1.0),
    ("search/dot/f32/1000000x128/q16k10", 3.0),
    ("search/dot/f32/1000000x128/q256k10", 3.0),
    ("search/dot/f32/1000000x128/q1024k10", 3.0),
    ("search/dot/f16/1000000x128/q16k10", 3.0),
    ("search/dot/f16/1000000x128/q256k10", 8.0),
    ("search/dot/f16/1000000x128/q1024k10", 8.0),
    ("upload/pinned/1GiB", 0.97),
    ("download/pinned/1GiB", 0.97),
];

/// Case and bar. Compared are the times from call to result, ours and PyTorch's.
const CUDA_TORCH_WALL: &[(&str, f64)] = &[
    ("matmul/f32/1024", 1.0),
    ("matmul/tf32/1024", 1.0),
    ("matmul/f16/1024", 1.0),
    ("matmul/bf16/1024", 1.0),
    ("add/f32/1Mi", 1.0),
];

/// Case and bar. Our time is compared with the floor given by the card's own copy bandwidth.
const CUDA_FLOOR: &[(&str, f64)] = &[
    ("map/relu(2x+y)/f32/256Mi", 0.9),
    ("reduce/sum/f32/256Mi", 0.9),
    ("softmax/f32/65536x1024", 0.9),
    ("scan/sum/f32/256Mi", 0.8),
    ("search/dot/f32/1000000x128/q1k10", 0.85),
    ("search/dot/f32/1000000x768/q1k10", 0.85),
    ("search/dot/f16/10000000x128/q1k10", 0.85),
];

/// The batching strategies, and whether they may hold an op back.
const STRATEGIES: &[(&str, bool)] =
    &[("low-latency", false), ("adaptive", true), ("time-or-size", true), ("high-throughput", true)];
/// The throughput that a strategy must reach, relative to no batching.
const STRATEGY_BAR: f64 = 4.0;
/// The router's time for a trace may be at most this many times the oracle's.
const TRACE_LIMIT: f64 = 1.1;

const WGPU_TORCH: &[(&str, f64)] = &[("scan/sum/f32/256Mi", 0.5), ("sort/f32/64Mi", 0.5)];
const WGPU_FLOOR: &[(&str, f64)] = &[
    ("map/relu(2x+y)/f32/256Mi", 0.8),
    ("reduce/sum/f32/256Mi", 0.8),
    ("softmax/f32/65536x1024", 0.8),
    ("search/dot/f32/1000000x128/q1k10", 0.7),
    ("search/dot/f32/1000000x768/q1k10", 0.7),
];
const WGPU_GFLOPS: &[&str] = &["matmul/f32/4096", "matmul/f32/8192"];
const WGPU_GFLOPS_LEAST: f64 = 25_000.0;
/// Case and bar. Compared with CUDA on the same card.
const WGPU_CUDA: &[(&str, f64)] =
    &[("adds/f32/64x10000", 0.5), ("upload/pinned/1GiB", 0.8), ("download/pinned/1GiB", 0.8)];

/// Returns all figures.
pub fn all() -> Vec<Figure> {
    let mut all = cpu();
    all.extend(cuda());
    all.extend(wgpu());
    all
}

/// Returns the cases that a measurement on a CPU must include.
pub fn cpu_cases() -> Vec<&'static str> {
    let mut cases: Vec<&str> = CPU_PEERS.iter().map(|(case, ..)| *case).collect();
    cases.push("matmul/bf16/1024");
    cases
}

impl Figure {
    fn new(name: String, api: &'static str, bar: f64, measure: Measure) -> Figure {
        Figure { name, api, bar, measure }
    }

    fn peer(api: &'static str, case: &str, peer: &str, time: &'static str, bar: f64) -> Figure {
        let how = if time == "wall_ms" { ", from call to result" } else { "" };
        let (case, peer_case) = (case.to_owned(), case.to_owned());
        let name = format!("{}{case} of {peer}{how}", prefix(api));
        Figure::new(name, api, bar, Measure::Peer { case, peer_case, time })
    }

    fn floor(api: &'static str, case: &str, bar: f64) -> Figure {
        Figure::new(format!("{}{case} of the floor", prefix(api)), api, bar, Measure::Floor { case: case.to_owned() })
    }

    fn beside(name: String, ours: (&'static str, &str), other: (&'static str, &str), bar: f64) -> Figure {
        let measure = Measure::Beside { case: ours.1.to_owned(), api: other.0, other: other.1.to_owned() };
        Figure::new(name, ours.0, bar, measure)
    }

    /// Returns the ratio, if the rows have the necessary numbers.
    pub fn ratio(&self, rows: &Rows) -> Option<f64> {
        let quotient = |over: f64, under: f64| (under > 0.0).then_some(over / under);
        match &self.measure {
            Measure::Peer { case, peer_case, time } => {
                quotient(rows.peer(peer_case, time)?, rows.ours(self.api, case, time)?)
            }
            Measure::Floor { case } => quotient(rows.floor(case)?, rows.ours(self.api, case, "device_ms")?),
            Measure::Beside { case, api, other } => {
                quotient(rows.ours(api, other, "wall_ms")?, rows.ours(self.api, case, "wall_ms")?)
            }
            Measure::Rate { case, gflops } => quotient(rows.ours(self.api, case, "gflops")?, *gflops),
            // A number too small to measure counts as a hundredth of its limit.
            Measure::Limit { number, limit } => Some(limit / rows.named("number", number, "value")?.max(limit / 100.0)),
            Measure::Callers { way } => rows.named_on(self.api, "way", way, "times"),
            Measure::Latency { way } => quotient(
                rows.named_on(self.api, "way", way, "p99_limit_us")?,
                rows.named_on(self.api, "way", way, "p99_us")?,
            ),
            Measure::Trace => {
                let seconds = |policy: &str| rows.named("policy", policy, "seconds");
                quotient(seconds("oracle")?, seconds("router")?)
            }
        }
    }
}

/// Returns the prefix of a figure's name: empty for the CPU, else the API's name.
fn prefix(api: &str) -> String {
    if api == "cpu" { String::new() } else { format!("{api} ") }
}

fn cpu() -> Vec<Figure> {
    let mut figures: Vec<Figure> =
        CPU_PEERS.iter().map(|(case, peer, bar)| Figure::peer("cpu", case, peer, "ms", *bar)).collect();
    let (bf16, f32) = (("cpu", "matmul/bf16/1024"), ("cpu", "matmul/f32/1024"));
    figures.push(Figure::beside("matmul/bf16/1024 of our f32".to_owned(), bf16, f32, 2.0));
    figures.extend(LIMITS.iter().map(|(name, number, limit)| {
        Figure::new((*name).to_owned(), "cpu", 1.0, Measure::Limit { number, limit: *limit })
    }));
    figures
}

fn cuda() -> Vec<Figure> {
    let api = "cuda";
    let on_device = CUDA_TORCH.iter().map(|(case, bar)| Figure::peer(api, case, "torch", "device_ms", *bar));
    let from_call = CUDA_TORCH_WALL.iter().map(|(case, bar)| Figure::peer(api, case, "torch", "wall_ms", *bar));
    let mut figures: Vec<Figure> = on_device.chain(from_call).collect();
    figures.extend(CUDA_FLOOR.iter().map(|(case, bar)| Figure::floor(api, case, *bar)));
    let (ordinary, pinned) = ("upload/ordinary/1GiB".to_owned(), "upload/pinned/1GiB".to_owned());
    let name = format!("{api} {ordinary} of torch, pinned");
    let measure = Measure::Peer { case: ordinary, peer_case: pinned, time: "device_ms" };
    figures.push(Figure::new(name, api, 0.6, measure));
    let (overlapped, serial) = ((api, "stream/overlapped/64x64MiB"), (api, "stream/serial/64x64MiB"));
    figures.push(Figure::beside(format!("{api} {} of serial", overlapped.1), overlapped, serial, 1.8));
    for &(way, waits) in STRATEGIES {
        let name = format!("{api} 64 callers, {way}, of one by one");
        figures.push(Figure::new(name, api, STRATEGY_BAR, Measure::Callers { way }));
        if waits {
            let name = format!("{api} 64 callers, {way}, p99 within its limit");
            figures.push(Figure::new(name, api, 1.0, Measure::Latency { way }));
        }
    }
    let name = "the router's trace within 1.1 of the oracle".to_owned();
    figures.push(Figure::new(name, api, 1.0 / TRACE_LIMIT, Measure::Trace));
    figures
}

fn wgpu() -> Vec<Figure> {
    let api = "wgpu";
    let torch = WGPU_TORCH.iter().map(|(case, bar)| Figure::peer(api, case, "torch", "device_ms", *bar));
    let mut figures: Vec<Figure> = torch.collect();
    figures.extend(WGPU_FLOOR.iter().map(|(case, bar)| Figure::floor(api, case, *bar)));
    figures.extend(WGPU_GFLOPS.iter().map(|case| {
        let measure = Measure::Rate { case: (*case).to_owned(), gflops: WGPU_GFLOPS_LEAST };
        Figure::new(format!("{api} {case} of 25 TFLOP/s"), api, 1.0, measure)
    }));
    for (case, bar) in WGPU_CUDA {
        figures.push(Figure::beside(format!("{api} {case} of cuda"), (api, case), ("cuda", case), *bar));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::record::Record;

    #[test]
    fn names_are_unique_and_need_no_escapes() {
        let mut names: Vec<String> = all().into_iter().map(|figure| figure.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.iter().all(|name| !name.contains(['"', '\\'])));
    }

    #[test]
    fn the_record_has_no_figure_that_was_not_asked_for() {
        let record = Record::parse(include_str!("../../../docs/figures.jsonl")).expect("the record can be read");
        let asked = all();
        for name in record.names() {
            assert!(asked.iter().any(|figure| figure.name == name), "{name}");
        }
    }

    #[test]
    fn every_kind_of_ratio_is_worked_out() {
        let rows = Rows::parse(concat!(
            r#"{"case":"matmul/f32/4096","api":"cuda","device_ms":2.0,"wall_ms":2.5}"#,
            "\n",
            r#"{"case":"matmul/f32/4096","peer":"torch","device_ms":3.0,"wall_ms":9.0}"#,
            "\n",
            r#"{"case":"matmul/f32/4096","api":"wgpu","device_ms":4.0,"wall_ms":4.5,"gflops":50000}"#,
            "\n",
            r#"{"case":"softmax/f32/65536x1024","api":"wgpu","device_ms":4.0}"#,
            "\n",
            r#"{"case":"softmax/f32/65536x1024","peer":"torch","device_ms":5.0,"floor_ms":3.0}"#,
            "\n",
            r#"{"case":"adds/f32/64x10000","api":"cuda","ms":1.0,"wall_ms":20.0}"#,
            "\n",
            r#"{"case":"adds/f32/64x10000","api":"wgpu","ms":1.0,"wall_ms":25.0}"#,
            "\n",
            r#"{"case":"upload/ordinary/1GiB","api":"cuda","device_ms":20.0}"#,
            "\n",
            r#"{"case":"upload/pinned/1GiB","peer":"torch","device_ms":15.0}"#,
            "\n",
            r#"{"number":"add64_hot_us","value":4.0}"#,
            "\n",
            r#"{"number":"telemetry_percent","value":0.0}"#,
            "\n",
            r#"{"number":"pipeline of 5 µs: parallel(2) / parallel(1)","value":0.5}"#,
            "\n",
            r#"{"device":"cuda:0","way":"adaptive","times":5.5,"p99_us":400,"p99_limit_us":600}"#,
            "\n",
            r#"{"policy":"oracle","seconds":1.0}"#,
            "\n",
            r#"{"policy":"router","seconds":1.25}"#,
            "\n",
        ));
        let ratio = |name: &str| {
            let figure = all().into_iter().find(|figure| figure.name == name);
            figure.unwrap_or_else(|| panic!("{name}")).ratio(&rows)
        };
        assert_eq!(ratio("cuda matmul/f32/4096 of torch"), Some(1.5));
        assert_eq!(ratio("cuda matmul/f32/8192 of torch"), None);
        assert_eq!(ratio("wgpu matmul/f32/4096 of 25 TFLOP/s"), Some(2.0));
        assert_eq!(ratio("wgpu softmax/f32/65536x1024 of the floor"), Some(0.75));
        assert_eq!(ratio("wgpu adds/f32/64x10000 of cuda"), Some(0.8));
        assert_eq!(ratio("cuda upload/ordinary/1GiB of torch, pinned"), Some(0.75));
        assert_eq!(ratio("add of 64, hot: 5 µs"), Some(1.25));
        assert_eq!(ratio("telemetry: 3 % of a small op"), Some(100.0));
        assert_eq!(ratio("ten stages of 5 µs, two threads each: less than one"), Some(2.0));
        assert_eq!(ratio("cuda 64 callers, adaptive, of one by one"), Some(5.5));
        assert_eq!(ratio("cuda 64 callers, adaptive, p99 within its limit"), Some(1.5));
        assert_eq!(ratio("the router's trace within 1.1 of the oracle"), Some(0.8));
    }
}
