//! Cases of pipelines: the cost of a stage, and the gain of overlapping copies and kernels.

use panoply::pipeline::{Pipeline, PipelineError};
use panoply::prelude::{Error, Expr, Map, RunOptions, Tensor, Transfer};

use crate::bench::cases::case::{Amount, Case, Scale};
use crate::bench::place::{BenchDevice, Runner};

/// All cases of pipelines.
pub const CASES: &[&dyn Case] = &[
    &StagesCase { stages: 10, items: 100_000, parallel: 1 },
    &StagesCase { stages: 10, items: 100_000, parallel: 2 },
    &StreamCase { piped: false, batches: 64, bytes: 64 << 20 },
    &StreamCase { piped: true, batches: 64, bytes: 64 << 20 },
];

/// Ops in flight in a piped stream.
const IN_FLIGHT: usize = 6;

/// Items through stages that do nothing: the cost of the stages themselves. With ten stages and
/// 100,000 items, the time in seconds equals the cost of one item in one stage in microseconds.
struct StagesCase {
    stages: usize,
    items: u64,
    parallel: usize,
}

impl Case for StagesCase {
    fn name(&self) -> String {
        format!("pipeline/stages/{}x{}/p{}", self.stages, self.items, self.parallel)
    }

    fn amount(&self) -> Amount {
        Amount::TimeOnly
    }

    fn scale(&self) -> Scale {
        Scale::Medium
    }

    /// Runs on the host alone, without any device.
    fn prepare(&self, _place: &BenchDevice) -> panoply::Result<Runner> {
        let (stages, items, parallel) = (self.stages, self.items, self.parallel);
        Ok(Box::new(move || {
            let mut builder = Pipeline::builder().source(0..items);
            for _ in 0..stages {
                builder = builder.map("nothing", |number| number).parallel(parallel);
            }
            let ((), report) = builder.for_each("end", drop).run().map_err(failed)?;
            match report.progress.arrived == items {
                true => Ok(None),
                false => Err(Error::invalid("pipeline", format!("{items} items"), report.progress.arrived)),
            }
        }))
    }
}

/// Batches from the host through one kernel and back: as a pipeline, or one after the other.
struct StreamCase {
    piped: bool,
    batches: usize,
    bytes: usize,
}

impl Case for StreamCase {
    fn name(&self) -> String {
        let how = if self.piped { "piped" } else { "one_by_one" };
        format!("pipeline/stream/{how}/{}x{}MiB", self.batches, self.bytes >> 20)
    }

    fn amount(&self) -> Amount {
        Amount::Bytes(2.0 * (self.batches * self.bytes) as f64)
    }

    fn scale(&self) -> Scale {
        Scale::Large
    }

    fn prepare(&self, place: &BenchDevice) -> panoply::Result<Runner> {
        let floats = Tensor::from_vec(vec![1.5_f32; self.bytes / 4], [self.bytes / 4])?;
        // The source is in memory that the device downloads into, like data that came from a
        // device.
        let source = place.run(Transfer::to_host(&place.resident(&floats)?)).wait()?;
        let expr = (Expr::input(0) * 2.0 + 1.0).relu().finish().map_err(Error::Expression)?;
        let (place, batches) = (place.clone(), self.batches);
        if !self.piped {
            let wishes = RunOptions::require(place.device.id).to_host();
            return Ok(Box::new(move || {
                for _ in 0..batches {
                    place.runtime.run_with(Map::with_program(&expr, &[&source]), wishes.clone()).wait()?;
                }
                Ok(None)
            }));
        }
        Ok(Box::new(move || {
            let (source, expr) = (source.clone(), expr.clone());
            Pipeline::builder()
                .source((0..batches).map(move |_| source.clone()))
                .op("map", &*place.runtime, move |batch: &Tensor| Map::with_program(&expr, &[batch]))
                .wishes(RunOptions::require(place.device.id))
                .in_flight(IN_FLIGHT)
                .for_each("end", drop)
                .run()
                .map_err(failed)?;
            Ok(None)
        }))
    }
}

/// Converts a pipeline's error to an error of the benchmark.
fn failed(error: PipelineError) -> Error {
    Error::invalid("pipeline", "a run to its end", error)
}
