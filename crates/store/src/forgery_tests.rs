//! Forgery with an old master key. Someone with an old master key and a copy of the head of that
//! time has the root keys of that time, and so the keys of extents that were written then. He can
//! still seal chunks under them after the key was rotated. The forgery is detected because it
//! differs from the catalog, which he cannot seal.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use panoply_core::op::crypto::{Hash, HashAlgorithm, Key, Messages, Seal};
use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;

use crate::catalog::Extent;
use crate::error::Error;
use crate::extent::form::Form;
use crate::extent::index::{self, ChunkEntry, Index};
use crate::extent::{associated, chunk_nonces, extent_key, object_secret};
use crate::key::MasterKey;
use crate::merkle::digests;
use crate::store::{Options, Store};

const CHUNK_BYTES: usize = 100;
const LEN: usize = 250;

struct Forger {
    runtime: Arc<Runtime>,
    folder: PathBuf,
    extent: Extent,
    /// The front of the extent's file.
    front: Vec<u8>,
    /// The extent's key, which an old root key reveals.
    key: Key,
}

impl Forger {
    /// A store with one object whose master key was rotated, and a forger who has the old key.
    fn new(name: &str) -> (Forger, Store) {
        let folder = std::env::temp_dir().join(format!("panoply-store-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let runtime = Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap());
        let master = |byte| MasterKey::from_bytes(vec![byte; 32]).unwrap();
        let options = Options { chunk_bytes: CHUNK_BYTES, level: None, ..Options::default() };
        let mut store = Store::create(Arc::clone(&runtime), &folder, &master(1), options).unwrap();
        store.put("a", &mut &[7; LEN][..], false).unwrap();
        let object = store.object("a").unwrap();
        let extent = object.extents[0].clone();
        let secret = object_secret(&runtime, store.identity(), extent.epoch, &object.id).unwrap().unwrap();
        let key = extent_key(&runtime, &secret, &extent.id).unwrap();
        store.rotate(&master(2)).unwrap();
        let mut forger = Forger { runtime, folder, extent, front: Vec::new(), key };
        let whole = std::fs::read(forger.file()).unwrap();
        // Magic, id, epoch, and the sealed owner behind its length.
        let owner = u32::from_le_bytes(whole[52..56].try_into().unwrap()) as usize;
        forger.front = whole[..56 + owner].to_vec();
        (forger, store)
    }

    fn file(&self) -> PathBuf {
        let id: String = self.extent.id.iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join("data").join(id)
    }

    /// Chunks with other content, sealed as the store seals them.
    fn chunks(&self) -> Messages {
        let plain = Messages::split(vec![8_u8; LEN].into(), CHUNK_BYTES).unwrap();
        let told = associated(plain.lens().map(|len| (Form::Plain, len))).unwrap();
        self.runtime.run(Seal::new(&self.key, chunk_nonces(0), plain).associated(told)).wait().unwrap().text
    }

    fn index_of(&self, chunks: &Messages) -> Vec<u8> {
        let hashed = self.runtime.run(Hash::new(HashAlgorithm::Sha256, chunks.clone())).wait().unwrap();
        let entry = |(stored, digest)| ChunkEntry { stored: stored as u32, form: Form::Plain, digest };
        let entries: Vec<ChunkEntry> = chunks.lens().zip(digests(&hashed).unwrap()).map(entry).collect();
        let index = Index { len: LEN as u64, is_last: true, chunks: entries };
        index::seal(&self.runtime, &self.key, &self.front, CHUNK_BYTES as u32, &index).unwrap()
    }

    /// Replaces the extent's file by the forged chunks and an index.
    fn replace(&self, chunks: &Messages, index: &[u8]) {
        let mut file = self.front.clone();
        chunks.slices().unwrap().into_iter().for_each(|chunk| file.extend(chunk));
        file.extend(index);
        assert_eq!(file.len() as u64, self.extent.file_bytes);
        std::fs::write(self.file(), file).unwrap();
    }
}

impl Drop for Forger {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn expect_refused(store: &Store, file: &Path, reason: &str) {
    let mut out = Vec::new();
    for read in [store.read("a", &mut out), store.read_range("a", 120..130, &mut out)] {
        assert!(
            matches!(&read, Err(Error::Damaged { path, reason: told }) if path == file && *told == reason),
            "{read:?}"
        );
    }
    assert!(out.is_empty() && !store.verify(&mut |_, _| ()).unwrap().damaged.is_empty());
}

#[test]
fn chunks_and_an_index_under_an_old_key_are_not_the_catalogs() {
    let (forger, store) = Forger::new("forged-index");
    let chunks = forger.chunks();
    forger.replace(&chunks, &forger.index_of(&chunks));
    expect_refused(&store, &forger.file(), "its Merkle root is not the catalog's");
}

#[test]
fn chunks_under_an_old_key_are_not_those_of_the_index() {
    let (forger, store) = Forger::new("forged-chunks");
    let whole = std::fs::read(forger.file()).unwrap();
    let chunks = forger.chunks();
    let index = &whole[forger.front.len() + chunks.lens().sum::<usize>()..];
    forger.replace(&chunks, index);
    expect_refused(&store, &forger.file(), "a chunk is not the one of the Merkle tree");
}
