//! Layouts with as few axes as possible. Axes are listed from the last to the first, as in the kernels' `layout`.

use crate::context::LAYOUT_AXES_MAX;

/// Sizes of some axes, and for each of `N` views its strides along them, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axes<const N: usize> {
    pub(crate) rank: usize,
    pub(crate) sizes: [usize; LAYOUT_AXES_MAX],
    pub(crate) strides: [[i64; LAYOUT_AXES_MAX]; N],
}

impl<const N: usize> Axes<N> {
    /// No axes: one element.
    pub(crate) fn new() -> Axes<N> {
        Axes { rank: 0, sizes: [1; LAYOUT_AXES_MAX], strides: [[0; LAYOUT_AXES_MAX]; N] }
    }

    /// Axes of these sizes, the last one first; the strides are still to be set.
    pub(crate) fn of_sizes(sizes: impl DoubleEndedIterator<Item = usize>) -> Axes<N> {
        let mut axes = Axes::new();
        for (place, size) in axes.sizes.iter_mut().zip(sizes.rev()) {
            *place = size;
            axes.rank += 1;
        }
        axes
    }

    /// One more axis, outside the others.
    pub(crate) fn push(&mut self, size: usize, strides: [i64; N]) {
        self.sizes[self.rank] = size;
        for (view, stride) in self.strides.iter_mut().zip(strides) {
            view[self.rank] = stride;
        }
        self.rank += 1;
    }

    /// Elements in all.
    pub(crate) fn elements(&self) -> usize {
        self.sizes[..self.rank].iter().product()
    }

    /// Drops axes of one element, and joins neighbours that every one of the first `used` views walks through evenly.
    pub(crate) fn collapse(&mut self, used: usize) {
        let mut kept = 0;
        for axis in 0..self.rank {
            if self.sizes[axis] == 1 {
                continue;
            }
            let joins = kept > 0
                && self.strides[..used]
                    .iter()
                    .all(|strides| strides[axis] == strides[kept - 1] * self.sizes[kept - 1] as i64);
            if joins {
                self.sizes[kept - 1] *= self.sizes[axis];
                continue;
            }
            self.sizes[kept] = self.sizes[axis];
            for strides in &mut self.strides[..used] {
                strides[kept] = strides[axis];
            }
            kept += 1;
        }
        self.rank = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_neighbours_are_joined() {
        // [2, 3, 1, 5], contiguous in the first view, and a row for all in the second.
        let mut axes = Axes::<2>::of_sizes([2, 3, 1, 5].into_iter());
        axes.strides[0][..4].copy_from_slice(&[1, 5, 5, 15]);
        axes.strides[1][..4].copy_from_slice(&[1, 0, 0, 0]);
        let mut alone = axes;
        alone.collapse(1);
        assert_eq!((alone.rank, alone.sizes[0], alone.strides[0][0]), (1, 30, 1));
        axes.collapse(2);
        assert_eq!((axes.rank, &axes.sizes[..2]), (2, &[5, 6][..]));
        assert_eq!((&axes.strides[0][..2], &axes.strides[1][..2]), (&[1, 5][..], &[1, 0][..]));
        let mut ones = Axes::<1>::of_sizes([1, 1].into_iter());
        ones.collapse(1);
        assert_eq!((ones.rank, ones.elements()), (0, 1));
    }
}
