//! Borrowed matrices with a stride for rows and one for columns.

use std::marker::PhantomData;

/// A view of a matrix inside a slice: element `(i, j)` is at `i * row_stride + j * col_stride`. A
/// transpose swaps the strides; a stride of zero repeats a row or a column.
#[derive(Clone, Copy)]
pub struct MatRef<'a, T> {
    data: *const T,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
    life: PhantomData<&'a [T]>,
}

// SAFETY: a `MatRef` is a shared borrow of `T`s, so it moves between threads under the same
// conditions as `&[T]`.
unsafe impl<T: Sync> Send for MatRef<'_, T> {}
// SAFETY: see `Send`.
unsafe impl<T: Sync> Sync for MatRef<'_, T> {}

impl<'a, T> MatRef<'a, T> {
    /// The matrix of `rows` by `cols` that starts at `data[0]`; `None` if an element would be
    /// outside of `data`.
    pub fn new(data: &'a [T], rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Option<Self> {
        if rows > 0 && cols > 0 {
            let row_reach = (rows - 1).checked_mul(row_stride)?;
            let col_reach = (cols - 1).checked_mul(col_stride)?;
            if row_reach.checked_add(col_reach)? >= data.len() {
                return None;
            }
        }
        Some(MatRef { data: data.as_ptr(), rows, cols, row_stride, col_stride, life: PhantomData })
    }

    /// The matrix of `rows` by `cols` stored row after row; `None` if `data` is too short.
    pub fn row_major(data: &'a [T], rows: usize, cols: usize) -> Option<Self> {
        MatRef::new(data, rows, cols, cols, 1)
    }

    /// The same elements with rows and columns swapped.
    pub fn transposed(self) -> Self {
        MatRef { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }

    /// The columns `start..end`, which must be in bounds.
    pub(super) fn columns(self, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= self.cols, "columns outside the matrix");
        MatRef { data: self.data.wrapping_add(start * self.col_stride), cols: end - start, ..self }
    }

    /// The address of element `(0, 0)`, even if the matrix is empty.
    pub(super) fn start(&self) -> *const T {
        self.data
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Distance between rows, in elements.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Distance between columns, in elements.
    pub fn col_stride(&self) -> usize {
        self.col_stride
    }

    /// The columns `start..start + count` of row `row`; `None` if columns are not contiguous or out
    /// of bounds.
    #[inline(always)]
    pub(super) fn row_slice(&self, row: usize, start: usize, count: usize) -> Option<&'a [T]> {
        let inside = row < self.rows && start <= self.cols && count <= self.cols - start;
        if !inside || (self.col_stride != 1 && count > 1) {
            return None;
        }
        if count == 0 {
            return Some(&[]);
        }
        // SAFETY: every element (row, start..start + count) is inside the matrix, `new` checked
        // that the matrix is inside its slice, and the elements are adjacent (a column stride of
        // one, or a single element).
        Some(unsafe {
            std::slice::from_raw_parts(self.data.add(row * self.row_stride + start * self.col_stride), count)
        })
    }
}

impl<T: Copy> MatRef<'_, T> {
    /// Element `(row, col)`.
    ///
    /// # Panics
    /// If the element is outside of the matrix.
    #[inline(always)]
    pub fn get(&self, row: usize, col: usize) -> T {
        assert!(row < self.rows && col < self.cols, "element outside the matrix");
        // SAFETY: the element is inside the matrix and `new` checked that the matrix is inside its
        // slice.
        unsafe { *self.data.add(row * self.row_stride + col * self.col_stride) }
    }
}

/// A pointer that the tasks of one job share; each task writes elements that no other task
/// accesses.
#[derive(Clone, Copy)]
pub(super) struct SharedPtr<T>(*mut T);

// SAFETY: code that dereferences the pointer must ensure disjoint elements; the pointer itself may
// be sent to any thread.
unsafe impl<T: Send> Send for SharedPtr<T> {}
// SAFETY: see `Send`.
unsafe impl<T: Send> Sync for SharedPtr<T> {}

impl<T> SharedPtr<T> {
    pub(super) fn new(slice: &mut [T]) -> Self {
        SharedPtr(slice.as_mut_ptr())
    }

    /// Wraps a pointer.
    pub(super) fn from_raw(pointer: *mut T) -> Self {
        SharedPtr(pointer)
    }

    /// The address of element `index`. The caller must ensure that the element is inside the slice
    /// or one past its end.
    #[inline(always)]
    pub(super) fn at(self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }

    /// The same address as a pointer to another type.
    pub(super) fn cast<U>(self) -> SharedPtr<U> {
        SharedPtr(self.0.cast())
    }
}
