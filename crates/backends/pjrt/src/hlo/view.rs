//! Strided views. A tensor is a view of a buffer, with an offset and a stride along each axis.
//! StableHLO has no strided views, so a view is written as slices, reshapes, a transposition and a
//! broadcast. XLA fuses all of these into the op that reads the view.
//!
//! The axes are processed in descending order of their strides. The buffer is cut into lines of the
//! length of the stride, the lines of the view are sliced out, and the remaining axes continue
//! within a line. This is correct if the remaining axes fit into a line. Overlapping views do not,
//! and gather their elements one by one.

use super::{Element, Value, Writer};

/// An axis of a view with a non-zero stride: its index in the view, its length and its absolute
/// stride.
#[derive(Clone, Copy)]
struct Axis {
    place: usize,
    len: usize,
    step: usize,
}

impl Writer {
    /// Writes a strided view of a contiguous value. The value's own dimensions are ignored.
    pub(crate) fn view(&mut self, base: &Value, dims: &[usize], strides: &[isize], offset: usize) -> Value {
        if dims.iter().product::<usize>() == 0 {
            return self.constant(0.0, base.element, dims);
        }
        if offset == 0 && base.elements() == dims.iter().product::<usize>() && is_contiguous(dims, strides) {
            return self.reshape(base, dims);
        }
        let (mut axes, mut first, mut turned) = (Vec::new(), offset as isize, Vec::new());
        for (place, (len, stride)) in dims.iter().zip(strides).enumerate() {
            if *len < 2 || *stride == 0 {
                continue;
            }
            if *stride < 0 {
                first += (*len as isize - 1) * stride;
                turned.push(place);
            }
            axes.push(Axis { place, len: *len, step: stride.unsigned_abs() });
        }
        axes.sort_by_key(|axis| std::cmp::Reverse(axis.step));
        let first = first.unsigned_abs();
        match self.nested(base, &axes, first) {
            Some(value) => self.arrange(&value, &axes, dims, &turned),
            None => self.picked(base, dims, strides, offset),
        }
    }

    /// Slices the elements of all axes in descending order of their strides. `None` if the
    /// remaining axes do not fit into a line at some step.
    fn nested(&mut self, base: &Value, axes: &[Axis], first: usize) -> Option<Value> {
        if !fits(axes, first) {
            return None;
        }
        let mut value = self.reshape(base, &[base.elements()]);
        let (mut kept, mut at) = (Vec::new(), first);
        for axis in axes {
            let last = kept.len();
            let line = value.dims[last];
            let lines = line.div_ceil(axis.step);
            value = self.pad_axis(&value, 0.0, last, 0, lines * axis.step - line);
            value = self.reshape(&value, &[&kept[..], &[lines, axis.step]].concat());
            value = self.slice_axis(&value, last, at / axis.step, at / axis.step + axis.len);
            at %= axis.step;
            kept.push(axis.len);
        }
        value = self.slice_axis(&value, kept.len(), at, at + 1);
        Some(self.reshape(&value, &kept))
    }

    /// Restores the view's order of axes, reverses those with negative strides, and broadcasts
    /// those with stride zero.
    fn arrange(&mut self, value: &Value, axes: &[Axis], dims: &[usize], turned: &[usize]) -> Value {
        let mut order: Vec<usize> = (0..axes.len()).collect();
        order.sort_by_key(|index| axes[*index].place);
        let value = self.transpose(value, &order);
        let places: Vec<usize> = order.iter().map(|index| axes[*index].place).collect();
        let value = self.broadcast(&value, &places, dims);
        self.reverse(&value, turned)
    }

    /// Gathers every element by its position.
    fn picked(&mut self, base: &Value, dims: &[usize], strides: &[isize], offset: usize) -> Value {
        let list = self.reshape(base, &[base.elements()]);
        let mut position = self.constant(offset as f64, Element::I32, dims);
        for (axis, stride) in strides.iter().enumerate() {
            let count = self.iota(axis, Element::I32, dims);
            let step = self.constant(*stride as f64, Element::I32, dims);
            let moved = self.like("multiply", &[&count, &step]);
            position = self.like("add", &[&position, &moved]);
        }
        self.pick(&list, &position)
    }
}

/// Whether, for each axis, the elements that the following axes reach lie within one line.
fn fits(axes: &[Axis], first: usize) -> bool {
    let mut at = first;
    axes.iter().enumerate().all(|(index, axis)| {
        at %= axis.step;
        let reach: usize = axes[index + 1..].iter().map(|axis| (axis.len - 1) * axis.step).sum();
        at + reach < axis.step
    })
}

fn is_contiguous(dims: &[usize], strides: &[isize]) -> bool {
    let mut step = 1;
    dims.iter().zip(strides).rev().all(|(dim, stride)| {
        let fits = *dim == 1 || *stride == step;
        step *= *dim as isize;
        fits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(dims: &[usize], strides: &[isize], offset: usize) -> String {
        let mut writer = Writer::new();
        let base = writer.argument(Element::F32, &[4, 6]);
        let view = writer.view(&base, dims, strides, offset);
        assert_eq!(view.dims, dims);
        writer.finish(&[view])
    }

    #[test]
    fn views_of_lines_become_slices_and_overlapping_ones_pick() {
        assert!(!text(&[4, 6], &[6, 1], 0).contains("reshape"), "the whole is itself");
        assert!(text(&[6, 4], &[1, 6], 0).contains("transpose"), "columns");
        assert!(text(&[2, 3], &[12, 2], 1).contains("slice"), "every second");
        assert!(text(&[4, 6], &[-6, 1], 18).contains("reverse"), "from the last line on");
        assert!(text(&[3, 4, 6], &[0, 6, 1], 0).contains("broadcast_in_dim"), "stretched");
        assert!(text(&[5, 3], &[2, 1], 0).contains("gather"), "lines that overlap");
        for ordinary in [text(&[4, 2], &[6, 3], 2), text(&[6, 4], &[1, 6], 0)] {
            assert!(!ordinary.contains("gather"), "{ordinary}");
        }
    }
}
