//! A secret part leaves no copy behind: after its last handle is dropped, the process's own memory is searched for it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use panoply_core::Bytes;
use panoply_runtime::{FallbackPolicy, RunOptions};

use crate::notary::{OpenSession, Stamp};

const KEY_BYTES: usize = 48;
const CHUNK_BYTES: usize = 1 << 20;

/// One byte of the key, computed where it is needed, so that the search itself keeps no copy.
fn key_byte(index: usize) -> u8 {
    let mixed = (index as u32 ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b1).rotate_left(13).wrapping_mul(0x85eb_ca6b);
    (mixed >> 24) as u8
}

fn is_key(window: &[u8]) -> bool {
    window.iter().enumerate().all(|(index, byte)| *byte == key_byte(index))
}

/// How often the key stands in memory that this process can read.
fn copies() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut memory = File::open("/proc/self/mem").unwrap();
    let mut chunk = vec![0_u8; CHUNK_BYTES];
    let own = chunk.as_ptr() as u64..chunk.as_ptr() as u64 + CHUNK_BYTES as u64;
    let mut found = 0;
    for line in maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rw"))) {
        let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
        let (start, end) = (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap());
        let mut at = start;
        while at < end {
            let len = CHUNK_BYTES.min((end - at) as usize);
            // Some maps, such as those of devices, cannot be read.
            if memory.seek(SeekFrom::Start(at)).is_ok() && memory.read_exact(&mut chunk[..len]).is_ok() {
                let places = chunk[..len].windows(KEY_BYTES).enumerate().filter(|(_, window)| is_key(window));
                found += places.filter(|(offset, _)| !own.contains(&(at + *offset as u64))).count();
            }
            // Windows overlap, so that a key across two of them is seen.
            at += if len == CHUNK_BYTES { (CHUNK_BYTES - KEY_BYTES + 1) as u64 } else { len as u64 };
        }
    }
    chunk.fill(0);
    found
}

#[test]
#[cfg(target_os = "linux")]
fn a_secret_leaves_no_copy_in_the_process() {
    let (runtime, _) = crate::runtime(2, FallbackPolicy::Retry { times: 1 });
    {
        let key = Bytes::secret((0..KEY_BYTES).map(key_byte).collect()).unwrap();
        assert!(copies() >= 1, "the search finds a key that is there");
        assert!(!format!("{key:?}").contains(&key_byte(0).to_string()));
        let op = OpenSession { key, with_recipe: true };
        let session = runtime.run_with(op, RunOptions::require(crate::device(0))).wait().unwrap();
        let message = Bytes::from_vec(vec![0x55; 64]);
        let stamped = runtime.run(Stamp { session: session.clone(), message, repeatable: true }).wait().unwrap();
        assert_eq!(stamped.as_slice().unwrap()[0], 0x55 ^ key_byte(0));
        assert!(!runtime.profile().to_text().contains("key"));
    }
    drop(runtime);
    assert_eq!(copies(), 0);
}
