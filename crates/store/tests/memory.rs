//! Memory does not grow with the length of an object.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod support;

use std::io::{self, Read, Write};

use panoply_store::{Options, Store};
use support::{Random, TempFolder, key, runtime};

const LEN: u64 = 400 << 20;
const GROWTH_MIB_MAX: u64 = 128;

/// A long stream of one repeated noise pattern.
struct Noise {
    pattern: Vec<u8>,
    left: u64,
}

impl Read for Noise {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let at = (LEN - self.left) as usize % self.pattern.len();
        let len = bytes.len().min(self.pattern.len() - at).min(self.left as usize);
        bytes[..len].copy_from_slice(&self.pattern[at..at + len]);
        self.left -= len as u64;
        Ok(len)
    }
}

struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Peak memory of this process so far.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() >> 10
}

#[test]
fn a_long_object_takes_no_more_memory_than_a_short_one() {
    let folder = TempFolder::new("memory");
    // Several data files, so that the transition between files is tested too.
    let options = Options { extent_bytes_max: 150 << 20, ..Options::default() };
    let mut store = Store::create(runtime(), &folder.0, &key(1), options).unwrap();
    let noise = |left| Noise { pattern: Random(1).bytes(3 << 20), left };
    store.put("short", &mut noise(1 << 20), false).unwrap();
    let before = peak_mib();
    store.put("long", &mut noise(LEN), false).unwrap();
    let mut counter = Counter(0);
    store.read("long", &mut counter).unwrap();
    assert_eq!((counter.0, store.get("long").unwrap().extents), (LEN, 3));
    let grown = peak_mib() - before;
    println!("{} MiB of memory more for {} MiB of data", grown, LEN >> 20);
    assert!(grown < GROWTH_MIB_MAX, "{grown} MiB");
}
