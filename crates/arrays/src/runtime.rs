//! Arrays on any device of the runtime. Outputs stay where they were computed. An op that ran on
//! another device than the chosen one is reported as a fallback.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use panoply_core::graph::{Dim, Graph};
use panoply_core::op::compute::{
    Attention, Conv2d, Conv2dBackwardInput, Gather, LayerNorm, Map, MatMul, Pool2d, Reduce, Softmax, Transfer,
};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Fallback, Location, Operation, Outcome, Tensor};
use panoply_runtime::{RunOptions, Runtime};

use crate::{ArrayOp, ComputeBackend};
use panoply_nn::random;
use panoply_nn::{Error, Result};

/// Number of fallbacks that are kept; the oldest are dropped first.
const FALLBACKS_MAX: usize = 256;
/// Number of mask graphs that are kept.
const MASKS_MAX: usize = 64;

/// A mask's shape, element type, probability and stream.
type MaskKey = (Vec<usize>, DType, u64, String);

/// The runtime as a compute backend. Clones share it.
#[derive(Clone)]
pub struct RuntimeBackend {
    runtime: Arc<Runtime>,
    options: RunOptions,
    fallbacks: Arc<Mutex<Vec<Fallback>>>,
    masks: Arc<Mutex<HashMap<MaskKey, Graph>>>,
}

impl RuntimeBackend {
    /// Leaves the choice of device for each op to the runtime.
    pub fn new(runtime: impl Into<Arc<Runtime>>) -> RuntimeBackend {
        RuntimeBackend::with_options(runtime, RunOptions::default())
    }

    /// Runs every op with these options.
    pub fn with_options(runtime: impl Into<Arc<Runtime>>, options: RunOptions) -> RuntimeBackend {
        RuntimeBackend { runtime: runtime.into(), options, fallbacks: Arc::default(), masks: Arc::default() }
    }

    /// The latest fallbacks: the device that was chosen first, and why it failed.
    pub fn fallbacks(&self) -> Vec<Fallback> {
        locked(&self.fallbacks).clone()
    }

    /// Number of ops that the devices have completed.
    #[cfg(test)]
    pub(crate) fn completed(&self) -> u64 {
        self.runtime.workers().iter().map(|worker| worker.counters.completed).sum()
    }

    pub(crate) fn run_op<O: Operation>(&self, op: O) -> Result<O::Output> {
        let Outcome { output, report } = self.runtime.run_with(op, self.options.clone()).with_report().wait()?;
        if let Some(fallback) = report.fallback {
            let mut kept = locked(&self.fallbacks);
            if kept.len() == FALLBACKS_MAX {
                kept.remove(0);
            }
            kept.push(fallback);
        }
        Ok(output)
    }

    /// The tensor in a contiguous layout.
    fn contiguous(&self, tensor: &Tensor) -> Result<Tensor> {
        if tensor.is_contiguous() {
            return Ok(tensor.clone());
        }
        self.run_op(Map::new(panoply_core::expr::Expr::input(0), &[tensor]))
    }

    fn mask(&self, like: &Tensor, keep: f64, seed: u32, stream: &str) -> Result<Tensor> {
        let key = (like.shape().to_vec(), like.dtype(), keep.to_bits(), stream.to_owned());
        let known = locked(&self.masks).get(&key).cloned();
        let graph = match known {
            Some(graph) => graph,
            None => {
                let mut g = Graph::builder("mask");
                let seed = g.input("seed", DType::U32, &[])?;
                let dims: Vec<Dim> = like.shape().iter().map(|size| Dim::fixed(*size)).collect();
                let mask = random::mask(&mut g, &dims, like.dtype(), keep, seed, stream)?;
                g.output("mask", mask)?;
                let graph = g.finish()?;
                let mut masks = locked(&self.masks);
                if masks.len() == MASKS_MAX {
                    masks.clear();
                }
                masks.insert(key, graph.clone());
                graph
            }
        };
        let made = self.run_op(RunGraph::new(&graph, &[&Tensor::scalar(seed)?]))?;
        made.into_iter().next().ok_or_else(|| Error::invalid("mask", "one tensor", "none"))
    }
}

impl ComputeBackend for RuntimeBackend {
    type Data = Tensor;

    fn name(&self) -> String {
        let devices: Vec<String> = self.runtime.devices().map(|device| device.id.to_string()).collect();
        format!("the runtime with {}", devices.join(", "))
    }

    fn upload(&self, tensor: Tensor) -> Result<Tensor> {
        Ok(tensor)
    }

    fn download(&self, data: &Tensor) -> Result<Tensor> {
        let there = match data.location() {
            Location::Host => data.clone(),
            Location::Device(_) => self.run_op(Transfer::to_host(data))?,
        };
        Ok(there.contiguous()?)
    }

    fn dims(&self, data: &Tensor) -> Vec<usize> {
        data.shape().to_vec()
    }

    fn run(&self, op: &ArrayOp, operands: &[&Tensor]) -> Result<Tensor> {
        let wrong = || Error::invalid("array: operands", "as many as the op has", operands.len());
        match (op, operands) {
            (ArrayOp::Map(program), _) => self.run_op(Map::with_program(program, operands)),
            (ArrayOp::Reshape(dims), [x]) => Ok(self.contiguous(x)?.reshape(dims)?),
            (ArrayOp::Permute(order), [x]) => Ok(x.permute(order)?),
            (ArrayOp::Slice { axis, start, end, step }, [x]) => Ok(x.slice_step(*axis, *start, *end, *step)?),
            (ArrayOp::Broadcast(dims), [x]) => Ok(x.broadcast_to(dims)?),
            (ArrayOp::Reduce(reduction, axes), [x]) => self.run_op(Reduce::new(x, *reduction).axes(axes).keep_dims()),
            (ArrayOp::MatMul { transpose_a, transpose_b }, [a, b]) => {
                let (transpose_a, transpose_b) = (*transpose_a, *transpose_b);
                self.run_op(MatMul { transpose_a, transpose_b, ..MatMul::new(a, b) })
            }
            (ArrayOp::Conv2d(options), [x, weights]) => self.run_op(Conv2d::new(x, weights).options(*options)),
            (ArrayOp::ConvTranspose2d(options, size), [x, weights]) => {
                self.run_op(Conv2dBackwardInput::new(x, weights, *size).options(*options))
            }
            (ArrayOp::Pool2d { kind, kernel, stride, padding }, [x]) => {
                let pool = Pool2d { kind: *kind, ..Pool2d::max(x, *kernel) };
                self.run_op(pool.stride(*stride).padding(*padding))
            }
            (ArrayOp::Softmax { axis, is_log }, [x]) => {
                self.run_op(Softmax { is_log: *is_log, ..Softmax::new(x).axis(*axis) })
            }
            (ArrayOp::LayerNorm { epsilon }, [x, weight, bias]) => {
                self.run_op(LayerNorm::new(x).weight(weight).bias(bias).epsilon(*epsilon))
            }
            (ArrayOp::Gather, [table, indices]) => self.run_op(Gather::new(table, indices, 0)),
            (ArrayOp::Attention { is_causal }, [q, k, v]) => {
                self.run_op(Attention { is_causal: *is_causal, ..Attention::new(q, k, v) })
            }
            (ArrayOp::Mask { keep, seed, stream }, [x]) => self.mask(x, *keep, *seed, stream),
            _ => Err(wrong()),
        }
    }
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
