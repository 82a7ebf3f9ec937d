//! Bytes for inputs without structure.

/// Generates pseudo-random bytes from a fixed seed.
pub fn noise(count: usize) -> Vec<u8> {
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 41) as u8
    };
    (0..count).map(|_| next()).collect()
}
