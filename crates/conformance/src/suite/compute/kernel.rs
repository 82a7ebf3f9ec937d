//! Kernels of the caller's own: each has a form in C, one in WGSL and a closure, which must agree.
//! Block memory, several outputs, packed elements, atomics, grids of three axes, views, and tensors
//! without elements.

use std::sync::Arc;

use panoply_core::dtype::f16;
use panoply_core::op::compute::{Kernel, KernelBuilder, KernelProgram, LaunchSize, ScalarType};
use panoply_core::{DType, Result, Shape, Tensor};

use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, whole_numbers};

const THREADS: u32 = 64;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![reduction(1), reduction(1000), two_outputs(), halves(2), halves(1001), histogram(), axes()];
    cases.extend([0, 1, 63, 64, 1000].map(saxpy));
    cases.extend([saxpy_of_views(), block_memory(), wide_scalars(), nothing_to_read()]);
    cases
}

fn built(builder: KernelBuilder) -> Arc<KernelProgram> {
    builder.build().unwrap_or_else(|error| panic!("a program of the suite is wrong: {error}"))
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap_or_else(|error| panic!("a shape of the suite is wrong: {error}"))
}

fn case(name: &str, op: Kernel) -> Case {
    Case::new(format!("kernel/{name}"), op, Tolerance::Exact)
}

fn saxpy_program() -> Arc<KernelProgram> {
    let c = "KERNEL saxpy(GLOBAL const f32 *x, GLOBAL const f32 *y, GLOBAL f32 *z, f32 a, u32 n)
{
    u32 i = block_x() * block_size_x() + thread_x();
    if (i < n) z[i] = add_f32(mul_f32(a, x[i]), y[i]);
}";
    let wgsl = "@compute @workgroup_size(BLOCK_X)
fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < scalars.n { z[id.x] = scalars.a * x[id.x] + y[id.x]; }
}";
    let builder = Kernel::c(c, "saxpy").wgsl(wgsl, "saxpy").input("x", DType::F32).input("y", DType::F32);
    let builder = builder.output("z", DType::F32).scalar("a", ScalarType::F32).scalar("n", ScalarType::U32);
    built(builder.on_cpu(|call| {
        let (x, y, a) = (call.input::<f32>(0)?, call.input::<f32>(1)?, call.scalar::<f32>(0)?);
        let sums = x.iter().zip(y).map(|(x, y)| a * x + y);
        call.output(0)?.iter_mut().zip(sums).for_each(|(z, sum)| *z = sum);
        Ok(())
    }))
}

fn saxpy(elements: usize) -> Case {
    let tensor = |seed| whole_numbers(DType::F32, &[elements], seed);
    case(&format!("f32/saxpy of {elements}"), saxpy_of(&tensor(71), &tensor(72)))
}

/// Operands that must be made contiguous for the kernel.
fn saxpy_of_views() -> Case {
    let turned = |seed| whole_numbers(DType::F32, &[9, 17], seed).transpose();
    let later = |seed| whole_numbers(DType::F32, &[18, 9], seed).slice(0, 1, 18);
    let view = |tensor: Result<Tensor>| tensor.unwrap_or_else(|error| panic!("the view is wrong: {error}"));
    case("f32/saxpy of views", saxpy_of(&view(turned(73)), &view(later(74))))
}

fn saxpy_of(x: &Tensor, y: &Tensor) -> Kernel {
    let launch = LaunchSize::over(x.elements(), THREADS);
    let call = Kernel::new(&saxpy_program()).input(x).input(y).scalar(3.0_f32);
    call.scalar(x.elements() as u32).output(*x.shape()).launch(launch)
}

/// Each block adds up its part in block memory.
fn reduction(elements: usize) -> Case {
    let c = "KERNEL sums(GLOBAL const f32 *x, GLOBAL f32 *y, u32 n)
{
    SHARED f32 part[64];
    u32 t = thread_x(), i = block_x() * 64 + t;
    part[t] = i < n ? x[i] : 0.0f;
    for (u32 half = 32; half > 0; half /= 2) {
        BARRIER();
        if (t < half) part[t] += part[t + half];
    }
    if (t == 0) y[block_x()] = part[0];
}";
    let wgsl = "var<workgroup> part: array<f32, 64>;

@compute @workgroup_size(BLOCK_X)
fn sums(@builtin(local_invocation_index) t: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let i = group.x * 64u + t;
    part[t] = 0.0;
    if i < scalars.n { part[t] = x[i]; }
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if t < half { part[t] += part[t + half]; }
    }
    if t == 0u { y[group.x] = part[0]; }
}";
    let builder = Kernel::c(c, "sums").wgsl(wgsl, "sums").input("x", DType::F32).output("y", DType::F32);
    let program = built(builder.scalar("n", ScalarType::U32).on_cpu(|call| {
        let x = call.input::<f32>(0)?;
        let sums: Vec<f32> = x.chunks(THREADS as usize).map(|part| part.iter().sum()).collect();
        call.write(0, &sums)
    }));
    let x = whole_numbers(DType::F32, &[elements], 75);
    let launch = LaunchSize::over(elements, THREADS);
    let op = Kernel::new(&program).input(&x).scalar(elements as u32).output(shape(&[launch.grid[0] as usize]));
    case(&format!("f32/reduction of {elements}"), op.launch(launch))
}

/// Outputs of two types and shapes.
fn two_outputs() -> Case {
    let c = "KERNEL split(GLOBAL const i32 *x, GLOBAL u32 *size, GLOBAL f32 *sign)
{
    u32 i = block_x() * block_size_x() + thread_x();
    if (i >= 300) return;
    size[i] = (u32)(x[i] < 0 ? -x[i] : x[i]);
    if (i < 150) sign[i] = x[i] < 0 ? -1.0f : 1.0f;
}";
    let wgsl = "@compute @workgroup_size(BLOCK_X)
fn split(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if i >= arrayLength(&x) { return; }
    size[i] = u32(abs(x[i]));
    if i < arrayLength(&sign_of) { sign_of[i] = select(1.0, -1.0, x[i] < 0); }
}";
    let builder = Kernel::c(c, "split").wgsl(wgsl, "split").input("x", DType::I32).output("size", DType::U32);
    let program = built(builder.output("sign_of", DType::F32).on_cpu(|call| {
        let (x, size, signs) = (call.input::<i32>(0)?, call.output::<u32>(0)?, call.output::<f32>(1)?);
        size.iter_mut().zip(x).for_each(|(size, x)| *size = x.unsigned_abs());
        signs.iter_mut().zip(x).for_each(|(sign, x)| *sign = if *x < 0 { -1.0 } else { 1.0 });
        Ok(())
    }));
    let x = whole_numbers(DType::I32, &[300], 76);
    let op = Kernel::new(&program).input(&x).output(shape(&[20, 15])).output(shape(&[150]));
    case("i32/two outputs", op.launch(LaunchSize::over(300, THREADS)))
}

/// Elements of 16 bits: each thread handles a word of two elements.
fn halves(elements: usize) -> Case {
    let c = "KERNEL halve(GLOBAL const u16 *x, GLOBAL u16 *y, u32 n)
{
    u32 first = 2 * (block_x() * block_size_x() + thread_x());
    for (u32 i = first; i < first + 2 && i < n; i++) y[i] = f32_to_f16(0.5f * f16_to_f32(x[i]));
}";
    let wgsl = "@compute @workgroup_size(BLOCK_X)
fn halve(@builtin(global_invocation_id) id: vec3<u32>) {
    if 2u * id.x < scalars.n { y[id.x] = pack2x16float(0.5 * unpack2x16float(x[id.x])); }
}";
    let builder = Kernel::c(c, "halve").wgsl(wgsl, "halve").input("x", DType::F16).output("y", DType::F16);
    let program = built(builder.scalar("n", ScalarType::U32).on_cpu(|call| {
        let halved = call.input::<f16>(0)?.iter().map(|x| f16::from_f32(0.5 * x.to_f32()));
        let halved: Vec<f16> = halved.collect();
        call.write(0, &halved)
    }));
    let x = whole_numbers(DType::F16, &[elements], 77);
    let op = Kernel::new(&program).input(&x).scalar(elements as u32).output(*x.shape());
    case(&format!("f16/half of {elements}"), op.launch(LaunchSize::over(elements.div_ceil(2), THREADS)))
}

/// Outputs are initially zero, and many threads add to one element.
fn histogram() -> Case {
    let c = "KERNEL histogram(GLOBAL const u32 *x, GLOBAL u32 *counts, u32 n)
{
    u32 i = block_x() * block_size_x() + thread_x();
    if (i < n) ATOMIC_ADD(&counts[x[i] % 16u], 1u);
}";
    let wgsl = "@compute @workgroup_size(BLOCK_X)
fn histogram(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < scalars.n { atomicAdd(&counts[x[id.x] % 16u], 1u); }
}";
    let builder = Kernel::c(c, "histogram").wgsl(wgsl, "histogram").input("x", DType::U32);
    let builder = builder.atomic_output("counts", DType::U32).scalar("n", ScalarType::U32);
    let program = built(builder.on_cpu(|call| {
        let counts = call.output::<u32>(0)?;
        call.input::<u32>(0)?.iter().for_each(|x| counts[(x % 16) as usize] += 1);
        Ok(())
    }));
    let x = random_tensor(DType::U32, &[500], 78);
    let op = Kernel::new(&program).input(&x).scalar(500_u32).output(shape(&[16]));
    case("u32/histogram", op.launch(LaunchSize::over(500, THREADS)))
}

/// A grid and blocks of three axes.
fn axes() -> Case {
    let c = "KERNEL places(GLOBAL u32 *out)
{
    u32 x = block_x() * block_size_x() + thread_x(), y = block_y() * block_size_y() + thread_y();
    u32 z = block_z() * block_size_z() + thread_z();
    out[(z * grid_size_y() * block_size_y() + y) * grid_size_x() * block_size_x() + x] = x + 100 * y + 10000 * z;
}";
    let wgsl = "@compute @workgroup_size(BLOCK_X, BLOCK_Y, BLOCK_Z)
fn places(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let size = groups * vec3<u32>(BLOCK_X, BLOCK_Y, BLOCK_Z);
    out[(id.z * size.y + id.y) * size.x + id.x] = id.x + 100u * id.y + 10000u * id.z;
}";
    let builder = Kernel::c(c, "places").wgsl(wgsl, "places").output("out", DType::U32);
    let program = built(builder.on_cpu(|call| {
        let LaunchSize { grid, block, .. } = *call.launch();
        let [width, height] = [grid[0] * block[0], grid[1] * block[1]];
        let place = |i: u32| i % width + 100 * (i / width % height) + 10_000 * (i / width / height);
        call.output::<u32>(0)?.iter_mut().zip(0..).for_each(|(out, i)| *out = place(i));
        Ok(())
    }));
    let op = Kernel::new(&program).output(shape(&[6, 6, 8])).launch(LaunchSize::new([2, 3, 2], [4, 2, 3]));
    case("u32/axes", op)
}

/// Block memory whose size the launch sets. WGSL lacks it.
fn block_memory() -> Case {
    let c = "KERNEL turn(GLOBAL const u8 *x, GLOBAL u8 *y)
{
    DYNAMIC_SHARED(u8, all);
    u32 t = thread_x();
    all[t] = x[block_x() * 64 + t];
    BARRIER();
    y[block_x() * 64 + t] = all[63 - t];
}";
    let builder = Kernel::c(c, "turn").input("x", DType::U8).output("y", DType::U8);
    let program = built(builder.on_cpu(|call| {
        let (x, y) = (call.input::<u8>(0)?, call.output::<u8>(0)?);
        y.chunks_mut(64)
            .zip(x.chunks(64))
            .for_each(|(y, x)| y.iter_mut().zip(x.iter().rev()).for_each(|(y, x)| *y = *x));
        Ok(())
    }));
    let x = random_tensor(DType::U8, &[3, 64], 79);
    let op = Kernel::new(&program).input(&x).output(*x.shape()).launch(LaunchSize::over(192, THREADS).block_bytes(64));
    case("u8/block memory", op)
}

/// Scalars of 64 bits, which WGSL lacks.
fn wide_scalars() -> Case {
    let c = "KERNEL wide(GLOBAL f64 *out, f64 a, i64 b, u64 c) { out[0] = a; out[1] = (f64)b; out[2] = (f64)c; }";
    let builder = Kernel::c(c, "wide").output("out", DType::F64).scalar("a", ScalarType::F64);
    let builder = builder.scalar("b", ScalarType::I64).scalar("c", ScalarType::U64);
    let program = built(builder.on_cpu(|call| {
        let values = [call.scalar::<f64>(0)?, call.scalar::<i64>(1)? as f64, call.scalar::<u64>(2)? as f64];
        call.write(0, &values)
    }));
    let call = Kernel::new(&program).scalar(0.1_f64).scalar(-(1_i64 << 40)).scalar(1_u64 << 63);
    case("f64/wide scalars", call.output(shape(&[3])))
}

/// Inputs and outputs without elements, beside an output that has some.
fn nothing_to_read() -> Case {
    let c = "KERNEL fill(GLOBAL const f32 *x, GLOBAL f32 *none, GLOBAL f32 *y) { y[thread_x()] = 7.0f; }";
    let wgsl = "@compute @workgroup_size(BLOCK_X)
fn fill(@builtin(local_invocation_index) t: u32) { y[t] = 7.0; }";
    let builder = Kernel::c(c, "fill").wgsl(wgsl, "fill").input("x", DType::F32).output("none", DType::F32);
    let program = built(builder.output("y", DType::F32).on_cpu(|call| {
        call.output::<f32>(1)?.fill(7.0);
        Ok(())
    }));
    let x = random_tensor(DType::F32, &[0, 4], 80);
    let op = Kernel::new(&program).input(&x).output(shape(&[4, 0])).output(shape(&[5]));
    case("f32/nothing to read", op.launch(LaunchSize::new([1, 1, 1], [5, 1, 1])))
}
