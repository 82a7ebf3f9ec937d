//! The transposition of a block in registers.

use panoply_cpu_gemm::internals::transpose_16x16;

#[test]
fn transposes() {
    if !is_x86_feature_detected!("avx512f") {
        eprintln!("skipped: this CPU has no AVX-512");
        return;
    }
    let block: Vec<u32> = (0..256).collect();
    let mut to = vec![0; 16 * 33];
    // SAFETY: the feature was just detected.
    unsafe { transpose_16x16(&block, &mut to, 33, 16) };
    for row in 0..16 {
        for col in 0..16 {
            assert_eq!(to[row * 33 + col], block[col * 16 + row]);
        }
    }
}
