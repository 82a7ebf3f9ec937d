//! `Pad` and `Tile` of f32: each element is one of the source, or a number.

use panoply_core::graph::NodeId;
use panoply_core::op::compute::{Kernel, KernelCall};

use super::resample::{Change, Table, of_pixels};
use super::{Arg, Lower, Recorded, one};
use crate::array::host_count;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::ops::call::size_of_int;
use crate::ops::{make, sizes};

/// The element of an axis that stands at each place; none is the number.
type Places = Vec<Option<usize>>;

/// Planes of elements of others, or of pixels of so many channels. A row is a piece.
#[derive(Clone)]
struct Frame {
    rows: Option<Places>,
    columns: Option<Places>,
    before: [usize; 2],
    after: [usize; 2],
    channels: usize,
    fill: f32,
}

impl Frame {
    fn run(&self, call: &mut KernelCall<'_>) -> panoply_core::Result<()> {
        let (source, target) = (call.input::<f32>(0)?, call.output::<f32>(0)?);
        let ([height, width], [rows, columns]) = (self.before, self.after.map(|len| len.max(1)));
        if target.is_empty() {
            return Ok(());
        }
        let (start, width) = (call.pieces().start, width * self.channels);
        for (piece, to) in (start..).zip(target.chunks_exact_mut(columns * self.channels)) {
            let (plane, row) = (piece / rows, piece % rows);
            match self.rows.as_ref().map_or(Some(row), |rows| rows[row]) {
                Some(row) => self.row(&source[(plane * height + row) * width..][..width], to),
                None => to.fill(self.fill),
            }
        }
        Ok(())
    }

    fn row(&self, from: &[f32], to: &mut [f32]) {
        let Some(columns) = &self.columns else { return to.copy_from_slice(from) };
        let (mut place, channels) = (0, self.channels);
        while place < columns.len() {
            let Some(first) = columns[place] else {
                to[place * channels..][..channels].fill(self.fill);
                place += 1;
                continue;
            };
            // Most elements stand beside those that they stood beside.
            let run = columns[place..].iter().zip(first..).take_while(|(at, next)| **at == Some(*next)).count();
            to[place * channels..][..run * channels].copy_from_slice(&from[first * channels..][..run * channels]);
            place += run;
        }
    }
}

fn table(places: Option<&Places>) -> Table {
    match places {
        Some(places) => Table::of(places.iter().map(|at| at.iter().map(|at| (*at, 1.0)).collect())),
        None => Table::same(),
    }
}

impl Lower<'_, '_> {
    /// Records a `Pad` or a `Tile` of f32 whose sizes never change; `None` where it is another one.
    pub(super) fn pad(&mut self) -> Recorded {
        let fixed = self.args.iter().skip(1).all(|arg| !matches!(arg, Arg::Dynamic { .. }));
        if !fixed || self.kind(0)? != ElementType::F32 || self.dims(0)?.is_empty() {
            return Ok(None);
        }
        let dims = self.dims(0)?.to_vec();
        let (sources, fill): (Vec<Option<Places>>, f32) = match self.node.op.as_str() {
            "Pad" => {
                let (before, after) = sizes::pads(&self.call, &dims)?;
                let mode = self.call.text("mode", "constant")?;
                let value = make::pad_value(&self.call, ElementType::F32)?;
                (make::pad_sources(&dims, &before, &after, mode)?, value.as_slice::<f32>()?[0])
            }
            _ => (tiles(&dims, &self.call.array(1)?.to_i64s()?)?, 0.0),
        };
        let (mut node, mut dims, rank) = (self.id(0)?, dims.clone(), dims.len());
        // The last two axes together, then each before them by itself: what stands at a corner is the same in any order.
        let front = rank.saturating_sub(2);
        let rows = if rank > 1 { sources[front].clone() } else { None };
        let columns = sources[rank - 1].clone();
        if rows.is_some() || columns.is_some() {
            node = self.framed(node, &mut dims, front, (rows, columns), fill)?;
        }
        for axis in (0..front).filter(|axis| sources[*axis].is_some()) {
            node = self.framed(node, &mut dims, axis, (sources[axis].clone(), None), fill)?;
        }
        one(node, ElementType::F32)
    }

    /// Other elements along an axis, and along the last one where `columns` are given.
    fn framed(
        &mut self,
        x: NodeId,
        dims: &mut [usize],
        axis: usize,
        (rows, columns): (Option<Places>, Option<Places>),
        fill: f32,
    ) -> Result<NodeId> {
        // What has one axis is one row.
        let has_rows = dims.len() > 1;
        let cut = axis + usize::from(has_rows);
        let height = |dims: &[usize]| if has_rows { dims[axis] } else { 1 };
        let size = |dims: &[usize]| [height(dims), dims[cut..].iter().product()];
        let (planes, before) = (dims[..axis].iter().product(), size(dims));
        if let Some(rows) = &rows {
            dims[axis] = rows.len();
        }
        if let (Some(columns), Some(last)) = (&columns, dims.last_mut()) {
            *last = columns.len();
        }
        let after = size(dims);
        let tables = [table(rows.as_ref()), table(columns.as_ref())];
        let frame = Frame { rows, columns, before, after, channels: 1, fill };
        let change = Change { planes, pieces: planes * after[0], before, after, fill };
        // Of images, height and width change alike wherever their channels are.
        let of_images = (dims.len() == 4 && axis == 2).then(|| frame.clone());
        let turn = move |kernel: &Kernel, order: &[usize]| {
            let frame = Frame { channels: kernel.outputs.first()?[1], ..of_images.clone()? };
            of_pixels(kernel, order, move |call| frame.run(call))
        };
        self.resampled(("pad", x, dims), &change, tables, move |call| frame.run(call), turn)
    }
}

/// The elements that stand along each axis of what is repeated; `None` where it is not.
fn tiles(dims: &[usize], repeats: &[i64]) -> Result<Vec<Option<Places>>> {
    if repeats.len() != dims.len() {
        return Err(Error::invalid("repeats", dims.len().to_string(), repeats.len()));
    }
    let sizes = dims.iter().zip(repeats).map(|(dim, times)| Ok(dim.saturating_mul(size_of_int(*times)?)));
    let sizes = sizes.collect::<Result<Vec<usize>>>()?;
    // Of what has no elements along one axis, others may be of any length.
    sizes.iter().try_for_each(|len| host_count(&[*len]).map(drop))?;
    let places = |(size, dim): (&usize, &usize)| (size != dim).then(|| (0..*size).map(|at| Some(at % dim)).collect());
    Ok(sizes.iter().zip(dims).map(places).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_made_of_runs_and_of_the_number() {
        let columns = Some(vec![None, Some(2), Some(0), Some(1), Some(2), Some(2), None]);
        let frame = Frame { rows: None, columns, before: [1, 3], after: [1, 7], channels: 1, fill: 9.0 };
        let mut made = [0.0; 7];
        frame.row(&[5.0, 6.0, 7.0], &mut made);
        assert_eq!(made, [9.0, 7.0, 5.0, 6.0, 7.0, 7.0, 9.0]);
        let mut pairs = [0.0; 14];
        Frame { channels: 2, ..frame }.row(&[5.0, -5.0, 6.0, -6.0, 7.0, -7.0], &mut pairs);
        assert_eq!(pairs, [9.0, 9.0, 7.0, -7.0, 5.0, -5.0, 6.0, -6.0, 7.0, -7.0, 7.0, -7.0, 9.0, 9.0]);
    }

    #[test]
    fn what_is_repeated_has_places_along_its_own_axes() {
        let made = tiles(&[2, 3], &[1, 2]).expect("sizes");
        assert_eq!(made, [None, Some([0, 1, 2, 0, 1, 2].map(Some).to_vec())]);
        assert_eq!(tiles(&[0, 3], &[4, 0]).expect("none"), [None, Some(vec![])]);
        assert!(tiles(&[2, 3], &[1]).is_err() && tiles(&[2, 3], &[1, -1]).is_err());
        assert!(tiles(&[2, 3], &[i64::MAX, i64::MAX]).is_err());
        assert!(tiles(&[0, 3], &[1, 1 << 40]).is_err());
        assert!(make::pad_sources(&[0, 3], &[0, 1 << 40], &[0, 0], "constant").is_err());
    }

    #[test]
    fn frames_of_pixels_are_those_of_planes() {
        use panoply_core::{DType, Shape, Tensor};
        let rows = || Some(vec![None, Some(1), Some(0), Some(2), Some(2)]);
        let columns = || Some(vec![Some(1), Some(2), None, Some(0), Some(1), Some(2), Some(3)]);
        for (rows, columns) in [(rows(), columns()), (None, columns()), (rows(), None)] {
            let after = [rows.as_ref().map_or(3, Vec::len), columns.as_ref().map_or(4, Vec::len)];
            let frame = Frame { rows, columns, before: [3, 4], after, channels: 1, fill: 9.0 };
            let pixels = Frame { channels: 5, ..frame.clone() };
            let image = Tensor::from_vec((0..120).map(|x| x as f32).collect(), [2, 5, 3, 4]).expect("an image");
            let program = Kernel::on_cpu("pad", move |call| frame.run(call)).input("x", DType::F32);
            let program = program.output("y", DType::F32).in_pieces(10 * after[0]).build().expect("a program");
            let shape = Shape::new([2, 5, after[0], after[1]]).expect("a shape");
            let kernel = Kernel::new(&program).input(&image).output(shape);
            let turned = of_pixels(&kernel, &[0, 2, 3, 1], move |call| pixels.run(call)).expect("the same");
            let numbers = |kernel: &Kernel| kernel.compute().expect("numbers").swap_remove(0);
            let expected = numbers(&kernel).permute(&[0, 2, 3, 1]).and_then(|view| view.to_vec::<f32>());
            assert_eq!(numbers(&turned).to_vec::<f32>().expect("numbers"), expected.expect("numbers"));
        }
    }
}
