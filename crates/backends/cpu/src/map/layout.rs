//! How the inputs lie in memory, seen in the order in which the output is written.

use panoply_core::{RANK_MAX, Result, Shape, Tensor};

/// Inner runs of at least this many elements are walked run by run; shorter ones are gathered into blocks.
const RUN_ELEMENTS_MIN: usize = 256;

/// One input, broadcast to the output's shape.
#[derive(Clone, Copy)]
pub(super) struct View {
    base: *const u8,
    strides: [isize; RANK_MAX],
    size_bytes: usize,
    access: Access,
}

/// How a view's elements are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// One after the other, in the output's order.
    Linear,
    /// One element for all.
    Scalar,
    /// Anything else.
    Strided,
}

/// The output's dimensions, with neighbours joined where every input allows it, and the views of the inputs.
pub(super) struct Layout<'a> {
    dims: [usize; RANK_MAX],
    rank: usize,
    views: &'a mut [View],
}

impl View {
    /// Stands for a view that is not known yet.
    pub const EMPTY: View =
        View { base: std::ptr::null(), strides: [0; RANK_MAX], size_bytes: 1, access: Access::Scalar };

    /// A tensor on the host, broadcast to `shape`. Fails where it is elsewhere or does not stretch to the shape.
    pub fn new(tensor: &Tensor, shape: &Shape) -> Result<View> {
        let bytes = tensor.host_bytes()?;
        let size_bytes = tensor.dtype().size_bytes();
        let mut strides = [0; RANK_MAX];
        if tensor.shape() == shape {
            strides[..shape.rank()].copy_from_slice(tensor.strides().steps());
        } else {
            strides[..shape.rank()].copy_from_slice(tensor.broadcast_to(shape)?.strides().steps());
        }
        // The tensor's constructor proved that the offset and every element are inside the buffer; an empty tensor's
        // offset may be anywhere, and is never read.
        let base = bytes.as_ptr().wrapping_add(tensor.offset() * size_bytes);
        Ok(View { base, strides, size_bytes, access: Access::Strided })
    }

    /// Elements of this size that lie one after the other from `base` on, in the order of a contiguous `shape`.
    pub fn contiguous(base: *const u8, size_bytes: usize, shape: &Shape) -> View {
        let mut strides = [0; RANK_MAX];
        strides[..shape.rank()].copy_from_slice(shape.contiguous_strides().steps());
        View { base, strides, size_bytes, access: Access::Strided }
    }

    pub fn access(&self) -> Access {
        self.access
    }

    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The address of the first element.
    pub fn base(&self) -> *const u8 {
        self.base
    }
}

impl<'a> Layout<'a> {
    /// Joins dimensions and finds how each view is reached.
    pub fn new(shape: &Shape, views: &'a mut [View]) -> Layout<'a> {
        let mut layout = Layout { dims: [1; RANK_MAX], rank: 0, views };
        for axis in 0..shape.rank() {
            layout.push(shape[axis], axis);
        }
        let dims = layout.dims;
        for view in layout.views.iter_mut() {
            let mut step = 1;
            let mut linear = true;
            for axis in (0..layout.rank).rev() {
                linear &= view.strides[axis] == step;
                step *= dims[axis] as isize;
            }
            let scalar = view.strides[..layout.rank].iter().all(|stride| *stride == 0);
            view.access = match (linear, scalar) {
                (_, true) => Access::Scalar,
                (true, _) => Access::Linear,
                _ => Access::Strided,
            };
        }
        layout
    }

    pub fn views(&self) -> &[View] {
        self.views
    }

    /// Whether blocks must not cross the end of an inner run, and the length of those runs.
    pub fn run_elements(&self) -> Option<usize> {
        let inner = if self.rank == 0 { 1 } else { self.dims[self.rank - 1] };
        let strided = self.views.iter().any(|view| view.access == Access::Strided);
        (strided && inner >= RUN_ELEMENTS_MIN).then_some(inner)
    }

    /// The address of the view's element at a position of the output, and the step in elements to the next one of the
    /// same inner run.
    pub fn locate(&self, view: &View, position: usize) -> (*const u8, isize) {
        let mut rest = position;
        let mut offset = 0_isize;
        for axis in (0..self.rank).rev() {
            offset += (rest % self.dims[axis]) as isize * view.strides[axis];
            rest /= self.dims[axis];
        }
        let step = if self.rank == 0 { 0 } else { view.strides[self.rank - 1] };
        (view.base.wrapping_offset(offset * view.size_bytes as isize), step)
    }

    /// Copies the view's elements for `len` positions of the output, from `position` on, one after the other.
    ///
    /// # Safety
    /// The view's memory is alive, `position + len` is at most the output's number of elements, and `target` is valid
    /// for `len` elements.
    pub unsafe fn gather(&self, view: &View, position: usize, len: usize, target: *mut u8) {
        match view.size_bytes {
            // SAFETY: the caller's promise, and that is the size of the elements.
            1 => unsafe { self.gather_as::<u8>(view, position, len, target.cast()) },
            // SAFETY: as above.
            2 => unsafe { self.gather_as::<u16>(view, position, len, target.cast()) },
            // SAFETY: as above.
            4 => unsafe { self.gather_as::<u32>(view, position, len, target.cast()) },
            // SAFETY: as above; complex elements are two f32 and so may be aligned to four bytes only.
            _ => unsafe { self.gather_as::<[u32; 2]>(view, position, len, target.cast()) },
        }
    }

    /// # Safety
    /// As for [`Layout::gather`], for elements that are as large as `T` and no less aligned.
    unsafe fn gather_as<T: Copy>(&self, view: &View, position: usize, len: usize, target: *mut T) {
        let inner = if self.rank == 0 { 1 } else { self.dims[self.rank - 1] };
        let (rows, row_step) = match self.rank.checked_sub(2) {
            Some(axis) => (self.dims[axis], view.strides[axis]),
            None => (1, 0),
        };
        let mut done = 0;
        while done < len {
            let here = position + done;
            let (source, step) = self.locate(view, here);
            let mut source = source.cast::<T>();
            let (mut column, row) = (here % inner, here / inner % rows);
            // Finding a place takes divisions, for each dimension: the rows that follow are a step away.
            for _ in row..rows {
                let run = (inner - column).min(len - done);
                // SAFETY: positions below the output's number of elements lie inside the view's buffer, `done + run <= len`, and the target
                // is scratch memory.
                unsafe { copy_run(source, step, target.add(done), run) };
                done += run;
                if done == len {
                    break;
                }
                source = source.wrapping_offset(row_step - column as isize * step);
                column = 0;
            }
        }
    }

    /// Adds one more inner dimension, whose strides are still at `axis` of the views.
    fn push(&mut self, dim: usize, axis: usize) {
        if dim == 1 {
            return;
        }
        let outer = self.rank.wrapping_sub(1);
        let joins = self.rank > 0
            && self.views.iter().all(|view| view.strides[outer] == view.strides[axis].wrapping_mul(dim as isize));
        let place = if joins { outer } else { self.rank };
        for view in self.views.iter_mut() {
            view.strides[place] = view.strides[axis];
        }
        self.dims[place] = if joins { self.dims[outer] * dim } else { dim };
        self.rank = place + 1;
    }
}

/// Elements that lie `step` apart, one after the other. Runs of neighbours are what channels of a pixel are.
///
/// # Safety
/// All of them can be read, the target can take them, and it does not overlap them.
#[inline(always)]
unsafe fn copy_run<T: Copy>(source: *const T, step: isize, target: *mut T, len: usize) {
    if step == 1 {
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(source, target, len) };
    }
    for index in 0..len {
        // SAFETY: the caller's promise.
        unsafe { target.add(index).write(source.offset(index as isize * step).read()) };
    }
}
