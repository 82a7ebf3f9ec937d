//! Crc: bit by bit, from the parameters of the published catalogues.

use panoply_core::op::signal::{Checksum, Crc};
use panoply_core::{Bytes, Result, Value};

pub(super) fn crc(op: &Crc) -> Result<Value> {
    let checks = op.messages.slices()?.into_iter().flat_map(|message| check(op.kind, message).to_le_bytes());
    Ok(Value::Bytes(Bytes::from_vec(checks.collect())))
}

fn check(kind: Checksum, message: &[u8]) -> u64 {
    // Width, polynomial, initial value, whether bits are reflected, and the final XOR.
    let (width, polynomial, first, reflected, last) = match kind {
        Checksum::Crc8 => (8, 0x07, 0, false, 0),
        Checksum::Crc16 => (16, 0x8005, 0, true, 0),
        Checksum::Crc16Ccitt => (16, 0x1021, 0xffff, false, 0),
        Checksum::Crc32 => (32, 0x04c1_1db7, 0xffff_ffff, true, 0xffff_ffff),
        Checksum::Crc32c => (32, 0x1edc_6f41, 0xffff_ffff, true, 0xffff_ffff),
        Checksum::Crc64 => (64, 0xad93_d235_94c9_3659_u64, u64::MAX, true, u64::MAX),
    };
    let mask = u64::MAX >> (64 - width);
    let mut rest: u64 = first;
    for byte in message {
        let byte = if reflected { byte.reverse_bits() } else { *byte };
        for bit in (0..8).rev() {
            let out = rest >> (width - 1) & 1 ^ u64::from(byte >> bit & 1);
            rest = (rest << 1) & mask ^ if out == 1 { polynomial } else { 0 };
        }
    }
    let rest = if reflected { rest.reverse_bits() >> (64 - width) } else { rest };
    rest ^ last
}
