//! Checksums, Reed–Solomon, erasure and convolutional codes.

use std::sync::Mutex;

use panoply_core::op::signal::{
    ConvolutionalEncode, Crc, EXACT_TAIL_BITS_MAX, Ending, ErasureEncode, ErasureRebuild, Puncture, RsDecode, RsEncode,
    Viterbi,
};
use panoply_core::{Bytes, DType, Element, Error, Result, Tensor, Threads, Value};

use super::output::{Output, TakeMemory};
use super::space::{Space, free};
use crate::crc;
use crate::erasure::{Weights, survivors};
use crate::reed_solomon::BeyondRepair;
use crate::threads::{for_each_piece, share};
use crate::viterbi::frame::{Branches, Cost, Frame};
use crate::viterbi::{Trellis, ViterbiMemory};

/// The least number of bytes in one turn of a thread.
const TURN_BYTES_MIN: usize = 64 << 10;
/// An unknown soft bit.
const UNKNOWN_BIT: u8 = 128;
/// The least number of steps in one turn, for frames that are decoded one by one.
const TURN_STEPS_MIN: usize = 512;
/// The least number of Reed–Solomon words in one turn.
const TURN_WORDS_MIN: usize = 16;

pub(super) fn crc(op: &Crc, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let messages = op.messages.slices()?;
    let mut out = take(8 * messages.len())?;
    if messages.len() < threads.count() {
        let checks = crc::crc_of_few(op.kind, &messages, threads);
        for (place, check) in out.bytes_mut().chunks_exact_mut(8).zip(checks) {
            place.copy_from_slice(&check.to_le_bytes());
        }
        return Ok(Value::Bytes(Bytes::from_host(out.freeze())));
    }
    let mean = op.messages.total_bytes() / messages.len().max(1) + 32;
    let each = share(messages.len(), threads.count(), TURN_BYTES_MIN.div_ceil(mean));
    for_each_piece(threads, out.bytes_mut(), 8 * each, &|turn, part| {
        for (place, message) in part.chunks_exact_mut(8).zip(&messages[turn * each..]) {
            place.copy_from_slice(&crc::crc(op.kind, message).to_le_bytes());
        }
    });
    Ok(Value::Bytes(Bytes::from_host(out.freeze())))
}

pub(super) fn rs_encode(
    op: &RsEncode,
    space: &mut Space,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let (input, code) = (op.input.contiguous()?, space.code(op.code)?);
    let (data, k, n) = (input.as_slice::<u8>()?, op.code.data, op.code.word());
    let mut output = Output::take(DType::U8, op.output_shape()?, take)?;
    let each = share(data.len() / k, threads.count(), TURN_WORDS_MIN);
    for_each_piece(threads, output.bytes(), each * n, &|turn, part| {
        code.encode(&data[turn * each * k..][..part.len() / n * k], part);
    });
    output.value()
}

pub(super) fn rs_decode(
    op: &RsDecode,
    space: &mut Space,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let (input, code) = (op.input.contiguous()?, space.code(op.code)?);
    let (words, k, n) = (input.as_slice::<u8>()?, op.code.data, op.code.word());
    let (data_shape, count_shape) = op.output_shapes()?;
    let mut data = Output::take(DType::U8, data_shape, take)?;
    let mut counts = Output::take(DType::I32, count_shape, take)?;
    let each = share(words.len() / n, threads.count(), TURN_WORDS_MIN);
    let shared: Vec<Mutex<&mut [i32]>> = counts.integers().chunks_mut(each).map(Mutex::new).collect();
    for_each_piece(threads, data.bytes(), each * k, &|turn, part| {
        let count = part.len() / k;
        let mut own = words[turn * each * n..][..count * n].to_vec();
        let mut outcomes = vec![Err(BeyondRepair); count];
        code.decode(&mut own, &op.erased, &mut outcomes);
        part.chunks_exact_mut(k).zip(own.chunks_exact(n)).for_each(|(part, word)| part.copy_from_slice(&word[..k]));
        // Each turn has its own counts, so this lock never blocks.
        let mut counts = shared[turn].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (place, outcome) in counts.iter_mut().zip(outcomes) {
            *place = outcome.map_or(-1, |mended| mended as i32);
        }
    });
    drop(shared);
    Ok(Value::Pair(data.tensor()?, counts.tensor()?))
}

pub(super) fn erasure_encode(
    op: &ErasureEncode,
    space: &mut Space,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let input = op.input.contiguous()?;
    let (data, len) = (input.shape()[0], input.shape()[1]);
    let weights = Weights::parity(space.level, data, op.parity);
    let weights = weights.ok_or_else(|| Error::invalid("erasure_encode: shards", "a code", data))?;
    let output = Output::take(DType::U8, op.output_shape()?, take)?;
    let every: Vec<usize> = (0..data).collect();
    combined(&weights, &input, &every, len, threads, output)
}

pub(super) fn erasure_rebuild(
    op: &ErasureRebuild,
    space: &mut Space,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let input = op.input.contiguous()?;
    let (total, len) = (input.shape()[0], input.shape()[1]);
    let parity = total - op.data;
    let weights = Weights::rebuild(space.level, op.data, parity, &op.missing);
    let (Some(weights), Some(here)) = (weights, survivors(op.data, parity, &op.missing)) else {
        let got = format!("{:?}", op.missing);
        return Err(Error::invalid("erasure_rebuild: missing shards", format!("at most {parity}"), got));
    };
    let output = Output::take(DType::U8, op.output_shape()?, take)?;
    combined(&weights, &input, &here, len, threads, output)
}

fn combined(
    weights: &Weights,
    input: &Tensor,
    sources: &[usize],
    len: usize,
    threads: &dyn Threads,
    mut output: Output,
) -> Result<Value> {
    let bytes = input.as_slice::<u8>()?;
    if len > 0 {
        let sources: Vec<&[u8]> = sources.iter().map(|shard| &bytes[shard * len..(shard + 1) * len]).collect();
        let mut outputs: Vec<&mut [u8]> = output.bytes().chunks_exact_mut(len).collect();
        weights.apply(threads, &sources, &mut outputs);
    }
    output.value()
}

pub(super) fn convolutional_encode(
    op: &ConvolutionalEncode,
    space: &mut Space,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let (input, trellis) = (op.input.contiguous()?, space.trellis(op.code));
    let frames = input.as_slice::<u8>()?;
    let (bytes, coded) = (op.bits.div_ceil(8), op.coded_bits().div_ceil(8));
    let mut output = Output::take(DType::U8, op.output_shape()?, take)?;
    if coded == 0 {
        return output.value();
    }
    let (whole, puncture) = (Trellis::coded_bits(op.bits, op.ending), op.code.puncture);
    let each = share(output.shape.elements() / coded, threads.count(), TURN_BYTES_MIN.div_ceil(coded));
    for_each_piece(threads, output.bytes(), each * coded, &|turn, part| {
        let mut all = vec![0; whole.div_ceil(8)];
        for (at, out) in part.chunks_exact_mut(coded).enumerate() {
            let frame = &frames[(turn * each + at) * bytes..][..bytes];
            if puncture == Puncture::NONE {
                trellis.encode(frame, op.bits, op.ending, out);
                continue;
            }
            trellis.encode(frame, op.bits, op.ending, &mut all);
            out.fill(0);
            for (to, from) in (0..whole).filter(|from| puncture.is_sent(*from)).enumerate() {
                out[to / 8] |= (all[from / 8] >> (7 - from % 8) & 1) << (7 - to % 8);
            }
        }
    });
    output.value()
}

pub(super) fn viterbi(op: &Viterbi, space: &mut Space, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let is_circle = op.ending == Ending::TailBiting && op.bits <= EXACT_TAIL_BITS_MAX;
    match op.input.dtype() {
        DType::F32 => one_by_one::<u32>(op, space, threads, take),
        _ if is_circle => one_by_one::<u16>(op, space, threads, take),
        _ => side_by_side(op, space, threads, take),
    }
}

/// Decodes frames of any type of soft bits, one by one.
fn one_by_one<C: Cost<Soft: Element> + Send + Sync>(
    op: &Viterbi,
    space: &mut Space,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let (input, trellis) = (op.input.contiguous()?, space.trellis(op.code));
    let (softs, branches) = (input.as_slice::<C::Soft>()?, Branches::<C>::new(&trellis));
    let (bytes, coded, whole) = (op.bits.div_ceil(8), op.coded_bits(), Trellis::coded_bits(op.bits, op.ending));
    let mut output = Output::take(DType::U8, op.output_shape()?, take)?;
    if bytes == 0 || output.shape.elements() == 0 {
        return output.value();
    }
    let each = share(output.shape.elements() / bytes, threads.count(), TURN_STEPS_MIN.div_ceil(op.bits));
    let decoders = space.decoders(threads.count());
    for_each_piece(threads, output.bytes(), each * bytes, &|turn, part| {
        let mut work = free(decoders, turn);
        let mut levels = vec![C::UNKNOWN; whole];
        for (at, out) in part.chunks_exact_mut(bytes).enumerate() {
            let frame = &softs[(turn * each + at) * coded..][..coded];
            let sent = (0..whole).filter(|place| op.code.puncture.is_sent(*place));
            sent.zip(frame).for_each(|(place, soft)| levels[place] = C::of(*soft));
            Frame { branches: &branches, levels: &levels, bits: op.bits }.decode(op.ending, out, &mut work);
        }
    });
    output.value()
}

/// Decodes frames of byte soft bits, one in each lane.
fn side_by_side(op: &Viterbi, space: &mut Space, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let (input, trellis) = (op.input.contiguous()?, space.trellis(op.code));
    let softs = input.as_slice::<u8>()?;
    let (bytes, coded) = (op.bits.div_ceil(8), op.coded_bits());
    let mut output = Output::take(DType::U8, op.output_shape()?, take)?;
    if bytes == 0 || output.shape.elements() == 0 {
        return output.value();
    }
    let frames = output.shape.elements() / bytes;
    let each = trellis.lanes().min(frames.div_ceil(threads.count().max(1)));
    let decoders = space.decoders(threads.count());
    for_each_piece(threads, output.bytes(), each * bytes, &|turn, part| {
        let own = &softs[turn * each * coded..][..part.len() / bytes * coded];
        let mut work = free(decoders, turn);
        if op.code.puncture == Puncture::NONE && op.ending != Ending::TailBiting {
            trellis.decode(own, op.bits, op.ending, part, &mut work);
        } else {
            decode_filled_up(op, &trellis, own, part, &mut work);
        }
    });
    output.value()
}

/// Decodes frames after inserting unknown values for punctured bits. Tail-biting frames are
/// repeated three times.
fn decode_filled_up(op: &Viterbi, trellis: &Trellis, softs: &[u8], decoded: &mut [u8], work: &mut ViterbiMemory) {
    let (whole, bytes) = (Trellis::coded_bits(op.bits, op.ending), op.bits.div_ceil(8));
    let times = if op.ending == Ending::TailBiting { 3 } else { 1 };
    let mut frames = Vec::with_capacity(decoded.len() / bytes * whole * times);
    for frame in softs.chunks_exact(op.coded_bits()) {
        let (begin, mut received) = (frames.len(), frame.iter());
        let soft = |at: usize| if op.code.puncture.is_sent(at) { received.next().copied() } else { None };
        frames.extend((0..whole).map(soft).map(|soft| soft.unwrap_or(UNKNOWN_BIT)));
        (1..times).for_each(|_| frames.extend_from_within(begin..begin + whole));
    }
    let long_bytes = (times * op.bits).div_ceil(8);
    let mut long = vec![0; decoded.len() / bytes * long_bytes];
    trellis.decode(&frames, times * op.bits, op.ending, &mut long, work);
    let first = if times == 3 { op.bits } else { 0 };
    for (long, out) in long.chunks_exact(long_bytes).zip(decoded.chunks_exact_mut(bytes)) {
        out.fill(0);
        for at in 0..op.bits {
            out[at / 8] |= (long[(first + at) / 8] >> (7 - (first + at) % 8) & 1) << (7 - at % 8);
        }
    }
}
