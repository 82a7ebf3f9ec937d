//! Compress: blocks of LZ4, one warp for each. Only the kernel learns their lengths, so the outputs
//! are packed as those of Decompress are.

use panoply_core::op::crypto::{Compress, Format};
use panoply_core::{DType, Result, Shape, Support, Value};
use panoply_kernels::c::{Kernel, LZ4};

use super::unpack::{Bounds, MESSAGE_BYTES_MAX, PLACES_BYTES_MAX, collect};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::Launch;
use crate::ops::messages::{Batch, DeviceMessages, Terms};

pub(super) fn supports(op: &Compress) -> Support {
    if op.format != Format::Lz4Block {
        return Support::No(format!("it compresses to blocks of lz4, not to {}", op.format.name()));
    }
    if let Some(len) = op.messages.lens().find(|len| *len > MESSAGE_BYTES_MAX) {
        return Support::No(format!("a warp has a message of {len} bytes, and at most {MESSAGE_BYTES_MAX}"));
    }
    match op.messages.lens().fold(0_usize, |sum, len| sum.saturating_add(room(len))) {
        0..=PLACES_BYTES_MAX => Support::Yes,
        places => Support::No(format!("blocks may take {places} bytes, more than {PLACES_BYTES_MAX}")),
    }
}

/// The longest block of a message. The kernel relies on it.
fn room(len: usize) -> usize {
    len + len / 255 + 16
}

pub(super) fn compress(op: &Compress, context: &mut Context) -> Result<Value> {
    let messages = DeviceMessages::new(&op.messages, context)?;
    let terms = Terms { behind: 0, unit_bytes: 1, answer_len: &room, data: None };
    let batch = Batch::new(&messages, &terms, context)?;
    let (count, shape) = (batch.count(), Shape::new([batch.answer_bytes()])?);
    let (places, close) = (context.output(DType::U8, shape)?, context.output(DType::U8, shape)?);
    let lens = context.scratch(count * 8)?;
    if count > 0 {
        let arguments = Arguments::new().address(places.address).address(lens);
        let mut arguments = batch.add_to(arguments.address(messages.address).address(batch.rows()));
        context.launch(&Kernel::new(LZ4, "lz4_pack"), Launch::new(count, context.warp_lanes()), &mut arguments)?;
    }
    // A place is the limit of its block.
    let bounds = Bounds { limit: usize::MAX, total: usize::MAX };
    collect(&op.messages, &messages, batch, (places, close), lens, bounds, context)
}

#[cfg(test)]
mod tests {
    use panoply_conformance::run_one;
    use panoply_conformance::values::Random;
    use panoply_core::op::crypto::{Decompress, Messages};
    use panoply_core::{Backend, OpenOptions, Operation};
    use panoply_cpu::CpuBackend;

    use super::*;
    use crate::{EmulatedBackend, GpuBackend};

    /// Runs, words and noise of lengths around the borders of the format.
    fn messages() -> Vec<Vec<u8>> {
        let mut random = Random::new(72);
        let mut made: Vec<Vec<u8>> = (0..20).map(|len| vec![7; len]).collect();
        for len in [64, 300, 5_000, 70_000, 200_000] {
            made.push(vec![0; len]);
            made.push((0..len).map(|_| random.next_u64() as u8).collect());
            made.push((0..len).map(|at| b"one two three four five "[(at + at / 700) % 24]).collect());
            made.push(
                (0..len).map(|at| if at % 90 < 60 { (at % 251) as u8 } else { random.next_u64() as u8 }).collect(),
            );
        }
        made
    }

    /// Every block decompresses on the processor, is within its bound, and is the same in each run.
    #[test]
    fn blocks_are_the_messages() {
        let backends = match (EmulatedBackend::new(), EmulatedBackend::new()) {
            (Ok(narrow), Ok(wide)) => [narrow, wide.wide_warps()],
            (Err(absence), _) | (_, Err(absence)) => return println!("skipped: {absence}"),
        };
        let cpu = CpuBackend::new();
        let mut cpu = cpu.open(&cpu.discover().unwrap()[0], &OpenOptions::default()).unwrap();
        let messages = messages();
        for backend in &backends {
            let device = backend.discover().unwrap().remove(0);
            let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
            let list: Vec<_> = messages.iter().cloned().map(panoply_core::Bytes::from_vec).collect();
            let op = Compress::new(Format::Lz4Block, list).into_op().unwrap();
            let packed = Messages::from_value(run_one(&mut engine, op.clone()).unwrap()).unwrap();
            let again = Messages::from_value(run_one(&mut engine, op).unwrap()).unwrap();
            assert_eq!(packed.slices().unwrap(), again.slices().unwrap());
            for (packed, message) in packed.lens().zip(&messages) {
                assert!(packed <= room(message.len()));
                let is_regular = message.len() >= 5_000 && message.windows(2).take(900).all(|two| two[0] == two[1]);
                assert!(!is_regular || packed < message.len() / 50, "{packed} of {}", message.len());
            }
            let words = packed.lens().nth(messages.len() - 2).unwrap();
            assert!(words < 200_000 / 10, "words became {words} bytes");
            let op = Decompress::new(Format::Lz4Block, packed).limit(200_000).into_op().unwrap();
            let unpacked = Messages::from_value(run_one(cpu.as_mut(), op).unwrap()).unwrap();
            assert_eq!(unpacked.slices().unwrap(), messages);
        }
    }
}
