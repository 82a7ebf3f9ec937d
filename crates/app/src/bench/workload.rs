//! From a case to something that can be run: its inputs are made once, and put into the device's memory where it has its
//! own; its op is sent again and again.

use std::collections::VecDeque;
use std::time::Duration;

use panoply::backend::PartMut;
use panoply::prelude::*;
use panoply::vector::{Collection, Options, Residency, Schema, SearchOptions, Storage};
use panoply::{Describe, DeviceId, DeviceInfo};

use super::cases::{SEARCHES_PER_CALLER, Work};
use super::random::Normals;

/// Runs the op once, to the end, and drops its output. Tells how long the device itself worked, where it can.
pub type Runner = Box<dyn Fn() -> panoply::Result<Option<Duration>>>;

/// Every case draws its inputs from the same sequence.
const SEED: u64 = 7;
/// Batches that are under way at once in an overlapped stream.
const STREAM_DEPTH: usize = 6;
/// Small ops that are under way at once.
const MANY_DEPTH: usize = 256;

/// Where a case runs.
#[derive(Clone)]
pub struct Place {
    pub runtime: std::sync::Arc<Runtime>,
    pub device: DeviceId,
}

/// Makes the inputs of a case.
pub fn prepare(work: &Work, place: &Place) -> panoply::Result<Runner> {
    let mut normals = Normals::new(SEED);
    match *work {
        Work::MatMul { product, size } => {
            let dtype = product.dtype();
            let (a, b) = (normals.tensor_of(dtype, [size, size])?, normals.tensor_of(dtype, [size, size])?);
            let tf32 = product == super::cases::Product::Tf32;
            place.repeat(MatMul::new(&a, &b).precision(if tf32 { Precision::Tf32 } else { Precision::Full }))
        }
        Work::LinearRelu { dtype, size } => {
            let (a, b) = (normals.tensor_of(dtype, [size, size])?, normals.tensor_of(dtype, [size, size])?);
            let bias = normals.tensor_of(dtype, [size])?;
            place.repeat(MatMul::new(&a, &b).transpose_b().bias(&bias).activation(Activation::Relu))
        }
        Work::Add { elements } => place.repeat(Map::add(&normals.tensor([elements])?, &normals.tensor([elements])?)),
        Work::Adds { elements, count } => place.many(&normals.tensor([elements])?, &normals.tensor([elements])?, count),
        Work::ScaleAddRelu { elements } => {
            let (x, y) = (normals.tensor([elements])?, normals.tensor([elements])?);
            place.repeat(Map::new((Expr::input(0) * 2.0 + Expr::input(1)).relu(), &[&x, &y]))
        }
        Work::Sum { elements } => place.repeat(Reduce::sum(&normals.tensor([elements])?)),
        Work::RunningSum { elements } => place.repeat(Scan::sum(&normals.tensor([elements])?)),
        Work::Sort { elements } => place.repeat(Sort::new(&normals.tensor([elements])?)),
        Work::Softmax { rows, columns } => place.repeat(Softmax::new(&normals.tensor([rows, columns])?)),
        Work::LayerNorm { rows, columns } => place.repeat(LayerNorm::new(&normals.tensor([rows, columns])?)),
        Work::Transpose { rows, columns } => place.repeat(Transpose::new(&normals.tensor([rows, columns])?)),
        Work::TopK { rows, columns, k } => place.repeat(TopK::new(&normals.tensor([rows, columns])?, k)),
        Work::Conv2d { dtype, batch, channels, side, kernel } => {
            let images = normals.tensor_of(dtype, [batch, channels, side, side])?;
            let weights = normals.tensor_of(dtype, [channels, channels, kernel, kernel])?;
            place.repeat(Conv2d::new(&images, &weights).padding([kernel / 2; 4]))
        }
        Work::Resize { batch, channels, height, width, side } => {
            place.repeat(Resize::new(&normals.tensor([batch, channels, height, width])?, side, side))
        }
        Work::Search { dtype, rows, dims, queries, k } => {
            let (rows, queries) = (normals.tensor_of(dtype, [rows, dims])?, normals.tensor_of(dtype, [queries, dims])?);
            place.repeat(Search::new(&rows, &queries, Metric::Dot, k))
        }
        Work::Fft { lines, len } => place.repeat(Fft::new(&normals.tensor_of(DType::Complex64, [lines, len])?)),
        Work::Collection { dtype, rows, dims, queries, k } => {
            let collection = place.collection(dtype, rows, dims, &mut normals)?;
            let (query, options) = (normals.values(queries * dims), SearchOptions::new(k));
            Ok(Box::new(move || {
                let found = match queries {
                    1 => collection.search(&query, &options).map(drop),
                    _ => collection.search_many(&query, &options).map(drop),
                };
                found.map(|()| None).map_err(outside)
            }))
        }
        Work::Callers { rows, dims, callers, k } => {
            let collection = place.collection(DType::F32, rows, dims, &mut normals)?;
            let (queries, options) = (normals.values(callers * dims), SearchOptions::new(k));
            Ok(Box::new(move || search_side_by_side(&collection, &queries, dims, &options).map(|()| None)))
        }
        Work::Upload { pinned, bytes } => place.upload(pinned, bytes),
        Work::Download { bytes } => place.download(bytes),
        Work::Stream { overlapped, batches, bytes } => place.stream(overlapped, batches, bytes),
    }
}

/// Every query in a thread of its own, again and again.
fn search_side_by_side(
    collection: &Collection,
    queries: &[f32],
    dims: usize,
    options: &SearchOptions,
) -> panoply::Result<()> {
    std::thread::scope(|scope| {
        let search = |query| (0..SEARCHES_PER_CALLER).try_for_each(|_| collection.search(query, options).map(drop));
        let callers: Vec<_> = queries.chunks(dims).map(|query| scope.spawn(move || search(query))).collect();
        for caller in callers {
            let searched = caller.join().map_err(|_| panoply::Error::invalid("a caller", "an end", "a panic"))?;
            searched.map_err(outside)?;
        }
        Ok(())
    })
}

/// An error of the collection as one of the runtime's.
fn outside(error: panoply::vector::Error) -> panoply::Error {
    panoply::Error::invalid("the collection", "an answer", error)
}

impl Place {
    /// A collection in memory, with its rows on the device where that has memory of its own.
    fn collection(&self, dtype: DType, rows: usize, dims: usize, normals: &mut Normals) -> panoply::Result<Collection> {
        let storage = if dtype == DType::F16 { Storage::F16 } else { Storage::F32 };
        let schema = Schema::new("bench", dims, Metric::Dot).storage(storage);
        let shares = |device: &DeviceInfo| device.id == self.device && device.shares_host_memory;
        let residency = match self.runtime.devices().any(shares) {
            true => Residency::Host,
            false => Residency::Devices(vec![self.device]),
        };
        // One segment, so that a search is one op.
        let segment_bytes_max = 2 * rows * dims * dtype.size_bytes();
        let options = Options { residency, segment_bytes_max, ..Options::default() };
        let collection = Collection::in_memory(&*self.runtime, schema, options).map_err(outside)?;
        let batch = 100_000.min(rows);
        for first in (0..rows).step_by(batch) {
            let count = batch.min(rows - first);
            let ids: Vec<String> = (first..first + count).map(|row| row.to_string()).collect();
            collection.insert_many(&ids, &normals.values(count * dims), &[]).map_err(outside)?;
        }
        collection.compact().map_err(outside)?;
        collection.make_resident().map_err(outside)?;
        Ok(collection)
    }

    fn run<O: Operation>(&self, op: O) -> Pending<O::Output> {
        self.runtime.run_with(op, RunOptions { device: Some(self.device), ..RunOptions::default() })
    }

    /// The tensor in the device's own memory; on a device that computes in the host's, the tensor itself.
    fn resident(&self, tensor: &Tensor) -> panoply::Result<Tensor> {
        self.run(Transfer::to_device(tensor, self.device)).wait()
    }

    fn repeat<O: Operation + Describe + Clone>(&self, mut op: O) -> panoply::Result<Runner> {
        let mut failure = None;
        op.for_each_part_mut(&mut |part| {
            if let PartMut::Tensor(tensor) = part {
                match self.resident(tensor) {
                    Ok(resident) => *tensor = resident,
                    Err(error) => failure = Some(error),
                }
            }
        });
        if let Some(error) = failure {
            return Err(error);
        }
        let place = self.clone();
        Ok(Box::new(move || Ok(place.run(op.clone()).with_report().wait()?.report.device_time)))
    }

    fn many(&self, x: &Tensor, y: &Tensor, count: usize) -> panoply::Result<Runner> {
        let (place, op) = (self.clone(), Map::add(&self.resident(x)?, &self.resident(y)?));
        Ok(Box::new(move || {
            let mut under_way: VecDeque<Pending<Tensor>> = VecDeque::with_capacity(MANY_DEPTH);
            for _ in 0..count {
                if under_way.len() >= MANY_DEPTH
                    && let Some(first) = under_way.pop_front()
                {
                    first.wait()?;
                }
                under_way.push_back(place.run(op.clone()));
            }
            under_way.into_iter().try_for_each(|last| last.wait().map(drop))?;
            Ok(None)
        }))
    }

    /// Pinned memory is what the device itself downloads into.
    fn upload(&self, pinned: bool, bytes: usize) -> panoply::Result<Runner> {
        let mut source = Tensor::from_vec(vec![1.0_f32; bytes / 4], [bytes / 4])?;
        if pinned {
            source = self.run(Transfer::to_host(&self.resident(&source)?)).wait()?;
        }
        let place = self.clone();
        Ok(Box::new(move || {
            let op = Transfer::to_device(&source, place.device);
            Ok(place.run(op).with_report().wait()?.report.transferred)
        }))
    }

    fn download(&self, bytes: usize) -> panoply::Result<Runner> {
        let source = self.resident(&Tensor::from_vec(vec![1.0_f32; bytes / 4], [bytes / 4])?)?;
        let place = self.clone();
        Ok(Box::new(move || Ok(place.run(Transfer::to_host(&source)).with_report().wait()?.report.transferred)))
    }

    fn stream(&self, overlapped: bool, batches: usize, bytes: usize) -> panoply::Result<Runner> {
        let plain = Tensor::from_vec(vec![1.5_f32; bytes / 4], [bytes / 4])?;
        let source = self.run(Transfer::to_host(&self.resident(&plain)?)).wait()?;
        let (place, depth) = (self.clone(), if overlapped { STREAM_DEPTH } else { 1 });
        let expr = (Expr::input(0) * 2.0 + 1.0).relu().finish().map_err(panoply::Error::Expression)?;
        Ok(Box::new(move || {
            let mut maps = VecDeque::new();
            let mut downloads = VecDeque::new();
            for batch in 0..batches + depth {
                if batch < batches {
                    maps.push_back(place.run(Map::with_program(&expr, &[&source])));
                }
                if (maps.len() >= depth || batch >= batches)
                    && let Some(map) = maps.pop_front()
                {
                    downloads.push_back(place.run(Transfer::to_host(&map.wait()?)));
                }
                while downloads.len() >= depth || (batch + 1 == batches + depth && !downloads.is_empty()) {
                    if let Some(download) = downloads.pop_front() {
                        download.wait()?;
                    }
                }
            }
            Ok(None)
        }))
    }
}
