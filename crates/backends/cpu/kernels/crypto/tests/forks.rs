//! Random nonces in a forked process, with the source that programs use.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(unsafe_code)] // The process forks.

use std::io::{Read, Write};

use panoply_core::op::crypto::{AeadAlgorithm, Key, RandomSession};

/// Number of messages that parent and child seal each, with a nonce of 12 bytes.
const COUNT: usize = 50;

fn nonces(session: &RandomSession) -> Vec<u8> {
    let one = || session.seal(vec![1]).unwrap().nonces().list(1).unwrap()[0];
    (0..COUNT).flat_map(|_| one()).collect()
}

/// The random generator is used before the fork, which copies its state in memory.
#[test]
fn parent_and_child_of_a_fork_draw_no_nonce_twice() {
    let key = Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap();
    let session = RandomSession::new(&key, panoply_cpu_crypto::fill_random_anew).unwrap();
    let before = nonces(&session);
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the child uses only its own data, and ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let drawn = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| nonces(&session)));
        let written = drawn.is_ok_and(|drawn| writer.write_all(&drawn).is_ok());
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(if written { 0 } else { 1 }) };
    }
    drop(writer);
    let after = nonces(&session);
    let mut forked = Vec::new();
    reader.read_to_end(&mut forked).unwrap();
    let mut status = -1;
    // SAFETY: `child` is the process forked above, and `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((status, forked.len()), (0, before.len()));
    let mut all: Vec<&[u8]> = [&before, &after, &forked].into_iter().flat_map(|list| list.chunks(12)).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 3 * COUNT);
}
