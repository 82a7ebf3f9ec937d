//! Runs every decompressor on the same bytes. Each must return an error, or a result within the
//! limit.
#![no_main]

use panoply_core::op::crypto::Format;
use panoply_cpu_crypto::pack::{Packer, first_try};

const LIMIT_BYTES: usize = 1 << 16;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut packer = Packer::default();
    for format in Format::ALL {
        let Ok(room) = first_try(format, bytes, LIMIT_BYTES) else { continue };
        let mut out = vec![0; room];
        match packer.decompress(format, bytes, &mut out) {
            Ok(len) => assert!(len <= room),
            Err(_) => {
                if let Ok(made) = packer.decompress_further(format, bytes, room, LIMIT_BYTES) {
                    assert!(made.len() <= LIMIT_BYTES);
                }
            }
        }
    }
});
