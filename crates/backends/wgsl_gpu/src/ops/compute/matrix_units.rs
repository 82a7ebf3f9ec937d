//! Products of f16 on a device's matrix units, if they suit them.

use panoply_core::expr::Expr;
use panoply_core::{DType, Result, Shape};
use panoply_kernels::wgsl::{Addend, COOP_DEPTH, COOP_STEP, COOP_TILE, CoopKernel, Epilogue, Kernel, Load};

use super::map::evaluate;
use super::matmul::{Product, load, params};
use crate::context::Context;
use crate::driver::Driver;
use crate::operand::Operand;
use crate::tuning::LARGE_TILES;

/// Records a product and returns its output in f16; `None` if it does not suit matrix units.
pub(super) fn multiply<D: Driver>(
    product: &Product,
    [a, b]: [&Operand<D>; 2],
    [c, bias]: [Option<&Operand<D>>; 2],
    shape: Shape,
    context: &mut Context<D>,
) -> Result<Option<Operand<D>>> {
    let limit = context.profile.binding_bytes_max;
    let near = [a, b].into_iter().chain(c).chain(bias).all(|operand| operand.is_within(limit));
    let small = (shape.elements() * DType::F32.size_bytes()) as u64 <= limit;
    if !context.profile.matrix_units || a.dtype != DType::F16 || b.dtype != DType::F16 || !near || !small {
        return Ok(None);
    }
    let load_a = load(a, [0, 1], [product.m, product.k], COOP_STEP);
    let load_b = load(b, [1, 0], [product.n, product.k], COOP_STEP);
    if load_a == Load::Single || load_b == Load::Single {
        return Ok(None);
    }
    let whole = [product.m, product.n].iter().all(|size| size.is_multiple_of(COOP_TILE))
        && product.k > 0
        && product.k.is_multiple_of(COOP_DEPTH);
    let plain = Epilogue::none(product.addend_dtype);
    let epilogue = product.epilogue(c.is_some());
    // Sums of whole tiles are stored directly, and a map applies the epilogue afterwards: this
    // takes less time than the way through workgroup memory that a kernel with an epilogue takes.
    let apart = whole && epilogue != plain;
    let (epilogue, [kernel_c, kernel_bias]) = if apart { (plain, [None, None]) } else { (epilogue, [c, bias]) };
    let vector_store = product.n.is_multiple_of(4);
    let kernel = Kernel::Coop(CoopKernel { load_a, load_b, epilogue, vector_store, whole });
    let reads: Vec<&Operand<D>> = [a, b].into_iter().chain(kernel_c).chain(kernel_bias).collect();
    if context.pipelines.get(&kernel, (1, reads.len())).is_err() {
        // Drivers may report matrices and not compile the kernel.
        context.profile.matrix_units = false;
        return Ok(None);
    }
    let sums = context.output(DType::F32, shape)?;
    let params = params(product, [a, b], [kernel_c, kernel_bias], LARGE_TILES[0]);
    let groups = product.batch.elements() * product.m.div_ceil(COOP_TILE) * product.n.div_ceil(COOP_TILE);
    context.run(&kernel, &[&sums], &reads, &params, groups as u64)?;
    if apart { finish(product, sums, [c, bias], context).map(Some) } else { context.narrow(sums, DType::F16).map(Some) }
}

/// Applies the epilogue to the sums with a map.
fn finish<D: Driver>(
    product: &Product,
    sums: Operand<D>,
    [c, bias]: [Option<&Operand<D>>; 2],
    context: &mut Context<D>,
) -> Result<Operand<D>> {
    let shape = sums.shape;
    let (mut x, mut operands) = (Expr::input(0), vec![sums]);
    if product.alpha != 1.0 {
        x = x * f64::from(product.alpha);
    }
    if let Some(c) = c {
        x = x + Expr::input(operands.len() as u32).cast(DType::F32) * f64::from(product.beta);
        operands.push(c.clone());
    }
    if let Some(bias) = bias.filter(|_| product.bias_kind != Addend::None) {
        x = x + Expr::input(operands.len() as u32).cast(DType::F32);
        operands.push(bias.clone());
    }
    let x = product.activation.apply(x);
    let program = x.cast(DType::F16).finish()?;
    let dtypes: Vec<DType> = operands.iter().map(|operand| operand.dtype).collect();
    let read: Vec<usize> = (0..operands.len()).collect();
    evaluate(&program, &dtypes, &read, operands, DType::F16, shape, context)
}
