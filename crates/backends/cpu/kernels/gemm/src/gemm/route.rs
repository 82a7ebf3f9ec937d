//! The choice of an algorithm for each product, and the interface for the rest of the crate.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use panoply_core::dtype::{Complex64, bf16, f16};

use super::driver;
use super::element::{Operand, Output};
use super::epilogue::{Bias, DepthPass, Epilogue, WriteBack};
use super::kernel::{self, Isa};
use super::pack::{Complex, Double, Float, HalfPair, Int, Quad, ShortPair};
use super::packed::PackedRight;
use super::sweep::Sink;
use super::view::{MatRef, SharedPtr};
use super::workspace::{OutOfMemory, Workspace, lock};
use super::{small, vector};
use crate::team::Team;

/// Maximum multiplications for which plain loops beat packing.
const SMALL_WORK_MAX: usize = 16 * 16 * 16;
/// Minimum multiplications for which a second thread pays off.
const TEAM_WORK_MIN: usize = 96 * 96 * 96;
/// The same for matrix times vector, which waits for memory: two caches hold more of the matrix
/// than one.
const TEAM_VECTOR_WORK_MIN: usize = 1 << 17;
/// Minimum inner dimension for which even a small product with a vector uses dot products.
const VECTOR_DEPTH_MIN: usize = 16;
/// Maximum multiplications of one matrix for which a batch is split by matrices rather than by
/// blocks.
const BATCH_ITEM_WORK_MAX: usize = 512 * 512 * 512;

/// Maximum elements of the inner dimension that are packed for one pass; longer ones take several
/// passes.
const PASS_DEPTH_MAX: usize = 1 << 15;

/// Maximum inner dimension of a product by tiles, whose sums never leave scratch memory.
const TILES_DEPTH_MAX: usize = 1 << 24;

/// The resources for products. Cheap to create; only the workspace is worth keeping.
pub struct Gemm<'t> {
    team: &'t Team,
    workspace: &'t mut Workspace,
    isa: Isa,
    right: Option<&'t mut PackedRight>,
}

/// One product of a batch.
pub struct BatchItem<'a, T, R: Output> {
    /// The left operand.
    pub a: MatRef<'a, T>,
    /// The right operand.
    pub b: MatRef<'a, T>,
    /// The epilogue that is applied to the sums.
    pub epilogue: Epilogue<'a, R>,
}

/// A finished block of sums.
pub struct Tile<'a> {
    /// The block's rows in the product.
    pub rows: Range<usize>,
    /// The block's columns in the product.
    pub cols: Range<usize>,
    /// The block's elements: row `i`, column `j` of the block is at `i * ld + j`.
    pub values: &'a [f32],
    /// Elements from one row of the block to the next.
    pub ld: usize,
}

impl<'a> Tile<'a> {
    /// The rows of the block in order, each with its index in the product.
    pub fn rows_with_values(&self) -> impl Iterator<Item = (usize, &'a [f32])> + use<'a> {
        let (values, ld, cols) = (self.values, self.ld, self.cols.len());
        self.rows.clone().enumerate().map(move |(index, row)| (row, &values[index * ld..][..cols]))
    }
}

impl<'t> Gemm<'t> {
    /// Products on `team` with buffers from `workspace` and the best instructions of this CPU.
    pub fn new(team: &'t Team, workspace: &'t mut Workspace) -> Self {
        Gemm { team, workspace, isa: Isa::detect(), right: None }
    }

    /// Replaces the instructions.
    pub fn with_isa(self, isa: Isa) -> Self {
        Gemm { isa, ..self }
    }

    /// Uses `right` as the packed right operand of all following products. The first product packs
    /// it, and it must not change.
    pub fn with_packed_right(self, right: Option<&'t mut PackedRight>) -> Self {
        Gemm { right, ..self }
    }

    /// Writes `epilogue(a · b)` to `c`, row-major with `ld` elements from row to row. Elements
    /// between rows are left unchanged.
    ///
    /// # Panics
    /// If shapes disagree or `c` is too short.
    pub fn multiply<T: Product<R>, R: Output<Acc = T::Acc>>(
        &mut self,
        a: MatRef<'_, T>,
        b: MatRef<'_, T>,
        epilogue: &Epilogue<'_, R>,
        c: &mut [R],
        ld: usize,
    ) -> Result<(), OutOfMemory> {
        check_shapes(&a, &b, epilogue, c.len(), ld);
        let right = self.right.as_deref_mut();
        T::product(Some(self.team), self.workspace, self.isa, right, a, b, epilogue, SharedPtr::new(c), ld)
    }

    /// Writes `count` products of `m` by `n` one after the other to `c`; `item` returns the
    /// operands of product `i`. Small matrices are assigned to threads as a whole.
    ///
    /// # Panics
    /// If shapes disagree or `c` is too short.
    pub fn multiply_batch<'a, T: Product<R>, R: Output<Acc = T::Acc>>(
        &mut self,
        count: usize,
        item: &(dyn Fn(usize) -> BatchItem<'a, T, R> + Sync),
        c: &mut [R],
    ) -> Result<(), OutOfMemory> {
        if count == 0 {
            return Ok(());
        }
        let first = item(0);
        let (m, n, k) = (first.a.rows(), first.b.cols(), first.a.cols());
        let (len, work) = (m * n, m * n * k);
        assert!(len.checked_mul(count).is_some_and(|total| total <= c.len()), "the result is too short");
        let threads = self.team.threads().min(count);
        let whole = threads == 1 || work > BATCH_ITEM_WORK_MAX || work.saturating_mul(count) < TEAM_WORK_MIN;
        let (isa, out) = (self.isa, SharedPtr::new(c));
        let run = |team: Option<&Team>, workspace: &mut Workspace, index: usize| {
            let BatchItem { a, b, epilogue } = item(index);
            assert!(a.rows() == m && b.cols() == n, "items of a batch have one shape");
            check_shapes(&a, &b, &epilogue, len, n);
            T::product(team, workspace, isa, None, a, b, &epilogue, SharedPtr::from_raw(out.at(index * len)), n)
        };
        if whole {
            return (0..count).try_for_each(|index| run(Some(self.team), self.workspace, index));
        }
        self.workspace.reserve_members(threads);
        let (members, next, refused_bytes) = (&self.workspace.members, AtomicUsize::new(0), AtomicUsize::new(0));
        let claim = (TEAM_WORK_MIN / work.max(1)).clamp(1, count.div_ceil(8 * threads));
        self.team.run(threads, &|member| {
            let mut workspace = lock(&members[member]);
            loop {
                let start = next.fetch_add(claim, Ordering::Relaxed);
                if start >= count {
                    break;
                }
                let items = start..count.min(start + claim);
                if let Err(refused) = items.into_iter().try_for_each(|index| run(None, &mut workspace, index)) {
                    refused_bytes.fetch_max(refused.asked_bytes, Ordering::Relaxed);
                }
            }
        });
        match refused_bytes.into_inner() {
            0 => Ok(()),
            asked_bytes => Err(OutOfMemory { asked_bytes }),
        }
    }

    /// Calls `consume` with every block of `a · b`, from any thread of the team. Each element is in
    /// exactly one block.
    ///
    /// # Panics
    /// If shapes disagree, if the inner dimension is above 2^24, or if `consume` panics.
    pub fn tiles<T: Factor<Acc = f32>>(
        &mut self,
        a: MatRef<'_, T>,
        b: MatRef<'_, T>,
        consume: &(dyn Fn(Tile<'_>) + Sync),
    ) -> Result<(), OutOfMemory> {
        assert_eq!(a.cols(), b.rows(), "the inner dimensions differ");
        let (m, n, k) = (a.rows(), b.cols(), a.cols());
        assert!(k <= TILES_DEPTH_MAX, "the inner dimension is too long");
        if m == 0 || n == 0 {
            return Ok(());
        }
        if k == 0 {
            let zeros = vec![0.0; n];
            (0..m).for_each(|row| consume(Tile { rows: row..row + 1, cols: 0..n, values: &zeros, ld: n }));
            return Ok(());
        }
        let team = (m.saturating_mul(n).saturating_mul(k) >= TEAM_WORK_MIN).then_some(self.team);
        T::packed_product(team, self.workspace, self.isa, a, b, &TileSink { consume }, None)
    }
}

struct TileSink<'a> {
    consume: &'a (dyn Fn(Tile<'_>) + Sync),
}

impl Sink<f32> for TileSink<'_> {
    fn place(&self) -> Option<(SharedPtr<f32>, usize)> {
        None
    }

    unsafe fn tile(&self, _rows: Range<usize>, _cols: Range<usize>, _acc: *const f32, _ld: usize) {}

    unsafe fn block(&self, rows: Range<usize>, cols: Range<usize>, acc: *const f32, ld: usize) {
        let len = (rows.len() - 1) * ld + cols.len();
        // SAFETY: the caller guarantees the block's rows at `acc`, all in one piece of scratch
        // memory.
        let values = unsafe { std::slice::from_raw_parts(acc, len) };
        (self.consume)(Tile { rows, cols, values, ld });
    }
}

fn check_shapes<T, R: Output>(a: &MatRef<'_, T>, b: &MatRef<'_, T>, epilogue: &Epilogue<'_, R>, len: usize, ld: usize) {
    let (m, n) = (a.rows(), b.cols());
    assert_eq!(a.cols(), b.rows(), "the inner dimensions differ");
    assert!(
        m == 0 || n == 0 || (ld >= n && (m - 1).checked_mul(ld).is_some_and(|rows| rows + n <= len)),
        "the result is too short"
    );
    if let Some((_, add)) = &epilogue.add {
        assert!(add.rows() == m && add.cols() == n, "the added matrix has another shape");
    }
    match epilogue.bias {
        Some(Bias::PerColumn(bias)) => assert_eq!(bias.len(), n, "the bias is not as long as a row"),
        Some(Bias::PerRow(bias)) => assert_eq!(bias.len(), m, "the bias is not as long as a column"),
        None => {}
    }
}

/// Computes one product with checked shapes: `out` has room for it.
fn product<T: Factor, R: Output<Acc = T::Acc>>(
    team: Option<&Team>,
    workspace: &mut Workspace,
    isa: Isa,
    right: Option<&mut PackedRight>,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    epilogue: &Epilogue<'_, R>,
    out: SharedPtr<R>,
    ld: usize,
) -> Result<(), OutOfMemory> {
    let (m, n, k) = (a.rows(), b.cols(), a.cols());
    if m == 0 || n == 0 {
        return Ok(());
    }
    let write = WriteBack { out, ld, epilogue: *epilogue, isa, sums: None, pass: DepthPass::ONLY };
    let work = m.saturating_mul(n).saturating_mul(k);
    let team_work_min = if m == 1 || n == 1 { TEAM_VECTOR_WORK_MIN } else { TEAM_WORK_MIN };
    let team = team.filter(|_| work >= team_work_min);
    let is_vector = (m == 1 || n == 1) && k >= VECTOR_DEPTH_MIN;
    if work <= SMALL_WORK_MAX && !is_vector {
        small::multiply(isa, a, b, &write);
        Ok(())
    } else if n == 1 {
        vector::multiply(team, workspace, isa, a, b.transposed(), &write, vector::ResultAxis::Rows, None)
    } else if m == 1 {
        vector::multiply(team, workspace, isa, b.transposed(), a, &write, vector::ResultAxis::Cols, right)
    } else if k <= PASS_DEPTH_MAX {
        T::packed_product(team, workspace, isa, a, b, &write, right)
    } else {
        product_in_passes(team, workspace, a, b, write)
    }
}

/// Computes a product whose inner dimension is too long to be packed at once.
fn product_in_passes<T: Factor, R: Output<Acc = T::Acc>>(
    team: Option<&Team>,
    workspace: &mut Workspace,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    mut write: WriteBack<'_, R>,
) -> Result<(), OutOfMemory> {
    let (m, n, k) = (a.rows(), b.cols(), a.cols());
    let mut partial_sums = std::mem::take(&mut workspace.partial_sums);
    if !WriteBack::<R>::sums_live_in_result() {
        write.sums = Some((SharedPtr::new(partial_sums.get(m.saturating_mul(n))?), n));
    }
    for start in (0..k).step_by(PASS_DEPTH_MAX) {
        let end = k.min(start + PASS_DEPTH_MAX);
        write.pass = DepthPass { first: start == 0, last: end == k };
        let b_rows = b.transposed().columns(start, end).transposed();
        T::packed_product(team, workspace, write.isa, a.columns(start, end), b_rows, &write, None)?;
    }
    workspace.partial_sums = partial_sums;
    Ok(())
}

/// An operand type that has kernels.
pub trait Factor: Operand {
    /// The packed product: passes every sum of `a · b` to `sink`. All dimensions are at least one.
    #[doc(hidden)]
    #[allow(private_interfaces)]
    fn packed_product(
        team: Option<&Team>,
        workspace: &mut Workspace,
        isa: Isa,
        a: MatRef<'_, Self>,
        b: MatRef<'_, Self>,
        sink: &dyn Sink<Self::Acc>,
        right: Option<&mut PackedRight>,
    ) -> Result<(), OutOfMemory>;
}

macro_rules! factors {
    ($($factor:ty => |$isa:ident, $with:ident| $choose:expr;)*) => {$(
        impl Factor for $factor {
            #[allow(private_interfaces)]
            fn packed_product(
                team: Option<&Team>,
                workspace: &mut Workspace,
                $isa: Isa,
                a: MatRef<'_, Self>,
                b: MatRef<'_, Self>,
                sink: &dyn Sink<Self::Acc>,
                right: Option<&mut PackedRight>,
            ) -> Result<(), OutOfMemory> {
                let b = b.transposed();
                macro_rules! $with {
                    ($format:ty, $kernel:expr) => {
                        driver::multiply::<$format, _>(team, workspace, $isa, &$kernel, a, b, sink, right)
                    };
                }
                $choose
            }
        }
    )*};
}

factors! {
    f32 => |isa, with| with!(Float<f32>, kernel::for_f32(isa));
    f16 => |isa, with| with!(Float<f16>, kernel::for_f32(isa));
    bf16 => |isa, with| match kernel::for_bf16_pairs(isa) {
        Some(pairs) => with!(HalfPair, pairs),
        None => with!(Float<bf16>, kernel::for_f32(isa)),
    };
    f64 => |isa, with| with!(Double, kernel::for_f64(isa));
    i32 => |isa, with| with!(Int<i32>, kernel::for_i32(isa));
    Complex64 => |isa, with| with!(Complex, kernel::for_complex(isa));
    i8 => |isa, with| match (kernel::for_byte_quads(isa, true), kernel::for_i16_pairs(isa)) {
        (Some(quads), _) => with!(Quad<i8>, quads),
        (None, Some(pairs)) => with!(ShortPair<i8>, pairs),
        (None, None) => with!(Int<i8>, kernel::for_i32(isa)),
    };
    u8 => |isa, with| match (kernel::for_byte_quads(isa, false), kernel::for_i16_pairs(isa)) {
        (Some(quads), _) => with!(Quad<u8>, quads),
        (None, Some(pairs)) => with!(ShortPair<u8>, pairs),
        (None, None) => with!(Int<u8>, kernel::for_i32(isa)),
    };
}

/// A pair of an operand type and a result type. Its products are compiled once, in this crate: a
/// generic function would be compiled again in every crate that calls it, without the inlining of
/// this crate's functions.
pub trait Product<R: Output<Acc = Self::Acc>>: Factor {
    /// Computes one product with checked shapes: `out` has room for it.
    #[doc(hidden)]
    #[allow(private_interfaces, clippy::too_many_arguments)]
    fn product(
        team: Option<&Team>,
        workspace: &mut Workspace,
        isa: Isa,
        right: Option<&mut PackedRight>,
        a: MatRef<'_, Self>,
        b: MatRef<'_, Self>,
        epilogue: &Epilogue<'_, R>,
        out: SharedPtr<R>,
        ld: usize,
    ) -> Result<(), OutOfMemory>;
}

macro_rules! products {
    ($($factor:ty => $($output:ty),+;)*) => {$($(
        impl Product<$output> for $factor {
            #[inline(never)]
            #[allow(private_interfaces)]
            fn product(
                team: Option<&Team>,
                workspace: &mut Workspace,
                isa: Isa,
                right: Option<&mut PackedRight>,
                a: MatRef<'_, Self>,
                b: MatRef<'_, Self>,
                epilogue: &Epilogue<'_, $output>,
                out: SharedPtr<$output>,
                ld: usize,
            ) -> Result<(), OutOfMemory> {
                product(team, workspace, isa, right, a, b, epilogue, out, ld)
            }
        }
    )+)*};
}

products! {
    f32 => f32;
    f16 => f16, f32;
    bf16 => bf16, f32;
    f64 => f64;
    i32 => i32;
    Complex64 => Complex64;
    i8 => i32;
    u8 => i32;
}
