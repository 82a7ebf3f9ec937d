//! The keys of tests, and the search for them in the memory of the process.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use panoply_core::Bytes;

const KEY_BYTES: usize = 48;
const CHUNK_BYTES: usize = 1 << 20;

/// One byte of a test's key, computed on use, so that the search itself keeps no copy.
pub fn key_byte(test: u32, index: usize) -> u8 {
    let mixed = (index as u32 ^ 0x5bd1_e995 ^ test << 16).wrapping_mul(0x9e37_79b1).rotate_left(13);
    (mixed.wrapping_mul(0x85eb_ca6b) >> 24) as u8
}

/// The key of a test, as a secret.
pub fn key(test: u32) -> Bytes {
    Bytes::secret((0..KEY_BYTES).map(|index| key_byte(test, index)).collect()).unwrap()
}

fn is_key(test: u32, window: &[u8]) -> bool {
    window.iter().enumerate().all(|(index, byte)| *byte == key_byte(test, index))
}

/// How often a test's key occurs in the memory that this process can read.
pub fn copies(test: u32) -> usize {
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
            // Some mappings, such as those of devices, cannot be read.
            if memory.seek(SeekFrom::Start(at)).is_ok() && memory.read_exact(&mut chunk[..len]).is_ok() {
                let places = chunk[..len].windows(KEY_BYTES).enumerate().filter(|(_, window)| is_key(test, window));
                found += places.filter(|(offset, _)| !own.contains(&(at + *offset as u64))).count();
            }
            // Windows overlap, so that a key across two windows is found.
            at += if len == CHUNK_BYTES { (CHUNK_BYTES - KEY_BYTES + 1) as u64 } else { len as u64 };
        }
    }
    chunk.fill(0);
    found
}
