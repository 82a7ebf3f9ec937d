//! A small network that was written with `ndarray` alone, and the same network over any backend:
//! `cargo run -p panoply-arrays --example ported`.
//!
//! Two layers separate points inside a ring from those around it, with gradients written by hand.
//! In the port every line has its counterpart: arrays belong to a backend, and operations that can
//! fail return a `Result`.

#![allow(dead_code)] // A test includes this file and has a `main` of its own.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use panoply_arrays::{ComputeBackend, FusedBackend, HostBackend, RuntimeBackend};
use panoply_nn::random::Random;

/// Number of neurons in the hidden layer, number of points, and the learning rate.
const HIDDEN: usize = 16;
const POINTS: usize = 64;
const RATE: f32 = 0.5;

/// The original network, with `ndarray` alone.
mod before {
    use ndarray::{Array1, Array2, Axis};

    pub struct Network {
        pub w1: Array2<f32>,
        pub b1: Array1<f32>,
        pub w2: Array2<f32>,
        pub b2: Array1<f32>,
    }

    impl Network {
        /// Makes one step of gradient descent on the mean squared error. Returns the loss before
        /// the step.
        pub fn step(&mut self, x: &Array2<f32>, wanted: &Array2<f32>, rate: f32) -> f32 {
            let hidden = (x.dot(&self.w1) + &self.b1).mapv(f32::tanh);
            let y = (hidden.dot(&self.w2) + &self.b2).mapv(|z| 1.0 / (1.0 + (-z).exp()));
            let error = &y - wanted;
            let loss = error.mapv(|e| e * e).mean().unwrap_or(0.0);
            let dz2 = &error * &y.mapv(|y| y * (1.0 - y)) * (2.0 / error.len() as f32);
            let dz1 = dz2.dot(&self.w2.t()) * hidden.mapv(|h| 1.0 - h * h);
            self.w2 = &self.w2 - &(hidden.t().dot(&dz2) * rate);
            self.b2 = &self.b2 - &(dz2.sum_axis(Axis(0)) * rate);
            self.w1 = &self.w1 - &(x.t().dot(&dz1) * rate);
            self.b1 = &self.b1 - &(dz1.sum_axis(Axis(0)) * rate);
            loss
        }
    }
}

/// The same network over any backend.
mod after {
    use panoply_arrays::{Array1, Array2, ComputeBackend};
    use panoply_nn::Result;

    pub struct Network<B: ComputeBackend> {
        pub w1: Array2<B>,
        pub b1: Array1<B>,
        pub w2: Array2<B>,
        pub b2: Array1<B>,
    }

    impl<B: ComputeBackend> Network<B> {
        /// Takes over the weights of the original network.
        pub fn of(backend: &B, from: &super::before::Network) -> Result<Network<B>> {
            Ok(Network {
                w1: Array2::from_ndarray(backend, from.w1.clone())?,
                b1: Array1::from_ndarray(backend, from.b1.clone())?,
                w2: Array2::from_ndarray(backend, from.w2.clone())?,
                b2: Array1::from_ndarray(backend, from.b2.clone())?,
            })
        }

        /// Makes one step of gradient descent on the mean squared error. Returns the loss before
        /// the step.
        pub fn step(&mut self, x: &Array2<B>, wanted: &Array2<B>, rate: f32) -> Result<f32> {
            let rate = f64::from(rate);
            let hidden = x.matmul(&self.w1)?.add(&self.b1)?.tanh()?;
            let y = hidden.matmul(&self.w2)?.add(&self.b2)?.sigmoid()?;
            let error = y.sub(wanted)?;
            let loss = y.squared_error(wanted)?;
            let [rows, outputs] = error.shape();
            let count = (rows * outputs) as f64;
            let dz2 = error.zip(&y, |error, y| error * (y.clone() * (1.0 - y)) * (2.0 / count))?;
            let dz1 = dz2.matmul(&self.w2.transpose()?)?.zip(&hidden, |g, h| g * (1.0 - h.clone() * h))?;
            self.w2 = self.w2.sub(&hidden.transpose()?.matmul(&dz2)?.scale(rate)?)?;
            self.b2 = self.b2.sub(&dz2.sum(0)?.reshape(self.b2.shape())?.scale(rate)?)?;
            self.w1 = self.w1.sub(&x.transpose()?.matmul(&dz1)?.scale(rate)?)?;
            self.b1 = self.b1.sub(&dz1.sum(0)?.reshape(self.b1.shape())?.scale(rate)?)?;
            Ok(loss)
        }
    }
}

/// The points, whether each is inside the ring, and an untrained network.
fn start() -> (ndarray::Array2<f32>, ndarray::Array2<f32>, before::Network) {
    let mut random = Random::new(7, "ring");
    let x = ndarray::Array2::from_shape_fn((POINTS, 2), |_| random.normal());
    let inside = |row: ndarray::ArrayView1<'_, f32>| if row.dot(&row) < 1.2 { 1.0 } else { 0.0 };
    let wanted = ndarray::Array2::from_shape_fn((POINTS, 1), |(row, _)| inside(x.row(row)));
    let mut weights = |rows, columns| ndarray::Array2::from_shape_fn((rows, columns), |_| random.normal());
    let (w1, w2) = (weights(2, HIDDEN), weights(HIDDEN, 1));
    (x, wanted, before::Network { w1, b1: ndarray::Array1::zeros(HIDDEN), w2, b2: ndarray::Array1::zeros(1) })
}

/// The losses of `steps` steps with `ndarray` alone.
pub fn losses_before(steps: usize) -> Vec<f32> {
    let (x, wanted, mut network) = start();
    (0..steps).map(|_| network.step(&x, &wanted, RATE)).collect()
}

/// The losses of `steps` steps on a backend.
pub fn losses_after<B: ComputeBackend>(backend: &B, steps: usize) -> panoply_nn::Result<Vec<f32>> {
    use panoply_arrays::Array2;
    let (x, wanted, network) = start();
    let mut network = after::Network::of(backend, &network)?;
    let (x, wanted) = (Array2::from_ndarray(backend, x)?, Array2::from_ndarray(backend, wanted)?);
    (0..steps).map(|_| network.step(&x, &wanted, RATE)).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = panoply_runtime::Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build()?;
    let runtime = Arc::new(runtime);
    let (on_devices, fused) = (RuntimeBackend::new(Arc::clone(&runtime)), FusedBackend::new(runtime));
    let timed = |losses: &mut dyn FnMut() -> panoply_nn::Result<Vec<f32>>| {
        let start = Instant::now();
        losses().map(|losses| (losses, start.elapsed() / 200))
    };
    let (devices, each) = timed(&mut || losses_after(&on_devices, 200))?;
    let (graphs, each_fused) = timed(&mut || losses_after(&fused, 200))?;
    println!("a step takes {each:?} op by op, and {each_fused:?} as fused graphs");
    let all = [losses_before(200), losses_after(&HostBackend::new(), 200)?, devices, graphs];
    println!("step   ndarray   host backend   devices   fused");
    for step in (0..200).step_by(40).chain([199]) {
        let [ndarray, host, devices, graphs] = [0, 1, 2, 3].map(|place| all[place][step]);
        println!("{step:4}   {ndarray:.5}   {host:.5}        {devices:.5}   {graphs:.5}");
    }
    Ok(())
}
