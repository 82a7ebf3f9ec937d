//! Iir: parallel in time. Lines are split into chunks; a scan with powers of the matrix by which a
//! chunk advances a state computes the state at the start of each chunk. A filter whose state would
//! overflow within a line is not split: one thread processes the whole line.

use panoply_core::op::signal::{Biquad, Iir};
use panoply_core::{DType, Result, Support, Value};
use panoply_kernels::c::{IIR, Kernel};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};

/// Maximum number of sections that a kernel keeps in registers.
const SECTIONS_MAX: usize = 8;
const CHUNK_THREADS: usize = 128;
/// Possible samples per chunk, and threads per multiprocessor: chunks are the longest that give
/// that many threads.
const CHUNK_SAMPLES: [usize; 3] = [512, 256, 128];
const MULTIPROCESSOR_THREADS: usize = 512;
/// Threads of a scan, and maximum chunks per scan block; longer lines are scanned in parts of that
/// size.
const SCAN_THREADS: usize = 32;
const PART_CHUNKS: usize = 128;
/// Maximum magnitude of a matrix entry, so that products of such entries stay finite.
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
        let plan = IirPlan::new(&op.sections, [shape.elements() / len * step, len, step], context.multiprocessors());
        plan.run(&op.sections, target, source, context)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// The division of lines into chunks, and the matrices that connect the chunks.
struct IirPlan {
    lines: usize,
    len: usize,
    step: usize,
    chunk: usize,
    chunks: usize,
    /// Number of parts of a line that are scanned separately; 1 if the line is scanned as a whole.
    parts: usize,
    /// Matrices for the scan of chunks, and of parts if there are several: the effect on a state of
    /// one, of all those of one scan thread, of twice as many, and so on.
    by_chunks: Vec<Matrix>,
    by_parts: Vec<Matrix>,
}

impl IirPlan {
    fn new(sections: &[Biquad], [lines, len, step]: [usize; 3], multiprocessors: usize) -> IirPlan {
        let enough =
            |samples: &usize| lines.saturating_mul(len.div_ceil(*samples)) >= multiprocessors * MULTIPROCESSOR_THREADS;
        let chunk = CHUNK_SAMPLES.into_iter().find(enough).unwrap_or(CHUNK_SAMPLES[CHUNK_SAMPLES.len() - 1]);
        let whole =
            IirPlan { lines, len, step, chunk: len, chunks: 1, parts: 1, by_chunks: Vec::new(), by_parts: Vec::new() };
        let chunks = len.div_ceil(chunk);
        if chunks == 1 {
            return whole;
        }
        let by_chunk = Matrix::of(sections).power(chunk);
        let parts = chunks.div_ceil(PART_CHUNKS);
        let by_parts =
            if parts > 1 { powers(by_chunk.power(PART_CHUNKS), parts.div_ceil(SCAN_THREADS)) } else { Vec::new() };
        let by_chunks = powers(by_chunk, chunks.min(PART_CHUNKS).div_ceil(SCAN_THREADS));
        if by_chunks.iter().chain(&by_parts).any(|matrix| !matrix.is_bounded()) {
            return whole;
        }
        IirPlan { chunk, chunks, parts, by_chunks, by_parts, ..whole }
    }

    fn run(&self, sections: &[Biquad], target: Address, source: Address, context: &mut Context) -> Result<()> {
        let (b, a) = (sections.iter().flat_map(|one| one.b), sections.iter().flat_map(|one| one.a));
        let weights: Vec<u64> = b.chain(a).map(f64::to_bits).collect();
        let kernel = |entry| Kernel::new(IIR, entry).integer("SECTIONS", sections.len() as i64);
        let count = self.lines * self.chunks;
        let state = 2 * sections.len();
        let states = if self.chunks > 1 { context.scratch(count * state * 8)? } else { Address::NULL };
        let pass = |has_states: bool, is_last: bool, context: &mut Context| {
            let cut = [self.lines, self.len, self.step, self.chunk, self.chunks].map(|value| value as u64);
            let arguments = Arguments::new().address(target).address(source).address(states);
            let arguments = arguments.structure(&weights).structure(&cut);
            let mut arguments = arguments.u32(u32::from(has_states)).u32(u32::from(is_last));
            let launch = Launch::new(count.div_ceil(CHUNK_THREADS), CHUNK_THREADS);
            context.launch(&kernel("iir_chunks"), launch, &mut arguments)
        };
        if self.chunks == 1 {
            return pass(false, true, context);
        }
        pass(false, false, context)?;
        let by_chunks = place(&self.by_chunks, context)?;
        let parts = match self.parts {
            1 => Address::NULL,
            parts => context.scratch(self.lines * parts * state * 8)?,
        };
        // Arguments: states, matrices, the parts' start or end states; chunks of a line and of a
        // part; whether only the end of a part is wanted.
        let scan = |states, matrices, parts, [chunks, part]: [usize; 2], is_sum: bool, context: &mut Context| {
            let line = [chunks, chunks.div_ceil(part), part];
            let arguments = Arguments::new().address(states).address(matrices).address(parts);
            let arguments = arguments.structure(&line.map(|value| value as u64)).size(part.div_ceil(SCAN_THREADS));
            let mut arguments = arguments.u32(u32::from(parts != Address::NULL)).u32(u32::from(is_sum));
            context.launch(&kernel("iir_scan"), Launch::new(self.lines * line[1], SCAN_THREADS), &mut arguments)
        };
        if self.parts == 1 {
            scan(states, by_chunks, parts, [self.chunks, self.chunks], false, context)?;
        } else {
            let by_parts = place(&self.by_parts, context)?;
            scan(states, by_chunks, parts, [self.chunks, PART_CHUNKS], true, context)?;
            scan(parts, by_parts, Address::NULL, [self.parts, self.parts], false, context)?;
            scan(states, by_chunks, parts, [self.chunks, PART_CHUNKS], false, context)?;
        }
        pass(true, true, context)
    }
}

/// The matrices of a scan: the matrix itself, its power for `run` in a row, for twice as many, and
/// so on.
fn powers(one: Matrix, run: usize) -> Vec<Matrix> {
    let mut many = one.power(run);
    let mut matrices = vec![one];
    for _ in 0..SCAN_THREADS.ilog2() {
        let twice = many.times(&many);
        matrices.push(std::mem::replace(&mut many, twice));
    }
    matrices
}

fn place(matrices: &[Matrix], context: &mut Context) -> Result<Address> {
    let entries: Vec<f64> = matrices.iter().flat_map(|matrix| matrix.entries.iter().copied()).collect();
    context.table(bytemuck::cast_slice(&entries))
}

/// The effect of some samples of silence on the state of all sections, two numbers per section.
#[derive(Clone)]
struct Matrix {
    size: usize,
    /// Row-major.
    entries: Vec<f64>,
}

impl Matrix {
    /// The matrix of one sample.
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
