//! Datasets of rows, and the batches of an epoch: shuffled by the seed, and prepared in advance by
//! a pipeline of the runtime.

use std::sync::Arc;

use panoply_core::{DType, Element, Tensor};
use panoply_pipeline::{Pipeline, Receiver, Running};

use crate::error::{Error, Result};
use crate::random::Random;

/// Number of batches that are prepared in advance.
const AHEAD: usize = 4;

/// Rows of several tensors that belong together, such as pictures and labels. All tensors have the
/// same first dimension.
#[derive(Clone, Debug)]
pub struct Dataset {
    tensors: Arc<[Tensor]>,
    rows: usize,
}

impl Dataset {
    /// Makes a dataset of these tensors, which must be on the host.
    pub fn new(tensors: Vec<Tensor>) -> Result<Dataset> {
        let rows = tensors.first().and_then(|tensor| tensor.shape().first().copied());
        let rows = rows.ok_or_else(|| Error::invalid("dataset: tensors", "at least one, with a row", "none"))?;
        if u32::try_from(rows).is_err() {
            return Err(Error::invalid("dataset: rows", format!("at most {}", u32::MAX), rows));
        }
        let mut whole = Vec::new();
        for tensor in tensors {
            if tensor.shape().first() != Some(&rows) {
                let got = format!("{:?}", tensor.shape().dims());
                return Err(Error::invalid("dataset: tensors", format!("{rows} rows in each"), got));
            }
            whole.push(tensor.contiguous()?);
        }
        Ok(Dataset { tensors: whole.into(), rows })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The tensors.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Splits the dataset into the rows before `row` and the others.
    pub fn split_at(&self, row: usize) -> Result<(Dataset, Dataset)> {
        let part = |start: usize, end: usize| {
            let cut = |tensor: &Tensor| tensor.slice(0, start, end);
            let tensors: Vec<Tensor> = self.tensors.iter().map(cut).collect::<panoply_core::Result<_>>()?;
            Dataset::new(tensors)
        };
        let row = row.min(self.rows);
        Ok((part(0, row)?, part(row, self.rows)?))
    }

    /// A batch of the rows with these indices.
    pub fn rows(&self, rows: &[u32]) -> Result<Vec<Tensor>> {
        self.tensors.iter().map(|tensor| picked(tensor, rows)).collect()
    }

    /// The order of rows in an epoch: random, and the same for the same seed and epoch.
    pub fn order(&self, seed: u64, epoch: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.rows as u32).collect();
        Random::new(seed, &format!("epoch {epoch}")).shuffle(&mut order);
        order
    }

    /// The batches of these rows, in order. They are made on other threads while earlier batches
    /// are used. The last batch may be smaller; with `whole_only` a smaller batch is left out.
    pub fn batches(&self, order: Vec<u32>, size: usize, whole_only: bool) -> Result<Batches> {
        if size == 0 {
            return Err(Error::invalid("dataset: batch", "at least one row", 0));
        }
        let pieces: Vec<Vec<u32>> =
            order.chunks(size).filter(|chunk| !whole_only || chunk.len() == size).map(<[u32]>::to_vec).collect();
        let count = pieces.len();
        let set = self.clone();
        let (pipeline, receiver) = Pipeline::builder()
            .source(pieces)
            .try_map("batch", move |rows: &Vec<u32>| set.rows(rows))
            .ring(AHEAD)
            .into_receiver();
        let running = pipeline.start().map_err(|error| Error::invalid("dataset: pipeline", "a start", error))?;
        Ok(Batches { running: Some(running), receiver, left: count })
    }
}

/// The batches of an epoch.
pub struct Batches {
    running: Option<Running<()>>,
    receiver: Receiver<Vec<Tensor>>,
    left: usize,
}

impl Iterator for Batches {
    type Item = Result<Vec<Tensor>>;

    fn next(&mut self) -> Option<Result<Vec<Tensor>>> {
        match self.receiver.recv() {
            Some(batch) => {
                self.left = self.left.saturating_sub(1);
                Some(Ok(batch))
            }
            None => {
                let failed = self.running.take()?.wait();
                let lost = std::mem::take(&mut self.left);
                (lost > 0).then(|| {
                    Err(Error::invalid(
                        "dataset: batches",
                        format!("{lost} more"),
                        format!("an end: {:?}", failed.result.err()),
                    ))
                })
            }
        }
    }
}

fn picked(tensor: &Tensor, rows: &[u32]) -> Result<Tensor> {
    match tensor.dtype() {
        DType::F32 => picked_as::<f32>(tensor, rows),
        DType::U32 => picked_as::<u32>(tensor, rows),
        DType::I32 => picked_as::<i32>(tensor, rows),
        DType::U8 => picked_as::<u8>(tensor, rows),
        DType::F16 => picked_as::<panoply_core::f16>(tensor, rows),
        DType::BF16 => picked_as::<panoply_core::bf16>(tensor, rows),
        other => Err(Error::invalid("dataset: element type", "f32, f16, bf16, i32, u32 or u8", other)),
    }
}

fn picked_as<T: Element>(tensor: &Tensor, rows: &[u32]) -> Result<Tensor> {
    let values = tensor.as_slice::<T>()?;
    let dims = tensor.shape().dims();
    let each: usize = dims[1..].iter().product();
    let mut picked = Vec::with_capacity(rows.len() * each);
    for row in rows {
        let start = *row as usize * each;
        let row = values.get(start..start + each);
        picked.extend_from_slice(
            row.ok_or_else(|| Error::invalid("dataset: a row", format!("one below {}", dims[0]), "a later one"))?,
        );
    }
    Ok(Tensor::from_vec(picked, [&[rows.len()], &dims[1..]].concat())?)
}
