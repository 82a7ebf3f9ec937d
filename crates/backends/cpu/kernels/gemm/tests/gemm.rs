//! Every algorithm for products against the naive product, at every level of instructions.

use std::sync::Mutex;

use panoply_core::dtype::{Complex64, bf16, f16};
use panoply_core::op::compute::Activation;

use panoply_cpu_gemm::gemm::*;
use panoply_cpu_machine::team::Team;

/// Small multiples of a quarter: exact in every type. Sums in any order are equal if no rounding
/// happens, and close otherwise.
fn pseudo(index: usize, seed: usize) -> f64 {
    let mixed = (index.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503))) >> 7;
    ((mixed % 31) as f64 - 15.0) / 4.0
}

trait Sample: Factor {
    fn sample(value: f64) -> Self;
    fn real(acc: Self::Acc) -> (f64, f64);
    /// Tolerance relative to the sum of the magnitudes of the products.
    const TOLERANCE: f64;
}

macro_rules! samples {
    ($($t:ty, $tolerance:expr, $v:ident => $make:expr, $a:ident => $real:expr;)*) => {$(
        impl Sample for $t {
            fn sample($v: f64) -> Self { $make }
            fn real($a: Self::Acc) -> (f64, f64) { $real }
            const TOLERANCE: f64 = $tolerance;
        }
    )*};
}

samples! {
    f32, 1e-5, v => v as f32 * 1.000_1, a => (f64::from(a), 0.0);
    f64, 1e-14, v => v * 1.000_1, a => (a, 0.0);
    f16, 1e-5, v => f16::from_f64(v), a => (f64::from(a), 0.0);
    bf16, 1e-5, v => bf16::from_f64(v), a => (f64::from(a), 0.0);
    i32, 0.0, v => (v * 40_000.0) as i32, a => (f64::from(a), 0.0);
    i8, 0.0, v => (v * 33.0).clamp(-128.0, 127.0) as i8, a => (f64::from(a), 0.0);
    u8, 0.0, v => (v * 33.0 + 128.0).clamp(0.0, 255.0) as u8, a => (f64::from(a), 0.0);
    Complex64, 1e-5, v => Complex64::new(v as f32, (v * 1.7 - 0.3) as f32), a => (f64::from(a.re), f64::from(a.im));
}

fn matrix<T: Sample>(len: usize, seed: usize) -> Vec<T> {
    (0..len).map(|index| T::sample(pseudo(index, seed))).collect()
}

/// A matrix inside a larger one, in one of four layouts: rows, columns, every second element, a
/// repeated row.
fn arrange<T>(data: &[T], rows: usize, cols: usize, arrangement: usize) -> MatRef<'_, T> {
    let view = match arrangement {
        0 => MatRef::new(data, rows, cols, cols, 1),
        1 => MatRef::new(data, rows, cols, 1, rows),
        2 => MatRef::new(data, rows, cols, 2 * cols, 2),
        _ => MatRef::new(data, rows, cols, 0, 1),
    };
    view.expect("the data is long enough")
}

fn naive<T: Sample>(a: &MatRef<'_, T>, b: &MatRef<'_, T>, row: usize, col: usize) -> ((f64, f64), f64) {
    let (mut sum, mut magnitude) = ((0.0, 0.0), 0.0);
    for k in 0..a.cols() {
        let (x, y) = (T::real(a.get(row, k).widen()), T::real(b.get(k, col).widen()));
        sum = (sum.0 + x.0 * y.0 - x.1 * y.1, sum.1 + x.0 * y.1 + x.1 * y.0);
        magnitude += (x.0.abs() + x.1.abs()) * (y.0.abs() + y.1.abs());
    }
    (sum, magnitude)
}

fn check_product<T>(team: &Team, isa: Isa, m: usize, n: usize, k: usize, arrangements: (usize, usize))
where
    T: Sample + Product<<T as Operand>::Acc>,
    T::Acc: Output<Acc = T::Acc> + std::fmt::Debug,
{
    let (a_data, b_data) = (matrix::<T>(2 * m * k + 1, 1), matrix::<T>(2 * k * n + 1, 2));
    let (a, b) = (arrange(&a_data, m, k, arrangements.0), arrange(&b_data, k, n, arrangements.1));
    let ld = n + 3;
    let poison = T::sample(3.25).widen();
    let mut c = vec![poison; m * ld];
    let mut workspace = Workspace::new();
    Gemm::new(team, &mut workspace).with_isa(isa).multiply(a, b, &Epilogue::default(), &mut c, ld).unwrap();
    for row in 0..m {
        for col in 0..n {
            let (want, magnitude) = naive(&a, &b, row, col);
            let got = T::real(c[row * ld + col]);
            let error = (got.0 - wrap::<T>(want.0)).abs().max((got.1 - want.1).abs());
            assert!(
                error <= T::TOLERANCE * magnitude,
                "{m}x{n}x{k} {arrangements:?} {isa:?} ({row}, {col}): {got:?}, not {want:?}"
            );
        }
        assert!(c[row * ld + n..(row + 1) * ld].iter().all(|left| *left == poison), "written between rows");
    }
}

/// Integer sums wrap at 32 bits.
fn wrap<T: Sample>(sum: f64) -> f64 {
    if T::TOLERANCE == 0.0 { f64::from(sum as i64 as i32) } else { sum }
}

fn check_type<T>()
where
    T: Sample + Product<<T as Operand>::Acc>,
    T::Acc: Output<Acc = T::Acc> + std::fmt::Debug,
{
    let (single, two) = (Team::single(), Team::new(2));
    for isa in Isa::available() {
        for (m, n, k) in
            [(1, 1, 1), (2, 3, 5), (7, 31, 13), (17, 33, 29), (64, 64, 64), (13, 47, 131), (33, 1, 300), (1, 300, 47)]
        {
            for arrangements in [(0, 0), (1, 1), (0, 1), (1, 0), (2, 2), (3, 0)] {
                check_product::<T>(&single, isa, m, n, k, arrangements);
            }
        }
        check_product::<T>(&two, isa, 131, 127, 129, (0, 0));
        check_product::<T>(&two, isa, 131, 127, 129, (1, 1));
        check_product::<T>(&two, isa, 67, 45, 1031, (0, 1));
        // A small right operand in whole vectors is read in place.
        check_product::<T>(&two, isa, 131, 80, 129, (0, 0));
        check_product::<T>(&two, isa, 3, 208, 511, (1, 0));
        check_product::<T>(&two, isa, 57, 48, 64, (2, 3));
        check_product::<T>(&two, isa, 1, 1500, 1021, (0, 0));
        check_product::<T>(&two, isa, 1500, 1, 1021, (0, 0));
        check_product::<T>(&two, isa, 1500, 1, 1021, (1, 0));
    }
}

macro_rules! type_tests {
    ($($name:ident: $t:ty,)*) => {$(
        #[test]
        fn $name() {
            check_type::<$t>();
        }
    )*};
}

type_tests! {
    products_of_f32: f32,
    products_of_f64: f64,
    products_of_f16: f16,
    products_of_bf16: bf16,
    products_of_i32: i32,
    products_of_i8: i8,
    products_of_u8: u8,
    products_of_complex64: Complex64,
}

/// Small pack buffers make many stages, which alternate between the halves of the buffers.
#[test]
fn many_stages() {
    let team = Team::new(3);
    let (m, n, k) = (211, 223, 97);
    let (a, b) = (matrix::<f32>(m * k, 1), matrix::<f32>(k * n, 2));
    let (av, bv) = (arrange(&a, m, k, 0), arrange(&b, k, n, 0));
    let mut want = vec![0.0_f32; m * n];
    Gemm::new(&team, &mut Workspace::new()).multiply(av, bv, &Epilogue::default(), &mut want, n).unwrap();
    for pack_bytes_max in [1, 20_000, 40_000] {
        let mut workspace = Workspace::with_pack_bytes_max(pack_bytes_max);
        for _ in 0..20 {
            let mut c = vec![f32::NAN; m * n];
            Gemm::new(&team, &mut workspace).multiply(av, bv, &Epilogue::default(), &mut c, n).unwrap();
            assert!(c == want);
        }
    }
}

/// One thread iterates over parts of k; too many threads for the rows use another algorithm, and
/// those in between have many stages. All have the same bits.
#[test]
fn sums_do_not_depend_on_the_team() {
    for isa in Isa::available() {
        for (m, n, k) in [(257, 75, 2100), (130, 70, 1500)] {
            let (a, b) = (matrix::<f32>(m * k, 1), matrix::<f32>(k * n, 2));
            let (av, bv) = (arrange(&a, m, k, 0), arrange(&b, k, n, 0));
            let product = |threads: usize, pack_bytes_max: usize| {
                let mut c = vec![f32::NAN; m * n];
                let (team, mut workspace) = (Team::new(threads), Workspace::with_pack_bytes_max(pack_bytes_max));
                let mut gemm = Gemm::new(&team, &mut workspace).with_isa(isa);
                gemm.multiply(av, bv, &Epilogue::default(), &mut c, n).unwrap();
                c
            };
            let want = product(1, 1 << 20);
            for row in [0, m / 2, m - 1] {
                let ((sum, _), magnitude) = naive(&av, &bv, row, n - 1);
                assert!((f64::from(want[row * n + n - 1]) - sum).abs() <= f32::TOLERANCE * magnitude);
            }
            for threads in 1..=4 {
                for pack_bytes_max in [1, 300_000, 1 << 20] {
                    assert!(product(threads, pack_bytes_max) == want, "{threads} threads, {pack_bytes_max} bytes");
                }
            }
        }
    }
}

#[test]
fn epilogues_of_every_kind() {
    let team = Team::new(2);
    let mut workspace = Workspace::new();
    for isa in Isa::available() {
        for (m, n, k) in
            [(3, 5, 7), (65, 70, 30), (33, 64, 40), (1, 200, 100), (200, 1, 100), (130, 140, 500), (4, 6, 0)]
        {
            let (a, b) = (matrix::<f32>(m * k, 1), matrix::<f32>(k * n, 2));
            let (c0, bias) = (matrix::<f32>(m * n, 3), matrix::<f32>(m.max(n), 4));
            let (av, bv) = (arrange(&a, m, k, 0), arrange(&b, k, n, 0));
            for per_row in [false, true] {
                for activation in [Activation::None, Activation::Relu, Activation::Tanh] {
                    let added = arrange(&c0, m, n, usize::from(per_row));
                    let bias = if per_row { Bias::PerRow(&bias[..m]) } else { Bias::PerColumn(&bias[..n]) };
                    let epilogue = Epilogue { alpha: 0.5, add: Some((2.0, added)), bias: Some(bias), activation };
                    let mut c = vec![f32::NAN; m * n];
                    Gemm::new(&team, &mut workspace).with_isa(isa).multiply(av, bv, &epilogue, &mut c, n).unwrap();
                    for (index, got) in c.iter().enumerate() {
                        let (row, col) = (index / n, index % n);
                        let ((sum, _), magnitude) = naive(&av, &bv, row, col);
                        let extra = match bias {
                            Bias::PerRow(bias) => bias[row],
                            Bias::PerColumn(bias) => bias[col],
                        };
                        let linear = 0.5 * sum + 2.0 * f64::from(added.get(row, col)) + f64::from(extra);
                        let want = activate_f64(linear, activation);
                        let error = (f64::from(*got) - want).abs();
                        assert!(error <= 1e-6 * (magnitude + 20.0), "{m}x{n}x{k} {isa:?} {got} not {want}");
                    }
                }
            }
        }
    }
}

#[test]
fn half_results_are_rounded_once() {
    let team = Team::new(2);
    let mut workspace = Workspace::new();
    let (m, n, k) = (67, 75, 1200);
    for isa in Isa::available() {
        let (a, b) = (matrix::<bf16>(m * k, 1), matrix::<bf16>(k * n, 2));
        let (av, bv) = (arrange(&a, m, k, 0), arrange(&b, k, n, 0));
        let (mut half, mut full) = (vec![bf16::ZERO; m * n], vec![0.0_f32; m * n]);
        Gemm::new(&team, &mut workspace).with_isa(isa).multiply(av, bv, &Epilogue::default(), &mut half, n).unwrap();
        Gemm::new(&team, &mut workspace).with_isa(isa).multiply(av, bv, &Epilogue::default(), &mut full, n).unwrap();
        assert!(half.iter().zip(&full).all(|(half, full)| *half == bf16::from_f32(*full)));
    }
}

#[test]
fn nan_and_infinity_reach_exactly_their_row_and_column() {
    let team = Team::new(2);
    let mut workspace = Workspace::new();
    let (m, n, k) = (45, 67, 39);
    for isa in Isa::available() {
        let (mut a, b) = (vec![bf16::ONE; m * k], vec![bf16::ONE; k * n]);
        (a[5 * k + 38], a[44 * k]) = (bf16::NAN, bf16::INFINITY);
        let mut c = vec![0.0_f32; m * n];
        let (av, bv) = (arrange(&a, m, k, 0), arrange(&b, k, n, 0));
        Gemm::new(&team, &mut workspace).with_isa(isa).multiply(av, bv, &Epilogue::default(), &mut c, n).unwrap();
        for (row, values) in c.chunks(n).enumerate() {
            let fits = |value: &f32| match row {
                5 => value.is_nan(),
                44 => *value == f32::INFINITY,
                _ => *value == k as f32,
            };
            assert!(values.iter().all(fits), "row {row} {isa:?}");
        }
    }
}

#[test]
fn batches_with_a_shared_operand() {
    for team in [Team::single(), Team::new(2)] {
        let mut workspace = Workspace::new();
        for (count, m, n, k) in
            [(0, 3, 3, 3), (1, 5, 5, 5), (37, 9, 11, 17), (5, 64, 50, 80), (3, 0, 4, 4), (3, 4, 4, 0)]
        {
            let (a, b) = (matrix::<f32>(count * m * k, 1), matrix::<f32>(k * n, 2));
            let item = |index: usize| BatchItem {
                a: arrange(&a[index * m * k..], m, k, 0),
                b: arrange(&b, k, n, 0),
                epilogue: Epilogue::<f32>::default(),
            };
            let mut c = vec![f32::NAN; count * m * n];
            Gemm::new(&team, &mut workspace).multiply_batch(count, &item, &mut c).unwrap();
            for (index, got) in c.iter().enumerate() {
                let (batch, row, col) = (index / (m * n), index / n % m, index % n);
                let BatchItem { a, b, .. } = item(batch);
                let ((want, _), magnitude) = naive(&a, &b, row, col);
                assert!((f64::from(*got) - want).abs() <= 1e-6 * magnitude);
            }
        }
    }
}

#[test]
fn tiles_cover_the_product_once() {
    let team = Team::new(2);
    let mut workspace = Workspace::new();
    for (m, n, k) in [(1, 1, 1), (5, 7, 0), (70, 1500, 33), (200, 3, 64), (0, 4, 4)] {
        let (a, b) = (matrix::<f32>(m * k, 1), matrix::<f32>(k * n, 2));
        let (av, bv) = (arrange(&a, m, k, 0), arrange(&b, k, n, 1));
        let seen = Mutex::new(vec![f32::NAN; m * n]);
        Gemm::new(&team, &mut workspace)
            .tiles(av, bv, &|tile| {
                let mut seen = seen.lock().expect("no panic before");
                for (row, values) in tile.rows_with_values() {
                    let to = &mut seen[row * n + tile.cols.start..][..values.len()];
                    assert!(to.iter().all(|value| value.is_nan()), "given twice");
                    to.copy_from_slice(values);
                }
            })
            .unwrap();
        let seen = seen.into_inner().expect("no panic before");
        for (index, got) in seen.iter().enumerate() {
            let ((want, _), magnitude) = naive(&av, &bv, index / n, index % n);
            assert!((f64::from(*got) - want).abs() <= 1e-6 * magnitude);
        }
    }
}

#[test]
fn a_panicking_consumer_does_not_hang_the_team() {
    let team = Team::new(2);
    let mut workspace = Workspace::new();
    let (a, b) = (matrix::<f32>(300 * 300, 1), matrix::<f32>(300 * 300, 2));
    let (av, bv) = (arrange(&a, 300, 300, 0), arrange(&b, 300, 300, 0));
    for _ in 0..20 {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Gemm::new(&team, &mut workspace)
                .tiles(av, bv, &|tile| assert!(tile.rows.start < 100, "asked for"))
                .unwrap();
        }));
        assert!(caught.is_err());
    }
    Gemm::new(&team, &mut workspace).tiles(av, bv, &|_| {}).unwrap();
}

#[test]
fn a_warm_workspace_stays_as_it_is() {
    let team = Team::new(2);
    let mut workspace = Workspace::new();
    let data = matrix::<f32>(200 * 200, 1);
    let view = arrange(&data, 200, 200, 0);
    let mut c = vec![0.0_f32; 200 * 200];
    let mut held = Vec::new();
    for _ in 0..3 {
        Gemm::new(&team, &mut workspace).multiply(view, view, &Epilogue::default(), &mut c, 200).unwrap();
        held.push(workspace.held_bytes());
    }
    assert!(held[0] > 0 && held.iter().all(|bytes| *bytes == held[0]));
    workspace.release();
    assert_eq!(workspace.held_bytes(), 0);
}

#[test]
fn a_right_operand_that_is_packed_once_gives_the_same_bits() {
    let (k, n) = (333, 517);
    let element = |index: usize| ((index * 7919) % 257) as f32 / 64.0 - 2.0;
    let b: Vec<f32> = (0..k * n).map(element).collect();
    let turned: Vec<f32> = (0..k * n).map(|index| b[index % k * n + index / k]).collect();
    let team = Team::new(2);
    for isa in Isa::available() {
        for (b, row_stride, col_stride) in [(&b, n, 1), (&turned, 1, k)] {
            let (mut workspace, mut right) = (Workspace::new(), PackedRight::default());
            for m in [2, 64, 3, 200, 600] {
                let a: Vec<f32> = (0..m * k).map(|index| element(index + m)).collect();
                let a = MatRef::new(&a, m, k, k, 1).unwrap();
                let b = MatRef::new(b, k, n, row_stride, col_stride).unwrap();
                let mut product = |right: Option<&mut PackedRight>| {
                    let mut c = vec![f32::NAN; m * n];
                    let mut gemm = Gemm::new(&team, &mut workspace).with_isa(isa).with_packed_right(right);
                    gemm.multiply(a, b, &Epilogue::default(), &mut c, n).unwrap();
                    c.iter().map(|sum| sum.to_bits()).collect::<Vec<u32>>()
                };
                assert!(product(None) == product(Some(&mut right)), "{m} rows, {isa:?}");
            }
            assert!(right.bytes() >= k * n * 4, "{isa:?}");
        }
    }
}
