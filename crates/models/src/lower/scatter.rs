//! `ScatterElements` of floats as a custom kernel, so that the graph around it stays whole. Graph
//! networks aggregate at their nodes with this op.
//!
//! Indices come in the form that devices read: 32 bits, counted from the front, within the axis.

use panoply_core::op::compute::{Kernel, KernelCall};
use panoply_core::{DType, Shape};

use super::{Lower, LoweredOutputs, forms};
use crate::array::count_of;
use crate::element::ElementType;
use crate::ops::call::axis_of;
use crate::ops::index::around;

/// The most elements times indices per line. On devices each element scans all indices of its line,
/// so larger nodes stay on the host, between graphs.
const LOOKED_AT_MAX: usize = 1 << 30;

/// The way in which an update is combined with the old element.
#[derive(Clone, Copy)]
enum Join {
    Replace,
    Add,
    Mul,
    Max,
    Min,
}

impl Join {
    /// The combination in C and in WGSL. A number wins against NaN, as on the host.
    fn forms(self) -> [&'static str; 2] {
        match self {
            Join::Replace => ["given", "given"],
            Join::Add => ["old + given", "old + given"],
            Join::Mul => ["old * given", "old * given"],
            Join::Max => ["given > old || old != old ? given : old", "select(old, given, given > old || old != old)"],
            Join::Min => ["given < old || old != old ? given : old", "select(old, given, given < old || old != old)"],
        }
    }
}

/// The sizes of a target from its axis on, and the number of indices along the axis.
#[derive(Clone, Copy)]
struct Sizes {
    len: usize,
    inner: usize,
    count: usize,
}

impl Lower<'_, '_> {
    /// Records a node whose index shape equals the target's shape except along the axis.
    pub(super) fn scatter(&mut self) -> LoweredOutputs {
        let join = match self.call.text("reduction", "none")? {
            "none" => Join::Replace,
            "add" => Join::Add,
            "mul" => Join::Mul,
            "max" => Join::Max,
            "min" => Join::Min,
            _ => return Ok(None),
        };
        let dims = self.dims(0)?.to_vec();
        let (index_dims, update_dims) = (self.dims(1)?.to_vec(), self.dims(2)?);
        if self.kind(0)? != ElementType::F32 || self.kind(2)? != ElementType::F32 || update_dims != index_dims {
            return Ok(None);
        }
        let axis = axis_of(self.call.int("axis", 0)?, dims.len())?;
        let fits = |(place, (index, dim)): (usize, (&usize, &usize))| place == axis || index == dim;
        let (outer, len, inner) = around(&dims, axis);
        let is_whole = index_dims.len() == dims.len() && index_dims.iter().zip(&dims).enumerate().all(fits);
        if !is_whole || i32::try_from(len).is_err() || count_of(&dims)? == 0 || count_of(&index_dims)? == 0 {
            return Ok(None);
        }
        let (elements, looked_at) = (count_of(&dims)?, count_of(&dims)?.saturating_mul(index_dims[axis]));
        if !forms::fits(&[elements, count_of(&index_dims)?]) || looked_at > LOOKED_AT_MAX {
            return Ok(None);
        }
        let Some(indices) = self.indices_at(1, len)? else { return Ok(None) };
        let nodes = [self.id(0)?, indices, self.id(2)?];
        let sizes = Sizes { len, inner, count: index_dims[axis] };
        let program = Kernel::on_cpu("scatter", move |call| put(call, sizes, join))
            .input("x", DType::F32)
            .input("indices", DType::I32)
            .input("updates", DType::F32)
            .output("y", DType::F32)
            .in_pieces(outer * len);
        let (program, shape) = (forms::scatter(program, join.forms()).build()?, Shape::new(&dims)?);
        let node = self.graph().op(&nodes, |tensors| {
            let kernel =
                tensors.iter().fold(Kernel::new(&program), |kernel, tensor| kernel.input(tensor)).output(shape);
            let sizes = [elements, len, inner, sizes.count];
            sizes.iter().fold(kernel, |kernel, size| kernel.scalar(*size as u32)).launch(forms::over(elements))
        })?;
        Ok(Some(vec![(node, ElementType::F32)]))
    }
}

/// Computes the requested rows: rows of the target, combined with their updates one after the
/// other.
fn put(call: &mut KernelCall<'_>, sizes: Sizes, join: Join) -> panoply_core::Result<()> {
    match join {
        Join::Replace => put_rows(call, sizes, |_, new| new),
        Join::Add => put_rows(call, sizes, |old, new| old + new),
        Join::Mul => put_rows(call, sizes, |old, new| old * new),
        Join::Max => put_rows(call, sizes, f32::max),
        Join::Min => put_rows(call, sizes, f32::min),
    }
}

fn put_rows(call: &mut KernelCall<'_>, sizes: Sizes, join: impl Fn(f32, f32) -> f32) -> panoply_core::Result<()> {
    let Sizes { len, inner, count } = sizes;
    let (rows, target) = (call.pieces(), call.output::<f32>(0)?);
    let (x, indices, updates) = (call.input::<f32>(0)?, call.input::<i32>(1)?, call.input::<f32>(2)?);
    target.copy_from_slice(&x[rows.start * inner..rows.end * inner]);
    let blocks = rows.start / len..rows.end.div_ceil(len);
    for number in blocks.start * count..blocks.end * count {
        let (index, new) = (&indices[number * inner..][..inner], &updates[number * inner..][..inner]);
        let first = number / count * len;
        let place = |index: i32| (first + index as usize).checked_sub(rows.start).filter(|place| *place < rows.len());
        // Models that scatter whole rows repeat one index over each row.
        if index.iter().fold(0, |differs, other| differs | (other ^ index[0])) == 0 {
            if let Some(place) = place(index[0]) {
                target[place * inner..][..inner].iter_mut().zip(new).for_each(|(old, new)| *old = join(*old, *new));
            }
            continue;
        }
        for (at, (index, new)) in index.iter().zip(new).enumerate() {
            if let Some(place) = place(*index) {
                let old = &mut target[place * inner + at];
                *old = join(*old, *new);
            }
        }
    }
    Ok(())
}
