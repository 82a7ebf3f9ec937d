//! Iir: parallel in time. Lines are cut into chunks; what one leaves behind is found by a scan with powers of the matrix that a chunk moves a
//! state by. A filter that grows beyond numbers within a line is not cut: a thread has the whole line.

use panoply_core::op::signal::{Biquad, Iir};
use panoply_core::{DType, Result, Support, Value};
use panoply_kernels::c::{IIR, Kernel};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::ops::messages::place_plain;

/// The most sections that a kernel keeps in registers.
const SECTIONS_MAX: usize = 8;
const CHUNK_THREADS: usize = 128;
const CHUNK_SAMPLES: usize = 256;
/// Threads of a scan: of a line of few chunks, and of many.
const SCAN_THREADS: [usize; 2] = [32, 256];
/// From so many chunks on a line has many.
const CHUNKS_MANY: usize = 512;
/// What an entry of a matrix may be at most: products of such numbers are numbers.
const GROWTH_MAX: f64 = 1e100;

pub(super) fn supports(op: &Iir) -> Support {
    match op.sections.len() {
        0..=SECTIONS_MAX => Support::Yes,
        count => Support::No(format!("it filters with at most {SECTIONS_MAX} sections, not {count}")),
    }
}

pub(super) fn run(op: &Iir, context: &mut Context) -> Result<Value> {
    let shape = *op.input.shape();
    let output = context.output(op.input.dtype(), shape)?;
    if shape.elements() > 0 {
        let (source, target) = (context.input(&op.input)?, output.address);
        let step = if op.input.dtype() == DType::Complex64 { 2 } else { 1 };
        let len = shape.last().copied().unwrap_or(1);
        let plan = Plan::new(&op.sections, shape.elements() / len * step, len, step);
        plan.run(&op.sections, target, source, context)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// How lines are cut, and what is needed to put them together.
struct Plan {
    lines: usize,
    len: usize,
    step: usize,
    chunk: usize,
    chunks: usize,
    scan_threads: usize,
    /// What a chunk does to a state; what all chunks of a thread of the scan do, twice as many, and so on.
    matrices: Vec<Matrix>,
}

impl Plan {
    fn new(sections: &[Biquad], lines: usize, len: usize, step: usize) -> Plan {
        let chunks = len.div_ceil(CHUNK_SAMPLES);
        let scan_threads = SCAN_THREADS[usize::from(chunks >= CHUNKS_MANY)];
        let whole = Plan { lines, len, step, chunk: len, chunks: 1, scan_threads, matrices: Vec::new() };
        if chunks == 1 {
            return whole;
        }
        let by_chunk = Matrix::of(sections).power(CHUNK_SAMPLES);
        let mut by_run = by_chunk.power(chunks.div_ceil(scan_threads));
        let mut matrices = vec![by_chunk];
        for _ in 0..scan_threads.ilog2() {
            matrices.push(by_run.clone());
            by_run = by_run.times(&by_run);
        }
        if matrices.iter().any(|matrix| !matrix.is_bounded()) {
            return whole;
        }
        Plan { chunk: CHUNK_SAMPLES, chunks, matrices, ..whole }
    }

    fn run(&self, sections: &[Biquad], target: Address, source: Address, context: &mut Context) -> Result<()> {
        let weights: Vec<f64> = sections.iter().flat_map(|one| one.b.into_iter().chain(one.a)).collect();
        let weights = place(&weights, context)?;
        let kernel = |entry| Kernel::new(IIR, entry).integer("SECTIONS", sections.len() as i64);
        let count = self.lines * self.chunks;
        let state = 2 * sections.len();
        let states = if self.chunks > 1 { context.scratch(count * state * 8)? } else { Address::NULL };
        let pass = |has_states: bool, is_last: bool, context: &mut Context| {
            let cut = [self.lines, self.len, self.step, self.chunk, self.chunks].map(|value| value as u64);
            let arguments = Arguments::new().address(target).address(source).address(weights).address(states);
            let mut arguments = arguments.structure(&cut).u32(u32::from(has_states)).u32(u32::from(is_last));
            let launch = Launch::new(count.div_ceil(CHUNK_THREADS), CHUNK_THREADS);
            context.launch(&kernel("iir_chunks"), launch, &mut arguments)
        };
        if self.chunks > 1 {
            pass(false, false, context)?;
            let entries: Vec<f64> = self.matrices.iter().flat_map(|matrix| matrix.entries.iter().copied()).collect();
            let matrices = place(&entries, context)?;
            let run = self.chunks.div_ceil(self.scan_threads);
            let mut arguments = Arguments::new().address(states).address(matrices).u64(self.chunks as u64).size(run);
            context.launch(&kernel("iir_scan"), Launch::new(self.lines, self.scan_threads), &mut arguments)?;
        }
        pass(self.chunks > 1, true, context)
    }
}

fn place(numbers: &[f64], context: &mut Context) -> Result<Address> {
    place_plain(bytemuck::cast_slice(numbers), context)
}

/// What some samples of silence do to a state of all sections, two numbers for each.
#[derive(Clone)]
struct Matrix {
    size: usize,
    /// Row after row.
    entries: Vec<f64>,
}

impl Matrix {
    /// Of one sample.
    fn of(sections: &[Biquad]) -> Matrix {
        let size = 2 * sections.len();
        let mut entries = vec![0.0; size * size];
        for column in 0..size {
            let mut z = vec![0.0; size];
            z[column] = 1.0;
            let mut x = 0.0;
            for (section, z) in sections.iter().zip(z.chunks_exact_mut(2)) {
                let y = section.b[0] * x + z[0];
                (z[0], z[1]) = (section.b[1] * x - section.a[0] * y + z[1], section.b[2] * x - section.a[1] * y);
                x = y;
            }
            z.iter().enumerate().for_each(|(row, value)| entries[row * size + column] = *value);
        }
        Matrix { size, entries }
    }

    fn times(&self, other: &Matrix) -> Matrix {
        let size = self.size;
        let mut entries = vec![0.0; size * size];
        for row in 0..size {
            for inner in 0..size {
                let weight = self.entries[row * size + inner];
                for column in 0..size {
                    entries[row * size + column] += weight * other.entries[inner * size + column];
                }
            }
        }
        Matrix { size, entries }
    }

    fn power(&self, mut exponent: usize) -> Matrix {
        let mut entries = vec![0.0; self.size * self.size];
        entries.iter_mut().step_by(self.size + 1).for_each(|entry| *entry = 1.0);
        let (mut result, mut square) = (Matrix { size: self.size, entries }, self.clone());
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = result.times(&square);
            }
            square = square.times(&square);
            exponent >>= 1;
        }
        result
    }

    fn is_bounded(&self) -> bool {
        self.entries.iter().all(|entry| entry.abs() < GROWTH_MAX)
    }
}
