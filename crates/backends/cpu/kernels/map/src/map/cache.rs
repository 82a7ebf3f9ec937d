//! Compiled plans, cached for later ops with the same program and dtypes.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use panoply_core::expr::{INPUTS_MAX, Program};
use panoply_core::{DType, Error, Result};

use super::plan::MapPlan;
use crate::simd::Simd;

/// Maximum number of cached plans. If it is exceeded, the cache is cleared, and each plan still in
/// use is compiled again.
const PLANS_MAX: usize = 1024;

/// The engine's plan cache.
#[derive(Default)]
pub struct PlanCache {
    plans: HashMap<u64, Arc<MapPlan>, BuildHasherDefault<Identity>>,
}

impl PlanCache {
    /// The plan of a program for inputs of these dtypes, compiled if it is not cached.
    pub fn get(&mut self, program: &Program, inputs: impl Iterator<Item = DType>, simd: Simd) -> Result<Arc<MapPlan>> {
        let simd = simd.min(Simd::detect());
        let mut dtypes = [DType::F32; INPUTS_MAX as usize];
        let mut count = 0;
        for dtype in inputs {
            *dtypes.get_mut(count).ok_or_else(|| too_many_inputs(count + 1))? = dtype;
            count += 1;
        }
        let dtypes = &dtypes[..count];
        let key = key_of(program, dtypes, simd);
        if let Some(plan) = self.plans.get(&key)
            && plan.simd == simd
            && plan.input_dtypes == dtypes
            && plan.program == *program
        {
            return Ok(Arc::clone(plan));
        }
        if self.plans.len() >= PLANS_MAX {
            self.plans.clear();
        }
        let plan = Arc::new(MapPlan::compile(program, dtypes, simd)?);
        self.plans.insert(key, Arc::clone(&plan));
        Ok(plan)
    }
}

fn too_many_inputs(got: usize) -> Error {
    Error::invalid("map inputs", format!("at most {INPUTS_MAX}"), got)
}

fn key_of(program: &Program, dtypes: &[DType], simd: Simd) -> u64 {
    let start = program.hash() ^ simd as u64;
    dtypes.iter().fold(start, |key, dtype| (key.rotate_left(5) ^ *dtype as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}
