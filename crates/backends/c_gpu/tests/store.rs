//! A store whose chunks are compressed on the emulated device, because its options ask for that.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;

use panoply_c_gpu::EmulatedBackend;
use panoply_core::Backend;
use panoply_cpu::CpuBackend;
use panoply_runtime::{RunOptions, Runtime};
use panoply_store::{Compression, MasterKey, Options, Store};

#[test]
fn a_store_compresses_on_the_device_that_is_asked_for() {
    let emulated = match EmulatedBackend::new() {
        Ok(emulated) => emulated,
        Err(absence) => return println!("skipped: {absence}"),
    };
    let device = emulated.discover().unwrap().remove(0).id;
    let cpu = || Runtime::builder().backend(Arc::new(CpuBackend::new()));
    let both = Arc::new(cpu().backend(Arc::new(emulated)).build().unwrap());
    let folder = std::env::temp_dir().join(format!("panoply-c-gpu-store-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let key = || MasterKey::from_bytes(vec![9; 32]).unwrap();
    let wish = || Options {
        compression: Compression::Lz4,
        chunk_bytes: 32 << 10,
        compress_with: RunOptions::require(device),
        ..Options::default()
    };
    let content: Vec<u8> = (0..150_000_u32).map(|at| b"the words of a store "[(at + at / 500) as usize % 21]).collect();
    let mut store = Store::create(Arc::clone(&both), &folder, &key(), wish()).unwrap();
    let entry = store.put("words", &mut &content[..], false).unwrap();
    assert!(entry.stored < entry.len / 2, "{entry:?}");
    let mut whole = Vec::new();
    store.read("words", &mut whole).unwrap();
    assert_eq!(whole, content);
    let uses = store.compression_uses();
    assert!(uses.len() == 1 && uses[0].device == device, "{uses:?}");
    assert!(uses[0].compressed > 0 && uses[0].decompressed > 0 && uses[0].fallbacks == 0, "{uses:?}");
    drop(store);
    // Without the device it is readable as well.
    let store = Store::open_read_only(cpu().build().unwrap(), &folder, &key(), Options::default()).unwrap();
    let mut whole = Vec::new();
    store.read("words", &mut whole).unwrap();
    assert_eq!(whole, content);
    assert_eq!(store.compression_uses()[0].device.to_string(), "cpu:0");
    drop(store);
    std::fs::remove_dir_all(&folder).unwrap();
}
