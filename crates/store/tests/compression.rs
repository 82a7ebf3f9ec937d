//! The formats of compressed chunks, and where they are compressed.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;

use crate::support::{Random, TempFolder, key, read, runtime};
use panoply_core::DeviceId;
use panoply_runtime::{RunOptions, Runtime};
use panoply_store::{Compression, Error, Options, Store};

/// Small chunks, and no anchor.
fn options(compression: Compression) -> Options {
    Options { compression, chunk_bytes: 64 << 10, ..Options::default() }
}

/// Text and numbers that compress, and noise that does not.
fn objects() -> Vec<(&'static str, Vec<u8>)> {
    let words = (0..60_000_u32).flat_map(|number| format!("line {}\n", number % 977).into_bytes()).collect();
    let numbers = (0..100_000_u32).flat_map(|number| (1.0 + number as f32 * 1e-6).to_le_bytes()).collect();
    let mut random = Random(5);
    let noise = (0..40_000).flat_map(|_| random.next().to_le_bytes()).collect();
    vec![("words", words), ("numbers", numbers), ("noise", noise), ("empty", Vec::new())]
}

#[test]
fn every_format_is_read_again_without_being_named() {
    for compression in Compression::ALL {
        let folder = TempFolder::new(compression.name());
        let mut store = Store::create(runtime(), &folder.0, &key(1), options(compression)).unwrap();
        for (name, content) in objects() {
            let entry = store.put(name, &mut &content[..], false).unwrap();
            let is_shorter = entry.stored < entry.len;
            assert_eq!(is_shorter, matches!(name, "words" | "numbers"), "{name} as {}", compression.name());
        }
        let uses = store.compression_uses();
        assert_eq!(uses.len(), 1);
        assert!(uses[0].compressed >= 3 && uses[0].decompressed == 0 && uses[0].fallbacks == 0, "{uses:?}");
        drop(store);
        let head = std::fs::read(folder.0.join("HEAD")).unwrap();
        let is_marked = head.starts_with(b"panoply store 3\n");
        assert_eq!(is_marked, compression != Compression::Zstd, "earlier versions must refuse it");
        let store = Store::open(runtime(), &folder.0, &key(1), Options::default()).unwrap();
        for (name, content) in objects() {
            assert_eq!(read(&store, name).unwrap(), content, "{name} as {}", compression.name());
        }
        assert!(store.compression_uses()[0].decompressed >= 2);
        assert!(store.verify(&mut |_, _| ()).unwrap().damaged.is_empty());
    }
}

#[test]
fn a_store_for_zstandard_alone_is_marked_by_a_rotation_before_it_takes_others() {
    let folder = TempFolder::new("marked");
    let (name, content) = objects().swap_remove(0);
    let mut store = Store::create(runtime(), &folder.0, &key(1), options(Compression::Zstd)).unwrap();
    store.put("old", &mut &content[..], false).unwrap();
    drop(store);
    let mut store = Store::open(runtime(), &folder.0, &key(1), options(Compression::Lz4)).unwrap();
    let refused = store.put(name, &mut &content[..], false).unwrap_err();
    assert!(matches!(&refused, Error::InvalidArgument { what: "compression", .. }), "{refused}");
    assert!(refused.to_string().contains("rotate"), "{refused}");
    store.rotate(&key(2)).unwrap();
    store.put(name, &mut &content[..], false).unwrap();
    drop(store);
    // A later rotation without a wish keeps the mark.
    let mut store = Store::open(runtime(), &folder.0, &key(2), Options::default()).unwrap();
    store.rotate(&key(3)).unwrap();
    drop(store);
    let mut store = Store::open(runtime(), &folder.0, &key(3), options(Compression::Deflate)).unwrap();
    store.append(name, &mut &content[..]).unwrap();
    assert_eq!(read(&store, "old").unwrap(), content);
    assert_eq!(read(&store, name).unwrap(), [&content[..], &content].concat(), "an extent of each format");
    drop(store);
    // The mark is authenticated, so it cannot be taken away.
    let path = folder.0.join("HEAD");
    let head = std::fs::read(&path).unwrap();
    let unmarked: Vec<u8> =
        head.iter().enumerate().map(|(at, byte)| if at % 4096 == 14 { b'2' } else { *byte }).collect();
    std::fs::write(&path, unmarked).unwrap();
    assert!(Store::open(runtime(), &folder.0, &key(3), Options::default()).is_err());
}

#[test]
fn a_level_is_one_of_its_format() {
    let folder = TempFolder::new("levels");
    for (compression, level) in [(Compression::Zstd, 23), (Compression::Deflate, 13), (Compression::Lz4, 2)] {
        let wrong = Options { level: Some(level), ..options(compression) };
        let refused = Store::create(runtime(), &folder.0, &key(1), wrong).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument { what: "level of compression", .. }), "{refused}");
    }
}

#[test]
fn a_device_that_is_required_but_not_there_is_an_error() {
    let folder = TempFolder::new("required");
    let runtime: Arc<Runtime> = runtime();
    let absent: DeviceId = "qat:0".parse().unwrap();
    let wish = Options { compress_with: RunOptions::require(absent), ..options(Compression::Deflate) };
    let mut store = Store::create(Arc::clone(&runtime), &folder.0, &key(1), wish).unwrap();
    let (name, content) = objects().swap_remove(0);
    let refused = store.put(name, &mut &content[..], false).unwrap_err();
    assert!(refused.to_string().contains("qat:0"), "{refused}");
    assert_eq!((store.entries().count(), store.compression_uses()), (0, Vec::new()));
}
