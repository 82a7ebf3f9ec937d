//! Rows times constant matrices.

use panoply_cpu_gemm::gemm::{Epilogue, Gemm, MatRef, PackedRight, Workspace};
use panoply_cpu_machine::team::Team;

/// Widths below, at and above whole strips; a second product finds the strips packed.
#[test]
fn packed_weights_give_the_same_bits() {
    let (team, k) = (Team::new(2), 300);
    let vector: Vec<f32> = (0..k).map(|i| (i as f32 * 0.37).sin()).collect();
    for n in [127, 128, 129, 500, 512, 1024] {
        let weights: Vec<f32> = (0..k * n).map(|i| (i as f32 * 0.11).cos()).collect();
        let a = MatRef::row_major(&vector, 1, k).unwrap();
        let b = MatRef::row_major(&weights, k, n).unwrap();
        let mut workspace = Workspace::new();
        let mut plain = vec![0.0_f32; n];
        Gemm::new(&team, &mut workspace).multiply(a, b, &Epilogue::default(), &mut plain, n).unwrap();
        let mut right = PackedRight::default();
        for round in 0..2 {
            let mut packed = vec![f32::NAN; n];
            let mut gemm = Gemm::new(&team, &mut workspace).with_packed_right(Some(&mut right));
            gemm.multiply(a, b, &Epilogue::default(), &mut packed, n).unwrap();
            assert_eq!(packed, plain, "width {n}, round {round}");
        }
        assert_eq!(right.bytes() > 0, n >= 128, "width {n}");
    }
}
