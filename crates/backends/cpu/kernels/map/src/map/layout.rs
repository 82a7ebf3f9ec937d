//! The memory layout of the inputs, in the order in which the output is written.

use panoply_core::{RANK_MAX, Result, Shape, Tensor};

/// Minimum length of inner runs that are processed run by run; shorter ones are gathered into
/// blocks.
const RUN_ELEMENTS_MIN: usize = 256;

/// One input, broadcast to the output's shape.
#[derive(Clone, Copy)]
pub(super) struct View {
    base: *const u8,
    strides: [isize; RANK_MAX],
    size_bytes: usize,
    access: Access,
}

/// The memory access of a view's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Contiguous, in the output's order.
    Linear,
    /// The same element for all positions.
    Scalar,
    /// All other layouts.
    Strided,
}

/// The output's dimensions, with neighbouring dimensions joined if every input allows it, and the
/// views of the inputs.
pub(super) struct MapLayout<'a> {
    dims: [usize; RANK_MAX],
    rank: usize,
    views: &'a mut [View],
}

impl View {
    /// A placeholder for a view.
    pub const EMPTY: View =
        View { base: std::ptr::null(), strides: [0; RANK_MAX], size_bytes: 1, access: Access::Scalar };

    /// A view of a tensor on the host, broadcast to `shape`. Fails if the tensor is elsewhere or
    /// cannot be broadcast to the shape.
    pub fn new(tensor: &Tensor, shape: &Shape) -> Result<View> {
        let bytes = tensor.host_bytes()?;
        let size_bytes = tensor.dtype().size_bytes();
        let mut strides = [0; RANK_MAX];
        if tensor.shape() == shape {
            strides[..shape.rank()].copy_from_slice(tensor.strides().steps());
        } else {
            strides[..shape.rank()].copy_from_slice(tensor.broadcast_to(shape)?.strides().steps());
        }
        // The tensor's constructor proved that the offset and every element are inside the buffer.
        // An empty tensor's offset may be anywhere, and is never read.
        let base = bytes.as_ptr().wrapping_add(tensor.offset() * size_bytes);
        Ok(View { base, strides, size_bytes, access: Access::Strided })
    }

    /// A view of contiguous elements of this size from `base` on, in the order of a contiguous
    /// `shape`.
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

impl<'a> MapLayout<'a> {
    /// Joins dimensions and determines the access of each view.
    pub fn new(shape: &Shape, views: &'a mut [View]) -> MapLayout<'a> {
        let mut layout = MapLayout { dims: [1; RANK_MAX], rank: 0, views };
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

    /// The length of inner runs, if blocks must not cross their ends.
    pub fn run_elements(&self) -> Option<usize> {
        let inner = if self.rank == 0 { 1 } else { self.dims[self.rank - 1] };
        let strided = self.views.iter().any(|view| view.access == Access::Strided);
        (strided && inner >= RUN_ELEMENTS_MIN).then_some(inner)
    }

    /// The address of the view's element at a position of the output, and the step in elements to
    /// the next element of the same inner run.
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

    /// Copies the view's elements for `len` positions of the output, from `position` on,
    /// contiguously.
    ///
    /// # Safety
    /// The view's memory is alive, `position + len` is at most the output's number of elements, and
    /// `target` is valid for `len` elements.
    pub unsafe fn gather(&self, view: &View, position: usize, len: usize, target: *mut u8) {
        match view.size_bytes {
            // SAFETY: the caller's contract, and the elements have this size.
            1 => unsafe { self.gather_as::<u8>(view, position, len, target.cast()) },
            // SAFETY: as above.
            2 => unsafe { self.gather_as::<u16>(view, position, len, target.cast()) },
            // SAFETY: as above.
            4 => unsafe { self.gather_as::<u32>(view, position, len, target.cast()) },
            // SAFETY: as above; complex elements are two f32 and so may be aligned to four bytes
            // only.
            _ => unsafe { self.gather_as::<[u32; 2]>(view, position, len, target.cast()) },
        }
    }

    /// # Safety
    /// As for [`MapLayout::gather`], for elements that have the size of `T` and at least its
    /// alignment.
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
            // Locating a position takes divisions for each dimension; the rows that follow are a
            // constant step away.
            for _ in row..rows {
                let run = (inner - column).min(len - done);
                // SAFETY: positions below the output's number of elements are inside the view's
                // buffer, `done + run <= len`, and the target is scratch memory.
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

    /// Adds one more inner dimension. Its strides are still at `axis` of the views.
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

/// Copies elements that are `step` apart to contiguous memory. Contiguous runs occur, for example,
/// with the channels of a pixel.
///
/// # Safety
/// The elements are readable, the target is writable, and they do not overlap.
#[inline(always)]
unsafe fn copy_run<T: Copy>(source: *const T, step: isize, target: *mut T, len: usize) {
    if step == 1 {
        // SAFETY: the caller's contract.
        return unsafe { std::ptr::copy_nonoverlapping(source, target, len) };
    }
    for index in 0..len {
        // SAFETY: the caller's contract.
        unsafe { target.add(index).write(source.offset(index as isize * step).read()) };
    }
}
