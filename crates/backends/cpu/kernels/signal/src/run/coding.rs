//! The ops `LdpcEncode`, `LdpcDecode`, `Interleave` and `Scramble`.

use std::sync::Mutex;

use panoply_core::op::signal::{Interleave, LdpcDecode, LdpcEncode, Scramble, Scrambler};
use panoply_core::{DType, Result, Threads, Value};

use super::output::{Output, TakeMemory};
use super::space::Space;
use crate::ldpc::LANES;
use crate::threads::{for_each_piece, share};
use crate::whiten::scramble as scramble_line;

/// The least number of bytes in one turn of a thread.
const TURN_BYTES_MIN: usize = 64 << 10;

pub(super) fn ldpc_encode(
    op: &LdpcEncode,
    space: &mut Space,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let (input, graph, shape) = (op.input.contiguous()?, space.graph(op.code)?, op.output_shape()?);
    let data = input.as_slice::<u8>()?;
    let mut output = Output::take(DType::U8, shape, take)?;
    let (bytes, coded) = (op.code.data_bits().div_ceil(8), op.code.coded_bits().div_ceil(8));
    let each = share(data.len() / bytes, threads.count(), 1);
    for_each_piece(threads, output.bytes(), each * coded, &|turn, part| {
        let words = data[turn * each * bytes..].chunks_exact(bytes);
        part.chunks_exact_mut(coded).zip(words).for_each(|(out, data)| graph.encode(data, out));
    });
    output.value()
}

pub(super) fn ldpc_decode(
    op: &LdpcDecode,
    space: &mut Space,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let (input, graph) = (op.input.contiguous()?, space.graph(op.code)?);
    let (likelihoods, (shape, count_shape)) = (input.as_slice::<f32>()?, op.output_shapes()?);
    let mut data = Output::take(DType::U8, shape, take)?;
    let mut counts = Output::take(DType::I32, count_shape, take)?;
    let (bytes, coded) = (op.code.data_bits().div_ceil(8), op.code.coded_bits());
    let words = count_shape.elements();
    let each = LANES.min(words.div_ceil(threads.count().max(1))).max(1);
    let shared: Vec<Mutex<&mut [i32]>> = counts.integers().chunks_mut(each).map(Mutex::new).collect();
    for_each_piece(threads, data.bytes(), each * bytes, &|turn, part| {
        let own = &likelihoods[turn * each * coded..][..part.len() / bytes * coded];
        // Each turn has its own counts, so this lock never blocks.
        let mut counts = shared[turn].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        graph.decode(own, op.iterations, part, &mut counts);
    });
    drop(shared);
    Ok(Value::Pair(data.tensor()?, counts.tensor()?))
}

pub(super) fn interleave(op: &Interleave, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let (input, frame) = (op.input.contiguous()?, op.interleaver.frame());
    let size = input.dtype().size_bytes();
    let mut output = Output::take(input.dtype(), *input.shape(), take)?;
    let bytes = input.as_bytes()?;
    if bytes.is_empty() {
        return output.value();
    }
    let mut order: Vec<usize> = (0..frame).map(|place| op.interleaver.source(place)).collect();
    if op.inverse {
        let forward = std::mem::replace(&mut order, vec![0; frame]);
        forward.iter().enumerate().for_each(|(place, source)| order[*source] = place);
    }
    let each = share(input.elements() / frame, threads.count(), TURN_BYTES_MIN.div_ceil(frame * size));
    for_each_piece(threads, output.bytes(), each * frame * size, &|turn, part| {
        let source = &bytes[turn * each * frame * size..][..part.len()];
        match size {
            1 => reorder::<1>(&order, source, part),
            2 => reorder::<2>(&order, source, part),
            4 => reorder::<4>(&order, source, part),
            _ => reorder::<8>(&order, source, part),
        }
    });
    output.value()
}

fn reorder<const SIZE: usize>(order: &[usize], source: &[u8], output: &mut [u8]) {
    let (source, output) = (source.as_chunks::<SIZE>().0, output.as_chunks_mut::<SIZE>().0);
    for (source, output) in source.chunks_exact(order.len()).zip(output.chunks_exact_mut(order.len())) {
        output.iter_mut().zip(order).for_each(|(out, from)| *out = source[*from]);
    }
}

pub(super) fn scramble(op: &Scramble, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let input = op.input.contiguous()?;
    let (bytes, len) = (input.as_slice::<u8>()?, input.shape().last().copied().unwrap_or(0));
    let mut output = Output::take(DType::U8, *input.shape(), take)?;
    if bytes.is_empty() {
        return output.value();
    }
    // An additive scrambler adds the same bits to every line.
    let mut added = Vec::new();
    if let Scrambler::Additive { .. } = op.scrambler {
        added.resize(len, 0);
        scramble_line(op.scrambler, false, &vec![0; len], &mut added);
    }
    let each = share(bytes.len() / len, threads.count(), TURN_BYTES_MIN.div_ceil(len));
    for_each_piece(threads, output.bytes(), each * len, &|turn, part| {
        for (out, line) in part.chunks_exact_mut(len).zip(bytes[turn * each * len..].chunks_exact(len)) {
            match added.is_empty() {
                true => scramble_line(op.scrambler, op.inverse, line, out),
                false => out.iter_mut().zip(line).zip(&added).for_each(|((out, byte), added)| *out = byte ^ added),
            }
        }
    });
    output.value()
}
