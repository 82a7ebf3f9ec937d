//! Shared by the tests: a runtime, folders, pseudo-random numbers, and the plain answer to a
//! search.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(dead_code)] // Each test file uses a part of this module.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;
use panoply_vector::{Metric, Storage};

/// One runtime with the CPU for all tests of a file.
pub fn runtime() -> Arc<Runtime> {
    static RUNTIME: OnceLock<Arc<Runtime>> = OnceLock::new();
    let build = || Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap());
    Arc::clone(RUNTIME.get_or_init(build))
}

/// A folder that is deleted at the end of the test.
pub struct TempFolder(pub PathBuf);

impl TempFolder {
    /// A path at which nothing exists yet.
    pub fn new(name: &str) -> TempFolder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("panoply-vector-{name}-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        TempFolder(path)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A pseudo-random generator with a fixed sequence for each seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Approximately normally distributed.
    pub fn normal(&mut self) -> f32 {
        let uniform = |bits: u64| (bits >> 40) as f32 / (1_u64 << 24) as f32;
        (0..6).map(|_| uniform(self.next())).sum::<f32>() - 3.0
    }

    pub fn vectors(&mut self, count: usize, dimension: usize) -> Vec<f32> {
        (0..count * dimension).map(|_| self.normal()).collect()
    }
}

/// Ids in order: `v0`, `v1`, …
pub fn ids(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|index| format!("v{index}")).collect()
}

/// The score of two vectors.
pub fn score(metric: Metric, a: &[f32], b: &[f32]) -> f64 {
    let sum = |term: fn(f64, f64) -> f64| -> f64 { a.iter().zip(b).map(|(a, b)| term((*a).into(), (*b).into())).sum() };
    match metric {
        Metric::Dot => sum(|a, b| a * b),
        Metric::Cosine => sum(|a, b| a * b) / (sum(|a, _| a * a) * sum(|_, b| b * b)).sqrt(),
        Metric::Euclidean => sum(|a, b| (a - b) * (a - b)).sqrt(),
    }
}

/// Tolerance of a stored score, relative to the size of the numbers.
pub fn tolerance(storage: Storage) -> f64 {
    match storage {
        Storage::F32 => 1.0e-5,
        Storage::F16 => 2.0e-3,
        Storage::Bf16 => 1.5e-2,
        Storage::I8 => 3.0e-2,
    }
}
