//! Resampled planes as one kernel: `Resize` of f32 on every device.

use panoply_core::graph::NodeId;
use panoply_core::op::compute::{Kernel, KernelCall};
use panoply_core::{DType, Shape};

use super::{Lower, forms};
use crate::array::{Array, count_of};
use crate::error::Result;

/// The weights of one axis: each output index has the same number of entries, each a source index
/// and its weight. Index -1 stands for no element. A table without entries leaves the axis
/// unchanged.
pub(super) struct Table {
    entries: usize,
    at: Vec<i32>,
    of: Vec<f32>,
}

impl Table {
    pub(super) fn same() -> Table {
        Table { entries: 0, at: vec![-1], of: vec![0.0] }
    }

    /// A table of the entries of each output index.
    pub(super) fn of<'a>(places: impl Iterator<Item = Vec<(usize, f32)>> + Clone + 'a) -> Table {
        let entries = places.clone().map(|parts| parts.len()).max().unwrap_or(0).max(1);
        let (mut at, mut of) = (Vec::new(), Vec::new());
        for parts in places {
            at.extend(parts.iter().map(|(at, _)| i32::try_from(*at).unwrap_or(-1)));
            of.extend(parts.iter().map(|(_, weight)| *weight));
            at.resize(at.len() + entries - parts.len(), -1);
            of.resize(at.len(), 0.0);
        }
        Table { entries, at, of }
    }
}

/// The size of a change of planes: their number, the number of pieces made by the closure, height
/// and width before and after.
pub(super) struct Change {
    pub(super) planes: usize,
    pub(super) pieces: usize,
    pub(super) before: [usize; 2],
    pub(super) after: [usize; 2],
}

/// The axis order of channels-last (NHWC) images.
pub(super) const CHANNELS_LAST: [usize; 4] = [0, 2, 3, 1];

/// A call that changes the planes of channels-last images by this closure. A row of pixels is a
/// piece.
pub(super) fn of_pixels(
    kernel: &Kernel,
    order: &[usize],
    body: impl Fn(&mut KernelCall<'_>) -> panoply_core::Result<()> + Send + Sync + 'static,
) -> Option<Kernel> {
    let (image, shape) = (kernel.inputs.first()?, kernel.outputs.first()?);
    if order != CHANNELS_LAST || shape.rank() != CHANNELS_LAST.len() {
        return None;
    }
    let shape = Shape::new(CHANNELS_LAST.map(|axis| shape[axis])).ok()?;
    let program = Kernel::on_cpu(kernel.program.name(), body).input("x", DType::F32).output("y", DType::F32);
    let program = program.in_pieces((shape[0] * shape[1]).max(1)).writes_all().build().ok()?;
    Some(Kernel::new(&program).input(&image.permute(&CHANNELS_LAST).ok()?).output(shape))
}

impl Lower<'_, '_> {
    /// Resamples planes of f32 by tables for their rows and columns. On the CPU `body` makes the
    /// pieces, and `turn` gives the kernel for channels-last images.
    pub(super) fn resampled(
        &mut self,
        (name, x, dims): (&str, NodeId, &[usize]),
        change: &Change,
        tables: [Table; 2],
        body: impl Fn(&mut KernelCall<'_>) -> panoply_core::Result<()> + Send + Sync + 'static,
        turn: impl Fn(&Kernel, &[usize]) -> Option<Kernel> + Send + Sync + 'static,
    ) -> Result<NodeId> {
        let Change { planes, pieces, before: [height, width], after: [rows, columns] } = *change;
        let (count, given) = (count_of(dims)?, count_of(&[planes, height, width])?);
        let mut program = Kernel::on_cpu(name, body).input("x", DType::F32).writes_all().permute_with(turn);
        let mut nodes = vec![x];
        for (axis, table) in ["row", "column"].into_iter().zip(&tables) {
            program = program.input(&format!("{axis}_at"), DType::I32).input(&format!("{axis}_of"), DType::F32);
            nodes.push(self.constant(&Array::from_slice(&table.at, [table.at.len()])?)?);
            nodes.push(self.constant(&Array::from_slice(&table.of, [table.of.len()])?)?);
        }
        let mut program = program.output("y", DType::F32).in_pieces(pieces.max(1));
        let has_forms = forms::fits(&[count, given]);
        if has_forms {
            program = forms::resample(program);
        }
        let (program, shape) = (program.build()?, Shape::new(dims)?);
        let scalars = [count, height, width, rows, columns, tables[0].entries, tables[1].entries];
        let make = |tensors: &[panoply_core::Tensor]| {
            let kernel =
                tensors.iter().fold(Kernel::new(&program), |kernel, tensor| kernel.input(tensor)).output(shape);
            match has_forms {
                true => scalars.iter().fold(kernel, |kernel, value| kernel.scalar(*value as u32)),
                false => kernel,
            }
            .launch(forms::over(count))
        };
        Ok(self.graph().op(&nodes, make)?)
    }
}
