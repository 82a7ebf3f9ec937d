//! Checks that no key stays in memory: after the store is dropped, the process's own memory is
//! searched for all keys.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_core::op::crypto::Key;
use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;

use crate::extent::object_secret;
use crate::key::{MasterKey, PassphraseCost};
use crate::store::{Options, Store};

const KEY_BYTES: usize = 32;
const PIECE_BYTES: usize = 1 << 20;

/// Secret bytes, masked so that the search does not find them.
struct MaskedKey([u8; KEY_BYTES]);

impl MaskedKey {
    fn of(secret: &[u8]) -> MaskedKey {
        let mut masked = [0; KEY_BYTES];
        masked.iter_mut().zip(secret).for_each(|(masked, byte)| *masked = byte ^ 0xa5);
        MaskedKey(masked)
    }

    /// A secret computed from a number.
    fn of_number(number: u32) -> MaskedKey {
        MaskedKey(std::array::from_fn(|index| byte(number, index) ^ 0xa5))
    }

    fn of_key(key: &Key) -> MaskedKey {
        MaskedKey::of(key.material().as_slice().unwrap())
    }

    fn is_at(&self, window: &[u8]) -> bool {
        window.iter().zip(&self.0).all(|(byte, masked)| byte ^ 0xa5 == *masked)
    }

    /// Number of occurrences in the readable memory of this process.
    fn copies(&self) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut memory = File::open("/proc/self/mem").unwrap();
        let mut piece = vec![0_u8; PIECE_BYTES];
        let own = piece.as_ptr() as u64..piece.as_ptr() as u64 + PIECE_BYTES as u64;
        let mut found = 0;
        for line in maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rw"))) {
            let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
            let (start, end) = (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap());
            let mut at = start;
            while at < end {
                let len = PIECE_BYTES.min((end - at) as usize);
                // Some mappings, such as those of devices, cannot be read.
                if memory.seek(SeekFrom::Start(at)).is_ok() && memory.read_exact(&mut piece[..len]).is_ok() {
                    let places = piece[..len].windows(KEY_BYTES).enumerate().filter(|(_, window)| self.is_at(window));
                    found += places.filter(|(offset, _)| !own.contains(&(at + *offset as u64))).count();
                }
                at += if len == PIECE_BYTES { (PIECE_BYTES - KEY_BYTES + 1) as u64 } else { len as u64 };
            }
        }
        piece.fill(0);
        found
    }
}

/// A byte of a secret, computed on demand.
fn byte(secret: u32, index: usize) -> u8 {
    let mixed = (index as u32 ^ 0x5bd1_e995 ^ secret << 16).wrapping_mul(0x9e37_79b1).rotate_left(13);
    (mixed.wrapping_mul(0x85eb_ca6b) >> 24) as u8
}

fn secret(number: u32) -> Vec<u8> {
    (0..KEY_BYTES).map(|index| byte(number, index)).collect()
}

fn options() -> Options {
    let passphrase_cost = PassphraseCost { memory_kib: 256, passes: 1, lanes: 1 };
    Options { chunk_bytes: 1000, passphrase_cost, ..Options::default() }
}

/// Uses a store in every way, and returns all secrets that were in memory, masked.
fn use_store(runtime: &Arc<Runtime>, folder: &std::path::Path) -> Vec<(&'static str, MaskedKey)> {
    let first = MasterKey::from_bytes(secret(1)).unwrap();
    let mut store = Store::create(Arc::clone(runtime), folder, &first, options()).unwrap();
    store.put("a", &mut &[7; 5000][..], false).unwrap();
    let mut secrets = vec![("first root key", MaskedKey::of_key(store.identity().keyring.newest().unwrap().1))];
    let passphrase = MasterKey::passphrase(secret(2)).unwrap();
    store.rotate(&passphrase).unwrap();
    store.append("a", &mut &[8; 5000][..]).unwrap();
    drop(store);
    let store = Store::open(Arc::clone(runtime), folder, &passphrase, options()).unwrap();
    store.read("a", &mut Vec::new()).unwrap();
    assert!(store.verify(&mut |_, _| ()).unwrap().damaged.is_empty());
    let object = store.object("a").unwrap();
    let object_key = object_secret(runtime, store.identity(), 2, &object.id).unwrap().unwrap();
    let (_, root) = store.identity().keyring.newest().unwrap();
    secrets.push(("object key", MaskedKey::of_key(&object_key)));
    secrets.push(("second root key", MaskedKey::of_key(root)));
    assert!(secrets[2].1.copies() >= 1 && MaskedKey::of_number(2).copies() >= 1, "the search finds what is there");
    let shown = format!("{store:?} {first:?} {passphrase:?} {:?} {:?}", store.identity(), store.options());
    let is_shown = |number: u32| {
        (0..KEY_BYTES - 2).any(|at| {
            shown.contains(&format!("{}, {}, {}", byte(number, at), byte(number, at + 1), byte(number, at + 2)))
        })
    };
    assert!(!is_shown(1) && !is_shown(2), "{shown}");
    secrets
}

#[test]
fn no_key_is_left_in_memory() {
    let folder = std::env::temp_dir().join(format!("panoply-store-secrets-{}", std::process::id()));
    let runtime = Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap());
    let mut secrets = use_store(&runtime, &folder);
    secrets.push(("master key", MaskedKey::of_number(1)));
    secrets.push(("passphrase", MaskedKey::of_number(2)));
    let file = folder.join("written.key");
    MasterKey::from_bytes(secret(3)).unwrap().write_new_file(&file).unwrap();
    secrets.push(("written key", MaskedKey::of_number(3)));
    // Two hexadecimal digits for each byte.
    let nibble = |at: usize| (byte(3, at / 2) >> (4 - at % 2 * 4)) & 15;
    let digit = |at: usize| b"0123456789abcdef"[usize::from(nibble(at))];
    secrets.push(("digits of a written key", MaskedKey(std::array::from_fn(|at| digit(at) ^ 0xa5))));
    // The worker releases an op only after its answer.
    let start = Instant::now();
    for (name, secret) in &secrets {
        while secret.copies() > 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "{name} is still in memory");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
