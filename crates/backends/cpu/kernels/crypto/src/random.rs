//! Random bytes of the system.

/// Fills `bytes` from the system's randomness. Returns false if there is none.
pub fn fill_random(bytes: &mut [u8]) -> bool {
    aws_lc_rs::rand::fill(bytes).is_ok()
}

/// Like `fill_random`, with bytes mixed in that the system draws at this call: the library's
/// random state in memory is duplicated if a virtual machine is resumed from a snapshot.
pub fn fill_random_anew(bytes: &mut [u8]) -> bool {
    #[cfg(unix)]
    {
        use std::io::Read;
        let mut drawn = zeroize::Zeroizing::new(vec![0; bytes.len()]);
        let read = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut drawn));
        if read.is_err() || !fill_random(bytes) {
            return false;
        }
        bytes.iter_mut().zip(drawn.iter()).for_each(|(byte, drawn)| *byte ^= drawn);
        true
    }
    #[cfg(not(unix))]
    fill_random(bytes)
}
