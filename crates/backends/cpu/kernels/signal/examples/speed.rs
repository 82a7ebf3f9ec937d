//! Measures the speed of the domain's functions on one thread of this CPU. Each line has the name
//! of the same benchmark in `panoply bench`.

use std::hint::black_box;
use std::time::Instant;

use panoply_core::op::Runs;
use panoply_core::op::crypto::Messages;
use panoply_core::op::signal::*;
use panoply_core::{DType, HostBufferMut, Op, Operation, Result, Tensor};
use panoply_cpu_signal::{Here, Level, OneThread, Workspace};
use panoply_radio::design::{Band, Prototype, recursive};
use panoply_radio::synthetic::Noise;

const MI: usize = 1 << 20;

fn main() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let x = floats(DType::F32, &[4 * MI])?;
    let z = floats(DType::Complex64, &[4 * MI])?;
    let run = |name: &str, amount: f64, unit: &str, op: Op| {
        if wanted.is_empty() || wanted.iter().any(|prefix| name.starts_with(prefix.as_str())) {
            let seconds = best_seconds(&op);
            println!("{name}: {:.3} ms, {:.1} {unit}", seconds * 1e3, amount / seconds);
        }
    };
    let samples = 4.0 * MI as f64 / 1e6;
    run("fir/f32/4Mi/t101", samples, "Msamples/s", Fir::new(&x, &floats(DType::F32, &[101])?).into_op()?);
    run("fir/f32/4Mi/t1023", samples, "Msamples/s", Fir::new(&x, &floats(DType::F32, &[1023])?).into_op()?);
    run("fir/c64/4Mi/t101", samples, "Msamples/s", Fir::new(&z, &floats(DType::F32, &[101])?).into_op()?);
    let sections = recursive(Prototype::Butterworth, 8, Band::LowPass(0.2))?;
    run("iir/f32/4Mi/order8", samples, "Msamples/s", Iir::new(&x, sections.clone()).into_op()?);
    let lines = x.reshape([256, 16_384])?;
    run("iir/f32/256x16384/order8", samples, "Msamples/s", Iir::new(&lines, sections).into_op()?);
    let pattern = floats(DType::Complex64, &[4096])?;
    let correlation = Convolve::correlation(&z.slice(0, 0, MI)?, &pattern).into_op()?;
    run("correlate/c64/1Mi/t4096", MI as f64 / 1e6, "Msamples/s", correlation);
    for constellation in Constellation::ALL {
        let (name, symbols) = (constellation.name(), MI as f64 / 1e6);
        let points = z.slice(0, 0, MI)?;
        let sent = bytes(MI, |at| (at % (1 << constellation.bits())) as u8, &[MI])?;
        run(
            &format!("modulate/{name}/1Mi"),
            symbols,
            "Msymbols/s",
            Modulate::new(constellation.clone(), &sent).into_op()?,
        );
        let hard = Demodulate::hard(constellation.clone(), &points).into_op()?;
        run(&format!("demodulate/{name}/1Mi/hard"), symbols, "Msymbols/s", hard);
        let soft = Demodulate::soft(constellation, &points, 0.5).into_op()?;
        run(&format!("demodulate/{name}/1Mi/soft"), symbols, "Msymbols/s", soft);
    }
    for kind in Checksum::ALL {
        let op = Crc::new(kind, vec![3; MI]).into_op()?;
        run(&format!("crc/{}/1MiB", kind.name()), MI as f64 / 1e9, "GB/s", op);
        let op = Crc::new(kind, Messages::split(vec![3; 10_000 << 10].into(), 1024)?).into_op()?;
        run(&format!("crc/{}/10000x1KiB", kind.name()), 10_000.0 * 1024.0 / 1e9, "GB/s", op);
    }
    codes(&run)?;
    session()
}

fn codes(run: &dyn Fn(&str, f64, &str, Op)) -> Result<()> {
    let shape = ReedSolomon::ccsds(223);
    let data = bytes(512 * 223, |at| (at * 7) as u8, &[512, 223])?;
    let megabits = 512.0 * 223.0 * 8.0 / 1e6;
    let encode = RsEncode::new(shape, &data).into_op()?;
    let (mut space, take) = (Workspace::new(Level::best()), &mut HostBufferMut::zeroed);
    let words = panoply_cpu_signal::run(&encode, &mut space, &OneThread, take)
        .map_or_else(no_op, |value| value?.into_tensor())?;
    run("rs_encode/255-223/512", megabits, "Mb/s", encode);
    run("rs_decode/255-223/512/e0", megabits, "Mb/s", RsDecode::new(shape, &words).into_op()?);
    let mut wrong = words.as_slice::<u8>()?.to_vec();
    wrong.chunks_mut(255).for_each(|word| (0..8).for_each(|at| word[at * 31] ^= 0x55));
    let wrong = Tensor::from_vec(wrong, [512, 255])?;
    run("rs_decode/255-223/512/e8", megabits, "Mb/s", RsDecode::new(shape, &wrong).into_op()?);
    let shards = bytes(10 * MI, |at| (at * 7) as u8, &[10, MI])?;
    run("erasure_encode/10+4/1MiB", 10.0 * MI as f64 / 1e9, "GB/s", ErasureEncode::new(&shards, 4).into_op()?);
    let frames = bytes(256 * 256, |at| (at * 77) as u8, &[256, 256])?;
    let megabits = 256.0 * 2048.0 / 1e6;
    run("conv_encode/k7r2/256x2048", megabits, "Mb/s", ConvolutionalEncode::new(&frames, 2048).into_op()?);
    let coded = 2 * (2048 + 6);
    let softs = bytes(256 * coded, |at| ((at * 7919) >> 3) as u8, &[256, coded])?;
    run("viterbi/k7r2/256x2048", megabits, "Mb/s", Viterbi::new(&softs, 2048).into_op()?);
    let code = Ldpc::Telemetry { data: 1024, rate: TelemetryRate::Half };
    let data = bytes(16 * 128, |at| (at * 77) as u8, &[16, 128])?;
    let encode = LdpcEncode::new(code, &data).into_op()?;
    let sent = panoply_cpu_signal::run(&encode, &mut space, &OneThread, take)
        .map_or_else(no_op, |value| value?.into_tensor())?;
    // The noise of the compared libraries' benchmarks: the mean of four uniformly distributed
    // numbers, added to levels of ±0.6.
    let mut noise = Noise::new(7);
    let mut level = |bit: u8| {
        let sum: f64 = (0..4).map(|_| 2.0 * noise.unit() - 1.0).sum();
        (10.0 * ((if bit == 0 { 0.6 } else { -0.6 }) + 0.25 * sum)) as f32
    };
    let words = sent.as_slice::<u8>()?.chunks_exact(256);
    let levels = words.flat_map(|word| (0..2048).map(|at| word[at / 8] >> (7 - at % 8) & 1)).map(&mut level).collect();
    let words = Tensor::from_vec::<f32>(levels, [16, 2048])?;
    run("ldpc/ccsds-tm2048/16", 16.0 * 1024.0 / 1e6, "Mb/s", LdpcDecode::new(code, &words).into_op()?);
    Ok(())
}

/// The overhead of a call of a stream: one sample through one tap.
fn session() -> Result<()> {
    let mut here = Here::with_streams();
    let taps = Tensor::from_vec(vec![1.0_f32], [1])?;
    let stream = here.run(StartFilter::new(Filter::fir(&taps), DType::Complex64))?;
    let piece = floats(DType::Complex64, &[1])?;
    let mut best = f64::INFINITY;
    for _ in 0..100 {
        let begin = Instant::now();
        for _ in 0..1000 {
            black_box(here.run(StreamFilter::new(&stream, &piece))?);
        }
        best = best.min(begin.elapsed().as_secs_f64() / 1000.0);
    }
    println!("session/fir/c64/1: {:.3} µs a call", best * 1e6);
    Ok(())
}

fn no_op() -> Result<Tensor> {
    Err(panoply_core::Error::invalid("speed", "an op of the domain", "a transform"))
}

/// The shortest of the runs within half a second.
fn best_seconds(op: &Op) -> f64 {
    let mut space = Workspace::new(Level::best());
    let mut kept: Vec<HostBufferMut> = Vec::new();
    let (mut best, begin) = (f64::INFINITY, Instant::now());
    while begin.elapsed().as_secs_f64() < 0.5 {
        // Memory that was written before, like that of a pool.
        let mut take = |bytes: usize| match kept.pop() {
            Some(memory) if memory.bytes().len() == bytes => Ok(memory),
            _ => HostBufferMut::zeroed(bytes).map(|mut memory| {
                memory.bytes_mut().fill(1);
                memory
            }),
        };
        let mut prepared: Vec<HostBufferMut> = Vec::new();
        let outputs = op.outputs().unwrap_or_default();
        for (dtype, shape) in outputs.iter().rev() {
            prepared.extend(take(shape.elements() * dtype.size_bytes()));
        }
        let start = Instant::now();
        let value = panoply_cpu_signal::run(op, &mut space, &OneThread, &mut |bytes| match prepared.pop() {
            Some(memory) if memory.bytes().len() == bytes => Ok(memory),
            _ => HostBufferMut::zeroed(bytes),
        });
        best = best.min(start.elapsed().as_secs_f64());
        black_box(&value);
    }
    best
}

fn floats(dtype: DType, dims: &[usize]) -> Result<Tensor> {
    let mut state = 7_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let count = dims.iter().product();
    match dtype {
        DType::Complex64 => {
            Tensor::from_vec((0..count).map(|_| panoply_core::Complex64::new(next(), next())).collect(), dims)
        }
        _ => Tensor::from_vec((0..count).map(|_| next()).collect::<Vec<f32>>(), dims),
    }
}

fn bytes(count: usize, byte: impl Fn(usize) -> u8, dims: &[usize]) -> Result<Tensor> {
    Tensor::from_vec((0..count).map(byte).collect(), dims)
}
