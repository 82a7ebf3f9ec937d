//! Kernels: one operation over one block, compiled for each level of vector instructions.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use panoply_core::Complex64;
use panoply_core::expr::{BinaryOp, TernaryOp, UnaryOp};

use super::number::{MapNumber, unary};
use crate::simd::Simd;
use crate::vmath::functions;
use crate::vmath::lanes::Lanes;
use crate::vmath::run_lanes;

/// A kernel. Its arguments are the target, three sources (a kernel may ignore some) and the number
/// of elements.
///
/// Contract for callers: the CPU has the level that the kernel was picked for. The target is valid
/// for writes, and the sources that the kernel reads are valid for reads, of that many elements of
/// the kernel's types, with their alignment. The target overlaps no source.
pub(super) type BlockFn = unsafe fn(*mut u8, *const u8, *const u8, *const u8, usize);

/// The types in which values are computed. f16 and bf16 are computed in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ComputeType {
    F32,
    F64,
    I32,
    U32,
    I8,
    U8,
    Complex,
}

impl ComputeType {
    pub fn size_bytes(self) -> usize {
        match self {
            ComputeType::I8 | ComputeType::U8 => 1,
            ComputeType::F32 | ComputeType::I32 | ComputeType::U32 => 4,
            ComputeType::F64 | ComputeType::Complex => 8,
        }
    }
}

/// A loop over a block. `L` is the vector type of the level; loops that the compiler vectorises do
/// not need it.
pub(super) trait Kernel {
    /// # Safety
    /// As for [`BlockFn`], inside a function that has the target features of `L`.
    unsafe fn run<L: Lanes>(target: *mut u8, a: *const u8, b: *const u8, c: *const u8, len: usize);
}

/// The kernel `K` for a level.
pub(super) fn block_fn<K: Kernel>(simd: Simd) -> BlockFn {
    match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => x86::avx512::<K>,
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => x86::avx2::<K>,
        _ => plain::<K>,
    }
}

unsafe fn plain<K: Kernel>(target: *mut u8, a: *const u8, b: *const u8, c: *const u8, len: usize) {
    // SAFETY: the caller's contract; `f32` needs no target feature.
    unsafe { K::run::<f32>(target, a, b, c, len) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Kernel;
    use crate::vmath::x86::{Avx2Lanes, Avx512Lanes};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn avx2<K: Kernel>(target: *mut u8, a: *const u8, b: *const u8, c: *const u8, len: usize) {
        // SAFETY: the caller's contract, and this function has the features of `Avx2Lanes`.
        unsafe { K::run::<Avx2Lanes>(target, a, b, c, len) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
    pub unsafe fn avx512<K: Kernel>(target: *mut u8, a: *const u8, b: *const u8, c: *const u8, len: usize) {
        // SAFETY: the caller's contract, and this function has the features of `Avx512Lanes`.
        unsafe { K::run::<Avx512Lanes>(target, a, b, c, len) }
    }
}

/// Applies `function` to every element.
///
/// # Safety
/// `target` and `a` are valid and aligned for `len` elements and do not overlap.
#[inline(always)]
pub(super) unsafe fn each<A: Copy, T>(target: *mut u8, a: *const u8, len: usize, function: impl Fn(A) -> T) {
    // SAFETY: the caller's contract; the target may be uninitialised.
    let (target, a) = unsafe {
        (
            std::slice::from_raw_parts_mut(target.cast::<MaybeUninit<T>>(), len),
            std::slice::from_raw_parts(a.cast::<A>(), len),
        )
    };
    for (target, a) in target.iter_mut().zip(a) {
        target.write(function(*a));
    }
}

struct Unary<T, const OP: u8>(PhantomData<T>);

impl<T: MapNumber, const OP: u8> Kernel for Unary<T, OP> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(target: *mut u8, a: *const u8, _b: *const u8, _c: *const u8, len: usize) {
        // SAFETY: the caller's contract.
        unsafe { each(target, a, len, |a: T| a.unary::<OP>()) }
    }
}

/// The functions of f32 that have explicit vector code.
struct Lanewise<F>(PhantomData<F>);

impl<F: functions::Lanewise> Kernel for Lanewise<F> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(target: *mut u8, a: *const u8, _b: *const u8, _c: *const u8, len: usize) {
        // SAFETY: the caller's contract.
        unsafe { run_lanes::<F, L>(a.cast(), target.cast(), len) }
    }
}

struct Binary<T, const OP: u8>(PhantomData<T>);

impl<T: MapNumber, const OP: u8> Kernel for Binary<T, OP> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(target: *mut u8, a: *const u8, b: *const u8, _c: *const u8, len: usize) {
        // SAFETY: the caller's contract; the target may be uninitialised.
        let (target, a, b) = unsafe {
            (
                std::slice::from_raw_parts_mut(target.cast::<MaybeUninit<T>>(), len),
                std::slice::from_raw_parts(a.cast::<T>(), len),
                std::slice::from_raw_parts(b.cast::<T>(), len),
            )
        };
        for ((target, a), b) in target.iter_mut().zip(a).zip(b) {
            target.write(a.binary::<OP>(*b));
        }
    }
}

struct Ternary<T, const OP: u8>(PhantomData<T>);

impl<T: MapNumber, const OP: u8> Kernel for Ternary<T, OP> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(target: *mut u8, a: *const u8, b: *const u8, c: *const u8, len: usize) {
        // SAFETY: the caller's contract; the target may be uninitialised.
        let (target, a, b, c) = unsafe {
            (
                std::slice::from_raw_parts_mut(target.cast::<MaybeUninit<T>>(), len),
                std::slice::from_raw_parts(a.cast::<T>(), len),
                std::slice::from_raw_parts(b.cast::<T>(), len),
                std::slice::from_raw_parts(c.cast::<T>(), len),
            )
        };
        for (((target, a), b), c) in target.iter_mut().zip(a).zip(b).zip(c) {
            target.write(a.ternary::<OP>(*b, *c));
        }
    }
}

/// Quotients of f32. Usually all divisors are the same number, such as a quantisation scale; then
/// no vector division is needed.
struct Quotient;

impl Kernel for Quotient {
    #[inline(always)]
    unsafe fn run<L: Lanes>(target: *mut u8, a: *const u8, b: *const u8, c: *const u8, len: usize) {
        // SAFETY: the caller's contract.
        let divisor = one_divisor(unsafe { std::slice::from_raw_parts(b.cast::<f32>(), len) });
        // SAFETY: the caller's contract.
        unsafe {
            if let Some(first) = divisor.filter(|_| L::FUSED) {
                let (a, target, divisor) = (a.cast::<f32>(), target.cast::<f32>(), L::splat(first));
                let whole = len - len % L::LEN;
                for index in (0..whole).step_by(L::LEN) {
                    functions::quotient(L::load(a.add(index)), divisor).store(target.add(index));
                }
                for index in whole..len {
                    target.add(index).write(*a.add(index) / first);
                }
            } else {
                Binary::<f32, { BinaryOp::Div as u8 }>::run::<L>(target, a, b, c, len);
            }
        }
    }
}

/// The common value of all divisors, if they are equal and [`functions::quotient`] supports the
/// value.
#[inline(always)]
pub(super) fn one_divisor(divisors: &[f32]) -> Option<f32> {
    let first = *divisors.first()?;
    let differ = divisors.iter().fold(0, |differ, other| differ | (other.to_bits() ^ first.to_bits()));
    (differ == 0 && functions::QUOTIENT_DIVISORS.contains(&first.abs())).then_some(first)
}

/// Repeats one element.
struct Fill<T>(PhantomData<T>);

impl<T: Copy> Kernel for Fill<T> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(target: *mut u8, a: *const u8, _b: *const u8, _c: *const u8, len: usize) {
        // SAFETY: the caller's contract, where the source is one element.
        let (target, value) =
            unsafe { (std::slice::from_raw_parts_mut(target.cast::<MaybeUninit<T>>(), len), a.cast::<T>().read()) };
        target.fill(MaybeUninit::new(value));
    }
}

/// The kernel of a function of one value. `None` if the type does not support the function.
pub(super) fn unary_fn(op: UnaryOp, kind: ComputeType, simd: Simd) -> Option<BlockFn> {
    op.accepts(dtype_of(kind)).ok()?;
    Some(match kind {
        ComputeType::F32 => f32_unary_fn(op, simd),
        ComputeType::F64 => float_unary_fn::<f64>(op, simd),
        ComputeType::I32 => integer_unary_fn::<i32>(op, simd),
        ComputeType::U32 => integer_unary_fn::<u32>(op, simd),
        ComputeType::I8 => integer_unary_fn::<i8>(op, simd),
        ComputeType::U8 => integer_unary_fn::<u8>(op, simd),
        ComputeType::Complex => match op {
            UnaryOp::Recip => block_fn::<Unary<Complex64, { unary::RECIP }>>(simd),
            _ => block_fn::<Unary<Complex64, { unary::NEG }>>(simd),
        },
    })
}

/// The kernel of a function of two values. `None` if the type does not support the function.
pub(super) fn binary_fn(op: BinaryOp, kind: ComputeType, simd: Simd) -> Option<BlockFn> {
    op.accepts(dtype_of(kind)).ok()?;
    Some(match kind {
        ComputeType::F32 if op == BinaryOp::Div => block_fn::<Quotient>(simd),
        ComputeType::F32 => real_binary_fn::<f32>(op, simd),
        ComputeType::F64 => real_binary_fn::<f64>(op, simd),
        ComputeType::I32 => real_binary_fn::<i32>(op, simd),
        ComputeType::U32 => real_binary_fn::<u32>(op, simd),
        ComputeType::I8 => real_binary_fn::<i8>(op, simd),
        ComputeType::U8 => real_binary_fn::<u8>(op, simd),
        ComputeType::Complex => complex_binary_fn(op, simd),
    })
}

/// The kernel of a function of three values. `None` if the type does not support the function.
pub(super) fn ternary_fn(op: TernaryOp, kind: ComputeType, simd: Simd) -> Option<BlockFn> {
    op.accepts(dtype_of(kind)).ok()?;
    Some(match kind {
        ComputeType::F32 => real_ternary_fn::<f32>(op, simd),
        ComputeType::F64 => real_ternary_fn::<f64>(op, simd),
        ComputeType::I32 => real_ternary_fn::<i32>(op, simd),
        ComputeType::U32 => real_ternary_fn::<u32>(op, simd),
        ComputeType::I8 => real_ternary_fn::<i8>(op, simd),
        ComputeType::U8 => real_ternary_fn::<u8>(op, simd),
        ComputeType::Complex => block_fn::<Ternary<Complex64, { TernaryOp::MulAdd as u8 }>>(simd),
    })
}

/// The kernel that repeats one element of `size_bytes`.
pub(super) fn fill_fn(size_bytes: usize, simd: Simd) -> BlockFn {
    match size_bytes {
        1 => block_fn::<Fill<u8>>(simd),
        2 => block_fn::<Fill<u16>>(simd),
        4 => block_fn::<Fill<u32>>(simd),
        _ => block_fn::<Fill<u64>>(simd),
    }
}

/// Matches an operation to its kernel.
macro_rules! pick {
    ($enum:ident, $op:expr, $simd:expr, $kernel:ident<$t:ty>: $($name:ident)*; _ => $default:ident) => {
        match $op {
            $($enum::$name => block_fn::<$kernel<$t, { $enum::$name as u8 }>>($simd),)*
            #[allow(unreachable_patterns)]
            _ => block_fn::<$kernel<$t, { $enum::$default as u8 }>>($simd),
        }
    };
}

fn f32_unary_fn(op: UnaryOp, simd: Simd) -> BlockFn {
    match op {
        UnaryOp::Exp => block_fn::<Lanewise<functions::Exp>>(simd),
        UnaryOp::Log => block_fn::<Lanewise<functions::Log>>(simd),
        UnaryOp::Tanh => block_fn::<Lanewise<functions::Tanh>>(simd),
        UnaryOp::Sigmoid => block_fn::<Lanewise<functions::Sigmoid>>(simd),
        UnaryOp::Erf => block_fn::<Lanewise<functions::Erf>>(simd),
        UnaryOp::Gelu => block_fn::<Lanewise<functions::Gelu>>(simd),
        UnaryOp::GeluTanh => block_fn::<Lanewise<functions::GeluTanh>>(simd),
        UnaryOp::Silu => block_fn::<Lanewise<functions::Silu>>(simd),
        UnaryOp::Sin => block_fn::<Lanewise<functions::Sin>>(simd),
        UnaryOp::Cos => block_fn::<Lanewise<functions::Cos>>(simd),
        _ => pick!(UnaryOp, op, simd, Unary<f32>: Neg Abs Sqrt Rsqrt Recip Relu Floor Ceil Round; _ => Not),
    }
}

fn float_unary_fn<T: MapNumber>(op: UnaryOp, simd: Simd) -> BlockFn {
    pick!(UnaryOp, op, simd, Unary<T>:
        Neg Abs Exp Log Sqrt Rsqrt Recip Tanh Sigmoid Erf Relu Gelu GeluTanh Silu Floor Ceil Round Sin Cos; _ => Not)
}

fn integer_unary_fn<T: MapNumber>(op: UnaryOp, simd: Simd) -> BlockFn {
    pick!(UnaryOp, op, simd, Unary<T>: Neg Abs Relu Not; _ => Floor)
}

fn real_binary_fn<T: MapNumber>(op: BinaryOp, simd: Simd) -> BlockFn {
    pick!(BinaryOp, op, simd, Binary<T>: Add Sub Mul Div Rem Pow Min Max Eq Ne Lt Le Gt Ge And; _ => Or)
}

fn complex_binary_fn(op: BinaryOp, simd: Simd) -> BlockFn {
    pick!(BinaryOp, op, simd, Binary<Complex64>: Add Sub Mul; _ => Div)
}

fn real_ternary_fn<T: MapNumber>(op: TernaryOp, simd: Simd) -> BlockFn {
    pick!(TernaryOp, op, simd, Ternary<T>: Select Clamp; _ => MulAdd)
}

fn dtype_of(kind: ComputeType) -> panoply_core::DType {
    use panoply_core::DType;
    match kind {
        ComputeType::F32 => DType::F32,
        ComputeType::F64 => DType::F64,
        ComputeType::I32 => DType::I32,
        ComputeType::U32 => DType::U32,
        ComputeType::I8 => DType::I8,
        ComputeType::U8 => DType::U8,
        ComputeType::Complex => DType::Complex64,
    }
}
