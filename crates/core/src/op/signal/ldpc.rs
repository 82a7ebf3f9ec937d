//! LdpcEncode and LdpcDecode: low-density parity-check codes.

use std::ops::Range;

use super::checks::{line_len, of_type};
use super::reed_solomon::check_rows;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, CostClass, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

mod ccsds;
mod graph1;
mod graph2;

/// The most iterations of the decoder.
pub const ITERATIONS_MAX: usize = 1000;

/// A base graph of 5G NR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BaseGraph {
    /// 22 data blocks, 46 check blocks.
    One,
    /// 10 data blocks, 42 check blocks.
    Two,
}

/// The code rate of a telemetry code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TelemetryRate {
    /// ½.
    Half,
    /// ⅔.
    TwoThirds,
    /// ⅘.
    FourFifths,
}

/// A code, defined by its parity checks. The first bits of a word are the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ldpc {
    /// The code of 3GPP TS 38.212 before rate matching. The first two blocks of a word are not
    /// transmitted.
    Nr {
        /// The base graph.
        graph: BaseGraph,
        /// Bits of a block: `a · 2ʲ`, with `a` 2, 3, 5, 7, 9, 11, 13 or 15, up to 384.
        lifting: usize,
    },
    /// The telemetry code of CCSDS 131.0-B. The last block of a word is not transmitted.
    Telemetry {
        /// Number of data bits: 1024, 4096 or 16384.
        data: usize,
        /// The code rate.
        rate: TelemetryRate,
    },
}

/// The permutations of the telemetry codes: row and column of blocks, and the numbers of the
/// permutations. 0 is the identity. Columns count from the last, since codes of higher rates have
/// more columns in front.
const TELEMETRY: [(usize, usize, &[usize]); 22] = [
    (0, 2, &[0]),
    (0, 0, &[0, 1]),
    (1, 4, &[0]),
    (1, 3, &[0]),
    (1, 1, &[0]),
    (1, 0, &[2, 3, 4]),
    (2, 4, &[0]),
    (2, 3, &[5, 6]),
    (2, 1, &[7, 8]),
    (2, 0, &[0]),
    (1, 6, &[9, 10, 11]),
    (1, 5, &[0]),
    (2, 6, &[0]),
    (2, 5, &[12, 13, 14]),
    (1, 8, &[15, 16, 17]),
    (1, 7, &[0]),
    (2, 8, &[0]),
    (2, 7, &[18, 19, 20]),
    (1, 10, &[21, 22, 23]),
    (1, 9, &[0]),
    (2, 10, &[0]),
    (2, 9, &[24, 25, 26]),
];

impl Ldpc {
    /// Number of bits in a block.
    pub fn block(&self) -> usize {
        match *self {
            Ldpc::Nr { lifting, .. } => lifting,
            Ldpc::Telemetry { data, rate } => match rate {
                TelemetryRate::Half => data / 2,
                TelemetryRate::TwoThirds => data / 4,
                TelemetryRate::FourFifths => data / 8,
            },
        }
    }

    /// Number of data blocks, of blocks in a word, and of check blocks.
    pub fn blocks(&self) -> (usize, usize, usize) {
        match self {
            Ldpc::Nr { graph: BaseGraph::One, .. } => (22, 68, 46),
            Ldpc::Nr { graph: BaseGraph::Two, .. } => (10, 52, 42),
            Ldpc::Telemetry { rate: TelemetryRate::Half, .. } => (2, 5, 3),
            Ldpc::Telemetry { rate: TelemetryRate::TwoThirds, .. } => (4, 7, 3),
            Ldpc::Telemetry { rate: TelemetryRate::FourFifths, .. } => (8, 11, 3),
        }
    }

    /// Number of data bits.
    pub fn data_bits(&self) -> usize {
        self.blocks().0 * self.block()
    }

    /// Number of bits in a word, including those that are not transmitted.
    pub fn word_bits(&self) -> usize {
        self.blocks().1 * self.block()
    }

    /// The transmitted bits of a word.
    pub fn sent(&self) -> Range<usize> {
        match self {
            Ldpc::Nr { .. } => 2 * self.block()..self.word_bits(),
            Ldpc::Telemetry { .. } => 0..self.word_bits() - self.block(),
        }
    }

    /// Number of transmitted bits.
    pub fn coded_bits(&self) -> usize {
        self.sent().len()
    }

    /// The name used in benchmarks and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Ldpc::Nr { graph: BaseGraph::One, .. } => "nr1",
            Ldpc::Nr { graph: BaseGraph::Two, .. } => "nr2",
            Ldpc::Telemetry { rate: TelemetryRate::Half, .. } => "tm-half",
            Ldpc::Telemetry { rate: TelemetryRate::TwoThirds, .. } => "tm-two-thirds",
            Ldpc::Telemetry { rate: TelemetryRate::FourFifths, .. } => "tm-four-fifths",
        }
    }

    /// The bits of a word in each parity check, whose sum is even. The checks are in the order of
    /// their blocks; the bits of a check are unordered.
    pub fn parity_checks(&self) -> Vec<Vec<u32>> {
        let (block, (_, columns, rows)) = (self.block(), self.blocks());
        let mut checks = vec![Vec::new(); rows * block];
        let mut add = |row: usize, column: usize, place: &dyn Fn(usize) -> usize| {
            for at in 0..block {
                checks[row * block + at].push((column * block + place(at)) as u32);
            }
        };
        match *self {
            Ldpc::Nr { graph, lifting } => {
                let set = lifting_set(lifting).unwrap_or(0);
                let blocks = if graph == BaseGraph::One { &graph1::GRAPH[..] } else { &graph2::GRAPH[..] };
                for (row, column, shifts) in blocks {
                    let shift = usize::from(shifts[set]);
                    add(usize::from(*row), usize::from(*column), &|at| (at + shift) % block.max(1));
                }
            }
            Ldpc::Telemetry { .. } => {
                for (row, from_last, permutations) in TELEMETRY.iter().filter(|(_, from_last, _)| *from_last < columns)
                {
                    for number in *permutations {
                        add(*row, columns - 1 - from_last, &|at| permuted(*number, at, block));
                    }
                }
                // Two permutations of one block that select the same bit cancel each other.
                checks.iter_mut().for_each(without_pairs);
            }
        }
        checks
    }

    /// Checks that the code exists.
    pub fn check(&self) -> Result<()> {
        match *self {
            Ldpc::Nr { lifting, .. } => match lifting_set(lifting) {
                Some(_) => Ok(()),
                None => {
                    let expected = "2, 3, 5, 7, 9, 11, 13 or 15 times a power of two, up to 384";
                    Err(Error::invalid("ldpc: lifting", expected, lifting))
                }
            },
            Ldpc::Telemetry { data: 1024 | 4096 | 16_384, .. } => Ok(()),
            Ldpc::Telemetry { data, .. } => Err(Error::invalid("ldpc: bits of data", "1024, 4096 or 16384", data)),
        }
    }
}

/// The index of the set of shifts for a lifting size.
fn lifting_set(lifting: usize) -> Option<usize> {
    if !(2..=384).contains(&lifting) {
        return None;
    }
    let odd = lifting >> lifting.trailing_zeros();
    if odd == 1 { Some(0) } else { [3, 5, 7, 9, 11, 13, 15].iter().position(|of| *of == odd).map(|at| at + 1) }
}

/// The column of the one in this row of a telemetry code's permutation.
fn permuted(number: usize, row: usize, block: usize) -> usize {
    let Some(index) = number.checked_sub(1) else { return row };
    let (quarter, size) = ((block / 4).max(1), (block / 128).max(1).ilog2() as usize);
    let at = row / quarter;
    let shift = usize::from(ccsds::PHI[size.min(6)][at % 4][index]);
    quarter * ((usize::from(ccsds::THETA[index]) + at) % 4) + (shift + row) % quarter
}

fn without_pairs(bits: &mut Vec<u32>) {
    bits.sort_unstable();
    let mut at = 0;
    while at + 1 < bits.len() {
        if bits[at] == bits[at + 1] {
            bits.drain(at..at + 2);
        } else {
            at += 1;
        }
    }
}

/// Encodes words: from `[…, ⌈data/8⌉]` to `[…, ⌈coded/8⌉]`, both u8. Bits are packed in bytes, the
/// first bit highest. The unused bits of the last byte are zero.
#[derive(Clone, Debug)]
pub struct LdpcEncode {
    /// The code.
    pub code: Ldpc,
    /// The data.
    pub input: Tensor,
}

/// Decodes words by the min-sum algorithm: from `[…, coded]` of f32, the log-likelihood ratio of 0
/// over 1. The outputs are the data, `[…, ⌈data/8⌉]` of u8, and the number of iterations for each
/// word, i32. The number is -1 if some checks still fail, or contain bits of which nothing is
/// known; then the data must not be trusted.
///
/// The schedule is layered: checks are processed one after the other, each with the results of
/// those before it. The messages of a check are `¾` of the min-sum minimum. NaN is taken as 0, and
/// infinity as `±1e6`.
#[derive(Clone, Debug)]
pub struct LdpcDecode {
    /// The code.
    pub code: Ldpc,
    /// The log-likelihood ratios of the bits.
    pub input: Tensor,
    /// The most iterations.
    pub iterations: usize,
}

impl LdpcEncode {
    /// Encodes each row.
    pub fn new(code: Ldpc, input: &Tensor) -> LdpcEncode {
        LdpcEncode { code, input: input.clone() }
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let last = check_rows(&self.input, self.code.data_bits().div_ceil(8), "ldpc_encode: input")?;
        self.input.shape().with_dim(last, self.code.coded_bits().div_ceil(8))
    }
}

impl LdpcDecode {
    /// Decodes each row, in at most 20 iterations.
    pub fn new(code: Ldpc, input: &Tensor) -> LdpcDecode {
        LdpcDecode { code, input: input.clone(), iterations: 20 }
    }

    /// Sets the most iterations.
    pub fn iterations(mut self, most: usize) -> LdpcDecode {
        self.iterations = most;
        self
    }

    /// The shapes of the data and of the counts.
    pub fn output_shapes(&self) -> Result<(Shape, Shape)> {
        let len = line_len(&self.input, "ldpc_decode: input")?;
        let (dims, last) = (self.input.shape(), self.input.shape().rank() - 1);
        if len != self.code.coded_bits() {
            let expected = dims.with_dim(last, self.code.coded_bits())?.to_vec();
            return Err(Error::ShapeMismatch { what: "ldpc_decode: input", expected, got: dims.to_vec() });
        }
        Ok((dims.with_dim(last, self.code.data_bits().div_ceil(8))?, Shape::new(&dims[..last])?))
    }
}

impl Describe for LdpcEncode {
    fn name(&self) -> &'static str {
        "ldpc_encode"
    }

    fn validate(&self) -> Result<()> {
        self.code.check()?;
        self.output_shape().map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::U8, self.output_shape()?))
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.code.name())
    }
}

impl Describe for LdpcDecode {
    fn name(&self) -> &'static str {
        "ldpc_decode"
    }

    fn validate(&self) -> Result<()> {
        self.code.check()?;
        of_type(&self.input, DType::F32, "ldpc_decode: input")?;
        if self.iterations == 0 || self.iterations > ITERATIONS_MAX {
            let expected = format!("1 to {ITERATIONS_MAX}");
            return Err(Error::invalid("ldpc_decode: iterations", expected, self.iterations));
        }
        self.output_shapes().map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        let (data, counts) = self.output_shapes()?;
        Ok(AnswerTypes::Pair([(DType::U8, data), (DType::I32, counts)]))
    }

    fn work(&self) -> u64 {
        (self.input.elements() as u64).saturating_mul(self.iterations as u64)
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.code.name())
    }
}
