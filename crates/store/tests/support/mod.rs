//! Shared by the tests: a runtime, folders, pseudo-random contents.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(dead_code)] // Each test file uses a part of it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;
use panoply_store::{MasterKey, Options, PassphraseCost, Store};

/// One runtime with the CPU for all tests of a file.
pub fn runtime() -> Arc<Runtime> {
    static RUNTIME: OnceLock<Arc<Runtime>> = OnceLock::new();
    let build = || Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap());
    Arc::clone(RUNTIME.get_or_init(build))
}

/// A folder that is deleted at the end of the test.
pub struct TempFolder(pub PathBuf);

impl TempFolder {
    /// A path at which nothing exists yet.
    pub fn new(name: &str) -> TempFolder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("panoply-store-{name}-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        TempFolder(path)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Pseudo-random numbers, the same for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Bytes that are partly compressible.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 64);
        while bytes.len() < len {
            let run = 1 + self.below(300) as usize;
            match self.below(2) {
                0 => bytes.extend(std::iter::repeat_n(self.next() as u8, run)),
                _ => bytes.extend((0..run).map(|_| self.next() as u8)),
            }
        }
        bytes.truncate(len);
        bytes
    }
}

/// Small chunks and files, so that little data makes many of them.
pub fn options() -> Options {
    let passphrase_cost = PassphraseCost { memory_kib: 8, passes: 1, lanes: 1 };
    Options { chunk_bytes: 100, extent_bytes_max: 1000, passphrase_cost, ..Options::default() }
}

pub fn key(number: u8) -> MasterKey {
    MasterKey::from_bytes(vec![number; 32]).unwrap()
}

pub fn create(folder: &Path) -> Store {
    Store::create(runtime(), folder, &key(1), options()).unwrap()
}

pub fn open(folder: &Path) -> panoply_store::Result<Store> {
    Store::open(runtime(), folder, &key(1), options())
}

pub fn read(store: &Store, name: &str) -> panoply_store::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    store.read(name, &mut bytes).map(|()| bytes)
}

/// Whether everything in the store is intact.
pub fn is_intact(store: &Store) -> bool {
    store.verify(&mut |_, _| ()).unwrap().damaged.is_empty()
}

/// Copies a store as it is.
pub fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// All files of a store except its lock and its reserve, which are never read.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else if entry.file_name() != "RESERVE" && entry.file_name() != "LOCK" {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}
