//! Workers that own devices: each has a part of a device to itself, with a table in the device's
//! memory that its thread alone uses. Questions go to the worker that has the rows.
//!
//!     cargo run --release --example accelerated
//!
//! The example takes the first accelerator that runs the op, and the processor where there is none.

use std::error::Error;

use panoply::prelude::*;
use panoply::worker::{AcceleratedWorker, BoxError, DeviceShare, Envelope, PoolOptions, Share, WorkerPool};

const WORKERS: usize = 2;
const ROWS: usize = 4096;
const WIDTH: usize = 64;

/// Some rows of a table, on a device.
pub struct Rows {
    first: usize,
    rows: Option<Tensor>,
}

/// The row with the largest product with a vector, and that product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// The number of the row.
    pub row: usize,
    /// The product.
    pub product: f32,
}

/// An element of the table.
fn element(row: usize, column: usize) -> f32 {
    ((row * 31 + column * 17) % 101) as f32 / 101.0 - 0.5
}

impl AcceleratedWorker for Rows {
    type Message = Vec<f32>;
    type Reply = Best;

    /// Brings the rows to the device. After a failure the next worker does it again.
    fn init(&mut self, device: &DeviceShare) -> Result<(), BoxError> {
        let rows = (self.first..self.first + ROWS).flat_map(|row| (0..WIDTH).map(move |column| element(row, column)));
        let rows = Tensor::from_vec(rows.collect::<Vec<_>>(), [ROWS, WIDTH])?;
        self.rows = Some(device.run(Transfer::to_device(&rows, device.device())).wait()?);
        println!("rows {} to {} are on {}", self.first, self.first + ROWS - 1, device.device());
        Ok(())
    }

    fn handle(&mut self, device: &DeviceShare, envelope: Envelope<Vec<f32>>) -> Result<Best, BoxError> {
        let rows = self.rows.as_ref().ok_or("the worker has no rows")?;
        let vector = Tensor::from_vec(envelope.message, [WIDTH, 1])?;
        let products = device.run(MatMul::new(rows, &vector)).wait()?;
        let options = RunOptions::default().to_host();
        let (product, row) = device.run_with(TopK::new(&products.reshape([ROWS])?, 1), options).wait()?;
        Ok(Best { row: self.first + row.as_slice::<u32>()?[0] as usize, product: product.as_slice::<f32>()?[0] })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let vector: Vec<f32> = (0..WIDTH).map(|column| element(5000, column)).collect();
    let best = ask(&Runtime::new()?, &vector)?;
    println!("row {} has the largest product, {:.3}", best.row, best.product);
    Ok(())
}

/// Asks all workers for their best row, and returns the best of all.
pub fn ask(runtime: &Runtime, vector: &[f32]) -> Result<Best, Box<dyn Error>> {
    let probe = MatMul::new(&Tensor::zeros(DType::F32, [ROWS, WIDTH])?, &Tensor::zeros(DType::F32, [WIDTH, 1])?);
    let candidates = runtime.explain(probe, &RunOptions::default())?;
    let can = |device: &DeviceInfo| {
        candidates.iter().any(|candidate| candidate.device == device.id && candidate.prediction.is_some())
    };
    let device = runtime.devices().filter(can).min_by_key(|device| device.is_processor()).ok_or("no device")?.id;
    let shares = (0..WORKERS).map(|_| runtime.claim(device, Share::Part(1.0 / WORKERS as f32 - 0.01)));
    let shares = shares.collect::<Result<Vec<_>, _>>()?;
    let options = PoolOptions { workers: WORKERS, name: "rows".to_owned(), ..PoolOptions::default() };
    let pool = WorkerPool::start_on_devices(options, shares, |index| Rows { first: index * ROWS, rows: None })?;
    let asked = (0..WORKERS).map(|worker| pool.request_to(worker, vector.to_vec())).collect::<Result<Vec<_>, _>>()?;
    let answers = asked.into_iter().map(|reply| reply.wait()).collect::<Result<Vec<Best>, _>>()?;
    answers.into_iter().max_by(|a, b| a.product.total_cmp(&b.product)).ok_or_else(|| "no worker".into())
}
