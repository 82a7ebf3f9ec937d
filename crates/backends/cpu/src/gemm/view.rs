//! Borrowed matrices with a stride for rows and one for columns.

use std::marker::PhantomData;

/// A matrix inside a slice: element `(i, j)` is at `i * row_stride + j * col_stride`. A transpose swaps the strides; a
/// stride of zero repeats a row or a column.
#[derive(Clone, Copy)]
pub struct MatRef<'a, T> {
    data: *const T,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
    life: PhantomData<&'a [T]>,
}

// SAFETY: a `MatRef` is a shared borrow of `T`s, so it moves between threads under the same conditions as `&[T]`.
unsafe impl<T: Sync> Send for MatRef<'_, T> {}
// SAFETY: see `Send`.
unsafe impl<T: Sync> Sync for MatRef<'_, T> {}

impl<'a, T> MatRef<'a, T> {
    /// The matrix of `rows` by `cols` that starts at `data[0]`; `None` where an element would lie outside `data`.
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

    /// The matrix of `rows` by `cols` stored row after row; `None` where `data` is too short.
    pub fn row_major(data: &'a [T], rows: usize, cols: usize) -> Option<Self> {
        MatRef::new(data, rows, cols, cols, 1)
    }

    /// The same elements with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        MatRef { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }

    /// The columns `start..end`, which must be inside.
    pub(super) fn columns(self, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= self.cols, "columns outside the matrix");
        MatRef { data: self.data.wrapping_add(start * self.col_stride), cols: end - start, ..self }
    }

    /// Where element `(0, 0)` is, or would be.
    pub(super) fn start(&self) -> *const T {
        self.data
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns there are.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Elements from one column to the next.
    pub fn col_stride(&self) -> usize {
        self.col_stride
    }

    /// The columns `start..start + count` of row `row`, where columns lie side by side.
    #[inline(always)]
    pub(super) fn row_slice(&self, row: usize, start: usize, count: usize) -> Option<&'a [T]> {
        let inside = row < self.rows && start <= self.cols && count <= self.cols - start;
        if !inside || (self.col_stride != 1 && count > 1) {
            return None;
        }
        if count == 0 {
            return Some(&[]);
        }
        // SAFETY: every element (row, start..start + count) is inside the matrix, `new` checked that the matrix is
        // inside its slice, and the elements are adjacent (a column stride of one, or a single element).
        Some(unsafe {
            std::slice::from_raw_parts(self.data.add(row * self.row_stride + start * self.col_stride), count)
        })
    }
}

impl<T: Copy> MatRef<'_, T> {
    /// Element `(row, col)`.
    ///
    /// # Panics
    /// Where the element is outside the matrix.
    #[inline(always)]
    pub fn get(&self, row: usize, col: usize) -> T {
        assert!(row < self.rows && col < self.cols, "element outside the matrix");
        // SAFETY: the element is inside the matrix and `new` checked that the matrix is inside its slice.
        unsafe { *self.data.add(row * self.row_stride + col * self.col_stride) }
    }
}

/// A pointer that the tasks of one job share; each writes elements that no other task touches.
#[derive(Clone, Copy)]
pub(super) struct SharedPtr<T>(*mut T);

// SAFETY: whoever dereferences the pointer promises disjoint elements; the pointer alone may go to any thread.
unsafe impl<T: Send> Send for SharedPtr<T> {}
// SAFETY: see `Send`.
unsafe impl<T: Send> Sync for SharedPtr<T> {}

impl<T> SharedPtr<T> {
    pub(super) fn new(slice: &mut [T]) -> Self {
        SharedPtr(slice.as_mut_ptr())
    }

    /// The pointer itself, to be shared.
    pub(super) fn from_raw(pointer: *mut T) -> Self {
        SharedPtr(pointer)
    }

    /// The address of element `index`, which the caller knows to be inside the slice or one past its end.
    #[inline(always)]
    pub(super) fn at(self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }

    /// The same address as a pointer to another type.
    pub(super) fn cast<U>(self) -> SharedPtr<U> {
        SharedPtr(self.0.cast())
    }
}
