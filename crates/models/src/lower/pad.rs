//! `Pad` and `Tile`: each output element is a source element or the fill element. Elements are
//! copied as raw bits.

use panoply_core::graph::NodeId;
use panoply_core::op::compute::{Kernel, KernelCall};
use panoply_core::{DType, Element, Shape, bf16, f16};

use super::resample::of_pixels;
use super::{Arg, Lower, LoweredOutputs, carrier, forms, one};
use crate::array::{Array, count_of, host_count};
use crate::error::{Error, Result};
use crate::ops::call::size_of_int;
use crate::ops::{make, sizes};

/// The source index of each output index of an axis. `None` stands for the fill element.
type Places = Vec<Option<usize>>;

/// Planes of elements, or of pixels with `channels` elements each. A row is a piece.
#[derive(Clone)]
struct Frame {
    rows: Option<Places>,
    columns: Option<Places>,
    before: [usize; 2],
    after: [usize; 2],
    channels: usize,
    /// The bytes of the fill element.
    fill: Vec<u8>,
}

impl Frame {
    fn run(&self, call: &mut KernelCall<'_>, dtype: DType) -> panoply_core::Result<()> {
        match dtype {
            DType::F32 => self.planes::<f32>(call),
            DType::F16 => self.planes::<f16>(call),
            DType::BF16 => self.planes::<bf16>(call),
            DType::F64 => self.planes::<f64>(call),
            DType::I32 => self.planes::<i32>(call),
            DType::U32 => self.planes::<u32>(call),
            DType::I8 => self.planes::<i8>(call),
            _ => self.planes::<u8>(call),
        }
    }

    fn planes<T: Element>(&self, call: &mut KernelCall<'_>) -> panoply_core::Result<()> {
        let (source, target) = (call.input::<T>(0)?, call.output::<T>(0)?);
        let (([height, width], [rows, columns]), fill) = ((self.before, self.after), self.filler::<T>());
        if target.is_empty() {
            return Ok(());
        }
        let (start, width) = (call.pieces().start, width * self.channels);
        for (piece, to) in (start..).zip(target.chunks_exact_mut(columns * self.channels)) {
            let (plane, row) = (piece / rows, piece % rows);
            match self.rows.as_ref().map_or(Some(row), |rows| rows[row]) {
                Some(row) => self.row(&source[(plane * height + row) * width..][..width], to),
                None => to.fill(fill),
            }
        }
        Ok(())
    }

    fn filler<T: Element>(&self) -> T {
        bytemuck::pod_read_unaligned(&self.fill)
    }

    fn row<T: Element>(&self, from: &[T], to: &mut [T]) {
        let Some(columns) = &self.columns else { return to.copy_from_slice(from) };
        let (mut place, channels) = (0, self.channels);
        while place < columns.len() {
            let Some(first) = columns[place] else {
                to[place * channels..][..channels].fill(self.filler());
                place += 1;
                continue;
            };
            // Most neighbours in the output are neighbours in the source too.
            let run = columns[place..].iter().zip(first..).take_while(|(at, next)| **at == Some(*next)).count();
            to[place * channels..][..run * channels].copy_from_slice(&from[first * channels..][..run * channels]);
            place += run;
        }
    }

    /// The source indices of an axis as kernels read them (-1 for fill), and the number of entries
    /// per index: 0 if the axis is unchanged.
    fn table(places: Option<&Places>) -> (Vec<i32>, usize) {
        let number = |at: &Option<usize>| at.and_then(|at| i32::try_from(at).ok()).unwrap_or(-1);
        places.map_or((vec![-1], 0), |places| (places.iter().map(number).collect(), 1))
    }
}

impl Lower<'_, '_> {
    /// Records a `Pad` or `Tile` with constant sizes. `None` for other nodes.
    pub(super) fn pad(&mut self) -> LoweredOutputs {
        let fixed = self.args.iter().skip(1).all(|arg| !matches!(arg, Arg::Dynamic { .. }));
        let kind = self.kind(0)?;
        if !fixed || kind.carrier().is_none() || self.dims(0)?.is_empty() {
            return Ok(None);
        }
        let dims = self.dims(0)?.to_vec();
        let (sources, fill): (Vec<Option<Places>>, Vec<u8>) = match self.node.op.as_str() {
            "Pad" => {
                let (before, after) = sizes::pads(&self.call, &dims)?;
                let mode = self.call.text("mode", "constant")?;
                let value = make::pad_value(&self.call, kind)?;
                (make::pad_sources(&dims, &before, &after, mode)?, value.bytes().to_vec())
            }
            _ => (tiles(&dims, &self.call.array(1)?.to_i64s()?)?, vec![0; kind.size_bytes()]),
        };
        let (mut node, mut dims, rank) = (self.id(0)?, dims.clone(), dims.len());
        // The last two axes together, then each axis before them. The order does not change the
        // corners.
        let front = rank.saturating_sub(2);
        let rows = if rank > 1 { sources[front].clone() } else { None };
        let columns = sources[rank - 1].clone();
        let dtype = carrier(kind)?;
        if rows.is_some() || columns.is_some() {
            node = self.framed(node, &mut dims, front, (rows, columns), (dtype, &fill))?;
        }
        for axis in (0..front).filter(|axis| sources[*axis].is_some()) {
            node = self.framed(node, &mut dims, axis, (sources[axis].clone(), None), (dtype, &fill))?;
        }
        one(node, kind)
    }

    /// Applies the source indices along an axis and, if `columns` are given, along the last axis.
    fn framed(
        &mut self,
        x: NodeId,
        dims: &mut [usize],
        axis: usize,
        (rows, columns): (Option<Places>, Option<Places>),
        (dtype, fill): (DType, &[u8]),
    ) -> Result<NodeId> {
        // A tensor of one axis is one row.
        let has_rows = dims.len() > 1;
        let cut = axis + usize::from(has_rows);
        let height = |dims: &[usize]| if has_rows { dims[axis] } else { 1 };
        let size = |dims: &[usize]| [height(dims), dims[cut..].iter().product()];
        let (planes, before): (usize, _) = (dims[..axis].iter().product(), size(dims));
        if let Some(rows) = &rows {
            dims[axis] = rows.len();
        }
        if let (Some(columns), Some(last)) = (&columns, dims.last_mut()) {
            *last = columns.len();
        }
        let frame = Frame { rows, columns, before, after: size(dims), channels: 1, fill: fill.to_vec() };
        self.frame(x, (dims, planes, axis), frame, dtype)
    }

    /// Records a kernel on `planes` planes, of the axis and those after it. The result has the
    /// dimensions `dims`.
    fn frame(
        &mut self,
        x: NodeId,
        (dims, planes, axis): (&[usize], usize, usize),
        frame: Frame,
        dtype: DType,
    ) -> Result<NodeId> {
        let ([height, width], [rows, columns]) = (frame.before, frame.after);
        let (count, given) = (count_of(dims)?, count_of(&[planes, height, width])?);
        let tables = [Frame::table(frame.rows.as_ref()), Frame::table(frame.columns.as_ref())];
        let bytes = frame.fill.iter().take(4).rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        // Height and width of an image change in the same way in every layout.
        let of_images = (dims.len() == 4 && axis == 2 && dtype == DType::F32).then(|| frame.clone());
        let turn = move |kernel: &Kernel, order: &[usize]| {
            let frame = Frame { channels: kernel.outputs.first()?[1], ..of_images.clone()? };
            of_pixels(kernel, order, move |call| frame.run(call, DType::F32))
        };
        let body = move |call: &mut KernelCall<'_>| frame.run(call, dtype);
        let program = Kernel::on_cpu("pad", body).input("x", dtype).input("row_at", DType::I32);
        let program = program.input("column_at", DType::I32).output("y", dtype).in_pieces((planes * rows).max(1));
        let mut program = program.writes_all().permute_with(turn);
        let has_forms = forms::fits(&[count, given]) && forms::has_frames(dtype);
        if has_forms {
            program = forms::frame(program, dtype);
        }
        let mut nodes = vec![x];
        for (table, _) in &tables {
            nodes.push(self.constant(&Array::from_slice(table, [table.len()])?)?);
        }
        let (program, shape) = (program.build()?, Shape::new(dims)?);
        let scalars = [count, height, width, rows, columns, tables[0].1, tables[1].1];
        let make = |tensors: &[panoply_core::Tensor]| {
            let kernel =
                tensors.iter().fold(Kernel::new(&program), |kernel, tensor| kernel.input(tensor)).output(shape);
            match has_forms {
                true => scalars.iter().fold(kernel, |kernel, value| kernel.scalar(*value as u32)).scalar(bytes),
                false => kernel,
            }
            .launch(forms::over(count))
        };
        Ok(self.graph().op(&nodes, make)?)
    }
}

/// The source indices along each repeated axis. `None` for axes that are not repeated.
fn tiles(dims: &[usize], repeats: &[i64]) -> Result<Vec<Option<Places>>> {
    if repeats.len() != dims.len() {
        return Err(Error::invalid("repeats", dims.len().to_string(), repeats.len()));
    }
    let sizes = dims.iter().zip(repeats).map(|(dim, times)| Ok(dim.saturating_mul(size_of_int(*times)?)));
    let sizes = sizes.collect::<Result<Vec<usize>>>()?;
    // If one axis is empty, the other axes may have any length, so each is checked alone.
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
        let frame = Frame {
            rows: None,
            columns,
            before: [1, 3],
            after: [1, 7],
            channels: 1,
            fill: 9.0f32.to_le_bytes().to_vec(),
        };
        let mut made = [0.0f32; 7];
        frame.row(&[5.0, 6.0, 7.0], &mut made);
        assert_eq!(made, [9.0, 7.0, 5.0, 6.0, 7.0, 7.0, 9.0]);
        let mut pairs = [0.0f32; 14];
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
            let frame =
                Frame { rows, columns, before: [3, 4], after, channels: 1, fill: 9.0f32.to_le_bytes().to_vec() };
            let pixels = Frame { channels: 5, ..frame.clone() };
            let image = Tensor::from_vec((0..120).map(|x| x as f32).collect(), [2, 5, 3, 4]).expect("an image");
            let program = Kernel::on_cpu("pad", move |call| frame.run(call, DType::F32)).input("x", DType::F32);
            let program = program.output("y", DType::F32).in_pieces(10 * after[0]).build().expect("a program");
            let shape = Shape::new([2, 5, after[0], after[1]]).expect("a shape");
            let kernel = Kernel::new(&program).input(&image).output(shape);
            let turned = of_pixels(&kernel, &[0, 2, 3, 1], move |call| pixels.run(call, DType::F32)).expect("the same");
            let numbers = |kernel: &Kernel| kernel.compute().expect("numbers").swap_remove(0);
            let expected = numbers(&kernel).permute(&[0, 2, 3, 1]).and_then(|view| view.to_vec::<f32>());
            assert_eq!(numbers(&turned).to_vec::<f32>().expect("numbers"), expected.expect("numbers"));
        }
    }
}
