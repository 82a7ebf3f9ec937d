//! Decompress: blocks of LZ4 and streams of DEFLATE, one warp for each.
//!
//! Only the kernel learns the decompressed lengths. So each message has a place for its maximal
//! length, and the outputs are packed afterwards if that was too much; the host learns the offsets
//! when the op has finished.

use panoply_core::op::crypto::{Decompress, Format, Messages};
use panoply_core::{Bytes, DType, Error, Result, Shape, Support, Tensor, Value};
use panoply_kernels::c::{INFLATE, Kernel, LZ4};

use crate::arguments::Arguments;
use crate::context::{Context, Output};
use crate::driver::{Address, Launch};
use crate::ops::messages::{Batch, DeviceMessages, Terms};

const BLOCK_THREADS: usize = 128;
/// Maximal ratios of decompressed to compressed bytes, of LZ4 blocks and DEFLATE streams.
const LZ4_RATIO_MAX: usize = 255;
const DEFLATE_RATIO_MAX: usize = 1032;
/// Kernels count decompressed bytes with 32 bits.
pub(super) const MESSAGE_BYTES_MAX: usize = (1 << 24) - 1;
/// Maximal size of the outputs of all messages of an op: as much memory is taken twice.
pub(super) const PLACES_BYTES_MAX: usize = 4 << 30;
/// Lengths from here on are reasons why a message was not decompressed: it exceeds its limit, or it
/// was rejected.
const TOO_LONG: u64 = u64::MAX - 1;

pub(super) fn supports(op: &Decompress) -> Support {
    if !matches!(op.format, Format::Lz4Block | Format::Deflate) {
        return Support::No(format!("it decompresses blocks of lz4 and bare deflate, not {}", op.format.name()));
    }
    if let Some(len) = op.messages.lens().find(|len| *len > MESSAGE_BYTES_MAX) {
        return Support::No(format!("a warp has a message of {len} bytes, and at most {MESSAGE_BYTES_MAX}"));
    }
    let places = op.messages.lens().fold(0_usize, |sum, len| sum.saturating_add(room(op, len)));
    match places {
        0..=PLACES_BYTES_MAX => Support::Yes,
        _ => Support::No(format!("messages may become {places} bytes, more than {PLACES_BYTES_MAX}; set a limit")),
    }
}

/// The output limit of one message.
fn limit(op: &Decompress) -> usize {
    op.limit_bytes.min(op.total_bytes_max()).min(u32::MAX as usize - 1)
}

/// The maximal output of a message of some length.
fn room(op: &Decompress, len: usize) -> usize {
    let ratio = if op.format == Format::Deflate { DEFLATE_RATIO_MAX } else { LZ4_RATIO_MAX };
    len.saturating_mul(ratio).min(limit(op))
}

pub(super) fn decompress(op: &Decompress, context: &mut Context) -> Result<Value> {
    let messages = DeviceMessages::new(&op.messages, context)?;
    let terms = Terms { behind: 0, unit_bytes: 1, answer_len: &|len| room(op, len), data: None };
    let batch = Batch::new(&messages, &terms, context)?;
    let count = batch.count();
    let shape = Shape::new([batch.answer_bytes()])?;
    let (places, close) = (context.output(DType::U8, shape)?, context.output(DType::U8, shape)?);
    let lens = context.scratch(count * 8)?;
    if count > 0 {
        let arguments = Arguments::new().address(places.address).address(lens);
        let mut arguments = batch.add_to(arguments.address(messages.address).address(batch.rows())).size(limit(op));
        let launch = Launch::new(count.div_ceil(BLOCK_THREADS / context.warp_lanes()), BLOCK_THREADS);
        match op.format {
            Format::Deflate => {
                let one_warp = Launch::new(count, context.warp_lanes());
                context.launch(&Kernel::new(INFLATE, "inflate_streams"), one_warp, &mut arguments)?;
            }
            _ => context.launch(&Kernel::new(LZ4, "lz4_blocks"), launch, &mut arguments)?,
        }
    }
    let bounds = Bounds { limit: limit(op), total: op.total_bytes_max() };
    collect(&op.messages, &messages, batch, (places, close), lens, bounds, context)
}

/// The limits of one output, and of all together.
pub(super) struct Bounds {
    pub(super) limit: usize,
    pub(super) total: usize,
}

/// Packs outputs of unknown lengths, which kernels have written to their places. The answer is made
/// when the op has finished.
pub(super) fn collect(
    like: &Messages,
    messages: &DeviceMessages,
    batch: Batch,
    (places, close): (Output, Output),
    lens: Address,
    bounds: Bounds,
    context: &mut Context,
) -> Result<Value> {
    let (count, is_resident) = (batch.count(), messages.is_resident);
    let shape = Shape::new([batch.answer_bytes()])?;
    let offsets = context.scratch((count + 2) * 8)?;
    if count > 0 {
        let launch = Launch::new(count.div_ceil(BLOCK_THREADS / context.warp_lanes()), BLOCK_THREADS);
        let arguments = Arguments::new().address(offsets).address(lens).address(batch.rows());
        let one_block = Launch::new(1, 2 * BLOCK_THREADS);
        context.launch(&Kernel::new(LZ4, "unpacked_offsets"), one_block, &mut batch.add_to(arguments))?;
        let arguments = Arguments::new().address(close.address).address(places.address).address(offsets);
        let mut arguments = batch.add_to(arguments.address(batch.rows())).u32(u32::from(!is_resident));
        context.launch(&Kernel::new(LZ4, "unpacked_move"), launch, &mut arguments)?;
    }
    let answer = UnpackOutput {
        like: like.clone(),
        limit: bounds.limit,
        total: bounds.total,
        lens: context.download(lens, DType::U8, Shape::new([count * 8])?)?,
        places: places.into_tensor(),
        // For host messages all places are downloaded.
        close: match is_resident {
            true => close.into_tensor(),
            false => context.download(close.address, DType::U8, shape)?,
        },
        bounds: batch.into_offsets(),
        is_resident,
    };
    context.finish_with(Box::new(move |_| answer.finished()));
    Ok(Value::Tensor(Tensor::zeros(DType::U8, [0])?))
}

/// The data from which the host makes the output.
struct UnpackOutput {
    like: Messages,
    limit: usize,
    total: usize,
    lens: Tensor,
    places: Tensor,
    close: Tensor,
    /// Start of each place, and the end of the last.
    bounds: Vec<usize>,
    is_resident: bool,
}

impl UnpackOutput {
    fn finished(self) -> Result<Value> {
        let offsets = self.offsets()?;
        let is_close = offsets.iter().zip(&self.bounds).rev().skip(1).all(|(offset, bound)| offset == bound);
        let bytes = if is_close && self.is_resident { &self.places } else { &self.close };
        let bytes = Bytes::from_tensor(bytes)?.slice(0, offsets[offsets.len() - 1])?;
        self.like.like(bytes, offsets)?.into_value()
    }

    /// Start of each message, and the end of the last. The first message that was not decompressed
    /// is the error.
    fn offsets(&self) -> Result<Vec<usize>> {
        let (words, _) = self.lens.as_bytes()?.as_chunks();
        let (mut offsets, mut end) = (Vec::with_capacity(words.len() + 1), 0_usize);
        offsets.push(0);
        for (index, word) in words.iter().enumerate() {
            let len = match u64::from_le_bytes(*word) {
                u64::MAX => return Err(Error::Rejected { op: "decompress", index }),
                TOO_LONG => return Err(Error::OutputLimit { op: "decompress", index, limit: self.limit }),
                len => usize::try_from(len).unwrap_or(usize::MAX),
            };
            // A device's lengths are not trusted: no message is longer than its place.
            if len > self.bounds[index + 1] - self.bounds[index] {
                return Err(Error::invalid("the engine's answer", "messages within their places", len));
            }
            end += len;
            if end > self.total {
                return Err(Error::OutputLimit { op: "decompress", index, limit: self.total });
            }
            offsets.push(end);
        }
        Ok(offsets)
    }
}

#[cfg(test)]
mod tests {
    use panoply_conformance::values::Random;
    use panoply_conformance::{run_one, run_there};
    use panoply_core::op::compute::Transfer;
    use panoply_core::op::crypto::Compress;
    use panoply_core::{Backend, Engine, OpenOptions, Operation};
    use panoply_cpu::CpuBackend;

    use super::*;
    use crate::{EmulatedBackend, GpuBackend};

    /// A block of literals, and a match that repeats the first of them eight times.
    fn block(len: usize) -> Vec<u8> {
        let literals: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
        let mut block = vec![0xf4];
        block.extend(vec![255; (len - 15) / 255]);
        block.push(((len - 15) % 255) as u8);
        block.extend(&literals);
        block.extend((len as u16).to_le_bytes());
        // The last token has no match.
        block.extend([0x10, 9]);
        block
    }

    fn unpacked(len: usize) -> Vec<u8> {
        let mut literals: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
        literals.extend_from_within(..8);
        literals.push(9);
        literals
    }

    /// Messages on the device produce outputs on the device, whether or not these fill their
    /// places.
    #[test]
    fn messages_on_the_device_stay_there() {
        let backend = match EmulatedBackend::new() {
            Ok(backend) => backend,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let device = backend.discover().unwrap().remove(0);
        let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
        for lens in [vec![300; 5], vec![300, 40, 77, 300, 16]] {
            let (mut all, mut offsets) = (Vec::new(), vec![0]);
            for len in &lens {
                all.extend(block(*len));
                offsets.push(all.len());
            }
            let bytes = Bytes::from_vec(all).to_tensor().unwrap();
            let bytes = run_there(&mut engine, Transfer::to_device(&bytes, device.id).into_op().unwrap()).unwrap();
            let bytes = Bytes::from_tensor(&bytes.into_tensor().unwrap()).unwrap();
            let messages = Messages::packed(bytes, offsets).unwrap();
            let op = Decompress::new(Format::Lz4Block, messages.clone()).limit(309).into_op().unwrap();
            let Value::Pair(made, _) = run_there(&mut engine, op).unwrap() else { panic!("not packed") };
            let made = run_one(&mut engine, Transfer::to_host(&made).into_op().unwrap()).unwrap();
            let expected: Vec<u8> = lens.iter().flat_map(|len| unpacked(*len)).collect();
            assert_eq!(made.into_tensor().unwrap().to_vec::<u8>().unwrap(), expected);
            let op = Decompress::new(Format::Lz4Block, messages).limit(308).into_op().unwrap();
            let refused = Error::OutputLimit { op: "decompress", index: 0, limit: 308 };
            assert_eq!(run_there(&mut engine, op).unwrap_err(), refused);
        }
    }

    /// Text, runs and noise, at levels that produce blocks of every kind.
    fn streams(cpu: &mut dyn Engine) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut random = Random::new(70);
        let mut made = Vec::new();
        for (level, len) in [(0, 3000), (1, 5), (1, 9000), (6, 0), (6, 400), (9, 70_000), (12, 2000)] {
            let noise: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
            let of = |at: usize| match at / 70 % 4 {
                0 => b"a device of an op that is sealed "[at % 33],
                1 => 0,
                2 => noise[at],
                _ => noise[at % 31] & 15,
            };
            let message: Vec<u8> = (0..len).map(of).collect();
            let op = Compress::new(Format::Deflate, message.clone()).level(level).into_op().unwrap();
            let packed = run_one(cpu, op).unwrap().into_bytes().unwrap().as_slice().unwrap().to_vec();
            made.push((message, packed));
        }
        made
    }

    /// Streams that are whole, truncated, altered and noise: the device gives the CPU's results.
    #[test]
    fn hostile_streams_end_as_they_do_on_the_processor() {
        let backend = match EmulatedBackend::new() {
            Ok(backend) => backend,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let cpu = CpuBackend::new();
        let mut cpu = cpu.open(&cpu.discover().unwrap()[0], &OpenOptions::default()).unwrap();
        let streams = streams(cpu.as_mut());
        let (mut random, mut refused, mut altered) = (Random::new(71), 0, 0);
        for device in backend.discover().unwrap() {
            let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
            let (messages, packed): (Vec<Vec<u8>>, Vec<Bytes>) =
                streams.iter().map(|(message, packed)| (message.clone(), Bytes::from_vec(packed.clone()))).unzip();
            let op = Decompress::new(Format::Deflate, packed).limit(70_000).into_op().unwrap();
            let made = Messages::from_value(run_one(&mut engine, op).unwrap()).unwrap();
            assert_eq!(made.slices().unwrap(), messages);
            for round in 0..600 {
                let mut stream = streams[round % streams.len()].1.clone();
                match round % 3 {
                    0 => stream.truncate(random.below(stream.len() as u64) as usize),
                    1 => {
                        let place = random.below(stream.len() as u64) as usize;
                        stream[place] ^= 1 << random.below(8);
                    }
                    _ => stream = (0..1 + random.below(60)).map(|_| random.next_u64() as u8).collect(),
                }
                let op = Decompress::new(Format::Deflate, stream).limit(75_000).into_op().unwrap();
                let expected = run_one(cpu.as_mut(), op.clone()).and_then(Value::into_bytes);
                let got = run_one(&mut engine, op).and_then(Value::into_bytes);
                match (&expected, &got) {
                    (Ok(expected), Ok(got)) => {
                        altered += 1;
                        assert_eq!(expected.as_slice().unwrap(), got.as_slice().unwrap(), "round {round}");
                    }
                    (Err(_), Err(Error::Rejected { .. } | Error::OutputLimit { .. })) => refused += 1,
                    _ => panic!("round {round}: expected {expected:?}, got {got:?}"),
                }
            }
        }
        assert!(refused > 300 && altered > 30, "{refused} refused, {altered} had an answer");
    }
}
