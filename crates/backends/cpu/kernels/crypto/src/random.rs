//! Random bytes of the system.

/// Fills `bytes` from AWS-LC's generator, which the system's randomness seeds. Returns false if
/// there is none. For threads that run ops: in a child that a signal handler has forked in the
/// middle of a draw, the library ends the process.
pub fn fill_random(bytes: &mut [u8]) -> bool {
    aws_lc_rs::rand::fill(bytes).is_ok()
}

/// Fills `bytes` with what the system draws at this call, and returns false if there is none. No
/// state of a library lies in between: it would be duplicated if a virtual machine is resumed from
/// a snapshot, and half changed if a signal handler forks in the middle of a draw.
pub fn fill_random_anew(bytes: &mut [u8]) -> bool {
    getrandom::fill(bytes).is_ok()
}
