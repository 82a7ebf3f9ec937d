//! Reed–Solomon and erasure codes, and the Viterbi decoder.

use panoply_core::op::signal::{
    EXACT_TAIL_BITS_MAX, Ending, ErasureEncode, ErasureRebuild, Puncture, ReedSolomon, RsEncode, Viterbi,
};
use panoply_core::{DType, Error, Result, Shape, Tensor, Value};
use panoply_kernels::c::{GALOIS, Kernel, VITERBI};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::ops::messages::place_plain;

const BLOCK_THREADS: usize = 128;
/// Bytes of a shard per thread and step.
const PIECE_BYTES: usize = 16;
/// Number of shards made together.
const GROUP: usize = 4;
/// Number of bits in the code's shift register.
const TAIL_BITS: usize = 6;
/// Maximum coded bits per period.
const PERIOD_MAX: usize = 32;
/// Lanes per team, which decodes one or two frames, and teams per block.
const TEAM_LANES: usize = 32;
const BLOCK_TEAMS: usize = 4;
/// The newest and the oldest bit of a polynomial: if both are set, frames are decoded two at a
/// time.
const ENDS: u8 = 0o101;
/// The polynomial of the erasure code's field.
const ERASURE_FIELD: u16 = 0x11d;

pub(super) fn rs_encode(op: &RsEncode, context: &mut Context) -> Result<Value> {
    let ReedSolomon { data, parity, .. } = op.code;
    let shape = op.output_shape()?;
    let output = context.output(DType::U8, shape)?;
    let count = shape.elements() / op.code.word();
    if count > 0 {
        let words = parity.div_ceil(4).next_power_of_two();
        let products = generator_products(&op.code, words);
        let table = place_words(&products, context)?;
        let mut arguments = Arguments::new()
            .address(output.address)
            .address(context.input(&op.input)?)
            .address(table)
            .u64(count as u64)
            .size(data)
            .size(parity);
        let kernel = Kernel::new(GALOIS, "rs_encode").integer("PARITY_WORDS", words as i64);
        context.launch(&kernel, Launch::new(count.div_ceil(BLOCK_THREADS), BLOCK_THREADS), &mut arguments)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

pub(super) fn erasure_encode(op: &ErasureEncode, context: &mut Context) -> Result<Value> {
    let data = op.input.shape()[0];
    let field = Field::new(ERASURE_FIELD);
    let weights: Vec<Vec<u8>> = (data..data + op.parity).map(|shard| field.cauchy(data, shard)).collect();
    combined(&op.input, &weights, &(0..data).collect::<Vec<_>>(), op.output_shape()?, context)
}

pub(super) fn erasure_rebuild(op: &ErasureRebuild, context: &mut Context) -> Result<Value> {
    let total = op.input.shape()[0];
    let here: Vec<usize> = (0..total).filter(|shard| !op.missing.contains(shard)).take(op.data).collect();
    let field = Field::new(ERASURE_FIELD);
    let from_data = |shard: &usize| field.row(op.data, *shard);
    let refused = || Error::invalid("erasure_rebuild: missing shards", "fewer", format!("{:?}", op.missing));
    let back = field.inverse(here.iter().map(from_data).collect()).ok_or_else(refused)?;
    let weights: Vec<Vec<u8>> = op.missing.iter().map(|shard| field.times(&from_data(shard), &back)).collect();
    combined(&op.input, &weights, &here, op.output_shape()?, context)
}

/// Shards that are weighted sums of rows of the input.
fn combined(
    input: &Tensor,
    weights: &[Vec<u8>],
    sources: &[usize],
    shape: Shape,
    context: &mut Context,
) -> Result<Value> {
    let output = context.output(DType::U8, shape)?;
    let len = shape[1];
    if shape.elements() > 0 {
        let groups = weights.len().div_ceil(GROUP);
        let mut masks = Vec::with_capacity(groups * sources.len() * 8 * GROUP);
        for group in weights.chunks(GROUP) {
            for source in 0..sources.len() {
                for bit in 0..8 {
                    let mask = |shard: usize| group.get(shard).map_or(0, |row| row[source] >> bit & 1);
                    masks.extend((0..GROUP).map(|shard| 0_u32.wrapping_sub(u32::from(mask(shard)))));
                }
            }
        }
        let masks = place_words(&masks, context)?;
        let rows: Vec<u32> = sources.iter().map(|source| *source as u32).collect();
        let rows = place_words(&rows, context)?;
        let from = context.input(input)?;
        let is_aligned = len.is_multiple_of(PIECE_BYTES) && (from | output.address).is_multiple_of(PIECE_BYTES as u64);
        let mut arguments = Arguments::new()
            .address(output.address)
            .address(from)
            .address(masks)
            .address(rows)
            .size(sources.len())
            .size(weights.len())
            .u64(len as u64)
            .u32(u32::from(is_aligned));
        let blocks = context.blocks(len.div_ceil(PIECE_BYTES), BLOCK_THREADS, 1).blocks[0];
        let launch = Launch::grid([blocks, groups, 1], BLOCK_THREADS).shared(sources.len() * 8 * PIECE_BYTES);
        context.launch(&Kernel::new(GALOIS, "combine_shards"), launch, &mut arguments)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

pub(super) fn viterbi(op: &Viterbi, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape()?;
    let output = context.output(DType::U8, shape)?;
    let frame_steps = if op.ending == Ending::Terminated { op.bits + TAIL_BITS } else { op.bits };
    let is_tail_biting = op.ending == Ending::TailBiting;
    let is_circle = is_tail_biting && op.bits <= EXACT_TAIL_BITS_MAX;
    let is_logarithms = op.input.dtype() == DType::F32;
    // A long tail-biting frame is decoded over three repetitions, and the middle one is kept.
    let (steps, first_kept) = if is_tail_biting && !is_circle { (3 * op.bits, op.bits) } else { (frame_steps, 0) };
    if shape.elements() > 0 {
        let frames = shape.elements() / op.bits.div_ceil(8);
        let (kept, period) = pattern(op.code.puncture);
        let has_pairs = context.warp_lanes() >= TEAM_LANES
            && op.code.polynomials.iter().all(|one| one & ENDS == ENDS)
            && !is_circle
            && !is_logarithms;
        let paths = context.scratch(frames.next_multiple_of(2) * steps * 8)?;
        let [first, second] = op.code.polynomials.map(u32::from);
        let mut arguments = Arguments::new()
            .address(output.address)
            .address(context.input(&op.input)?)
            .address(paths)
            .u64(frames as u64)
            .size(steps)
            .size(op.bits)
            .u32(first)
            .u32(second)
            .u32(u32::from(op.ending == Ending::Terminated))
            .size(frame_steps)
            .size(first_kept)
            .size(op.coded_bits())
            .u32(kept)
            .u32(period);
        let (entry, teams) = if has_pairs { ("viterbi_pairs", frames.div_ceil(2)) } else { ("viterbi", frames) };
        let launch = Launch::new(teams.div_ceil(BLOCK_TEAMS), BLOCK_THREADS);
        let kernel = Kernel::new(VITERBI, entry)
            .flag("PUNCTURED", op.code.puncture != Puncture::NONE)
            .flag("LOGARITHMS", is_logarithms)
            .flag("CIRCLE", is_circle);
        context.launch(&kernel, launch, &mut arguments)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// A mask of the coded bits of a period that are sent, first bit lowest, and the length of the
/// period.
fn pattern(puncture: Puncture) -> (u32, u32) {
    let repeats = |period: &usize| (0..2 * PERIOD_MAX).all(|at| puncture.is_sent(at) == puncture.is_sent(at + period));
    let period = (1..PERIOD_MAX).find(repeats).unwrap_or(PERIOD_MAX);
    let kept = (0..period).map(|at| u32::from(puncture.is_sent(at)) << at).sum();
    (kept, period as u32)
}

fn place_words(words: &[u32], context: &mut Context) -> Result<Address> {
    place_plain(bytemuck::cast_slice(words), context)
}

/// The product of each byte with a code's generator, without the highest coefficient, which is one:
/// `words` words per byte, with the highest remaining coefficient in the lowest byte.
fn generator_products(code: &ReedSolomon, words: usize) -> Vec<u32> {
    let field = Field::new(code.polynomial);
    let mut generator = vec![1_u8];
    for index in 0..code.parity {
        let root = field.power(code.root_step * (code.first_root + index));
        let mut longer = generator.clone();
        longer.push(0);
        generator.iter().enumerate().for_each(|(at, value)| longer[at + 1] ^= field.mul(*value, root));
        generator = longer;
    }
    let mut products = vec![0_u32; 256 * words];
    for byte in 0..=255_u8 {
        for (at, value) in generator[1..].iter().enumerate() {
            products[usize::from(byte) * words + at / 4] |= u32::from(field.mul(byte, *value)) << (8 * (at % 4));
        }
    }
    products
}

/// The field of 256 elements of a primitive polynomial.
struct Field {
    exponents: [u8; 510],
    logarithms: [u16; 256],
}

impl Field {
    fn new(polynomial: u16) -> Field {
        let (mut exponents, mut logarithms) = ([0; 510], [0; 256]);
        let mut value = 1_u16;
        for power in 0..255 {
            exponents[power] = value as u8;
            exponents[power + 255] = value as u8;
            logarithms[usize::from(value & 255)] = power as u16;
            value <<= 1;
            if value & 0x100 != 0 {
                value ^= polynomial;
            }
        }
        Field { exponents, logarithms }
    }

    fn power(&self, exponent: usize) -> u8 {
        self.exponents[exponent % 255]
    }

    fn mul(&self, a: u8, b: u8) -> u8 {
        if a == 0 || b == 0 {
            return 0;
        }
        self.exponents[usize::from(self.logarithms[usize::from(a)] + self.logarithms[usize::from(b)])]
    }

    /// The inverse; zero for zero.
    fn inverse_of(&self, a: u8) -> u8 {
        if a == 0 { 0 } else { self.exponents[usize::from(255 - self.logarithms[usize::from(a)])] }
    }

    /// The weights of a parity shard.
    fn cauchy(&self, data: usize, shard: usize) -> Vec<u8> {
        (0..data).map(|column| self.inverse_of((shard ^ column) as u8)).collect()
    }

    /// The weights with which data shards form a shard: a unit row for a data shard, or the weights
    /// of a parity shard.
    fn row(&self, data: usize, shard: usize) -> Vec<u8> {
        match shard < data {
            true => (0..data).map(|column| u8::from(column == shard)).collect(),
            false => self.cauchy(data, shard),
        }
    }

    /// A row times a matrix.
    fn times(&self, row: &[u8], matrix: &[Vec<u8>]) -> Vec<u8> {
        let size = matrix.first().map_or(0, Vec::len);
        let entry = |column: usize| row.iter().zip(matrix).fold(0, |sum, (a, line)| sum ^ self.mul(*a, line[column]));
        (0..size).map(entry).collect()
    }

    /// The inverse of a square matrix, by elimination; `None` if the matrix is singular.
    fn inverse(&self, mut matrix: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
        let size = matrix.len();
        for (row, line) in matrix.iter_mut().enumerate() {
            line.extend((0..size).map(|column| u8::from(row == column)));
        }
        for column in 0..size {
            let pivot = (column..size).find(|row| matrix[*row][column] != 0)?;
            matrix.swap(column, pivot);
            let scale = self.inverse_of(matrix[column][column]);
            matrix[column].iter_mut().for_each(|value| *value = self.mul(*value, scale));
            let own = matrix[column].clone();
            for (row, line) in matrix.iter_mut().enumerate().filter(|(row, _)| *row != column) {
                debug_assert_ne!(row, column);
                let weight = line[column];
                line.iter_mut().zip(&own).for_each(|(value, own)| *value ^= self.mul(weight, *own));
            }
        }
        Some(matrix.into_iter().map(|line| line[size..].to_vec()).collect())
    }
}
