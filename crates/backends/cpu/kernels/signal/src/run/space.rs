//! Memory that ops keep: plans, tables of codes, and decoders.

use std::sync::{Arc, Mutex, MutexGuard};

use panoply_core::op::signal::{Convolutional, Ldpc, ReedSolomon};
use panoply_core::{Error, Result};

use crate::ldpc::Graph;
use crate::level::Level;
use crate::reed_solomon::Code;
use crate::spectral::Plans;
use crate::viterbi::{Trellis, ViterbiMemory};

/// The memory that ops of whole signals keep from one to the next.
pub(super) struct Space {
    pub(super) level: Level,
    pub(super) plans: Plans,
    /// The tables of the last codes.
    code: Option<Arc<Code>>,
    trellis: Option<(Convolutional, Arc<Trellis>)>,
    graph: Option<Arc<Graph>>,
    /// The memory of decoders, one for each thread.
    decoders: Vec<Mutex<ViterbiMemory>>,
}

impl Space {
    /// An empty space.
    pub(super) fn new(level: Level) -> Space {
        Space { level, plans: Plans::default(), code: None, trellis: None, graph: None, decoders: Vec::new() }
    }

    /// Number of bytes that are kept between ops.
    pub(super) fn bytes(&self) -> usize {
        let own = |work: &Mutex<ViterbiMemory>| work.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).bytes();
        let graph = self.graph.as_ref().map_or(0, |graph| graph.bytes());
        self.decoders.iter().map(own).sum::<usize>() + self.plans.bytes() + graph
    }

    pub(super) fn code(&mut self, shape: ReedSolomon) -> Result<Arc<Code>> {
        if let Some(code) = self.code.as_ref().filter(|code| *code.shape() == shape) {
            return Ok(Arc::clone(code));
        }
        shape.check()?;
        let made = Code::new(self.level, shape);
        let code = Arc::new(made.ok_or_else(|| Error::invalid("reed-solomon", "a code", format!("{shape:?}")))?);
        self.code = Some(Arc::clone(&code));
        Ok(code)
    }

    pub(super) fn graph(&mut self, code: Ldpc) -> Result<Arc<Graph>> {
        if let Some(graph) = self.graph.as_ref().filter(|graph| graph.code() == code) {
            return Ok(Arc::clone(graph));
        }
        code.check()?;
        let made = Graph::new(self.level, code);
        let graph =
            Arc::new(made.ok_or_else(|| Error::invalid("ldpc", "a code with an encoder", format!("{code:?}")))?);
        self.graph = Some(Arc::clone(&graph));
        Ok(graph)
    }

    pub(super) fn trellis(&mut self, code: Convolutional) -> Arc<Trellis> {
        if let Some((_, trellis)) = self.trellis.as_ref().filter(|(known, _)| *known == code) {
            return Arc::clone(trellis);
        }
        let trellis = Arc::new(Trellis::new(self.level, code));
        self.trellis = Some((code, Arc::clone(&trellis)));
        trellis
    }

    /// The decoders' memory, with at least one entry for each thread.
    pub(super) fn decoders(&mut self, threads: usize) -> &[Mutex<ViterbiMemory>] {
        while self.decoders.len() < threads.max(1) {
            self.decoders.push(Mutex::default());
        }
        &self.decoders
    }
}

/// Locks an entry that no other thread uses. There is one entry for each thread, so one is free.
pub(super) fn free(decoders: &[Mutex<ViterbiMemory>], first: usize) -> MutexGuard<'_, ViterbiMemory> {
    let from = first % decoders.len();
    let free = decoders[from..].iter().chain(&decoders[..from]).find_map(|work| work.try_lock().ok());
    free.unwrap_or_else(|| decoders[from].lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}
