//! Layouts with as few axes as possible. Axes are listed from the last to the first, as in the
//! kernels' `layout`.

use crate::layout::LAYOUT_AXES_MAX;

/// Sizes of some axes, and for each of `N` views its strides along them, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axes<const N: usize> {
    pub(crate) rank: usize,
    pub(crate) sizes: [usize; LAYOUT_AXES_MAX],
    pub(crate) strides: [[i64; LAYOUT_AXES_MAX]; N],
}

impl<const N: usize> Axes<N> {
    /// No axes: a single element.
    pub(crate) fn new() -> Axes<N> {
        Axes { rank: 0, sizes: [1; LAYOUT_AXES_MAX], strides: [[0; LAYOUT_AXES_MAX]; N] }
    }

    /// Axes of these sizes, last axis first; all strides are 0.
    pub(crate) fn of_sizes(sizes: impl DoubleEndedIterator<Item = usize>) -> Axes<N> {
        let mut axes = Axes::new();
        for (place, size) in axes.sizes.iter_mut().zip(sizes.rev()) {
            *place = size;
            axes.rank += 1;
        }
        axes
    }

    /// Adds an axis outside the others.
    pub(crate) fn push(&mut self, size: usize, strides: [i64; N]) {
        self.sizes[self.rank] = size;
        for (view, stride) in self.strides.iter_mut().zip(strides) {
            view[self.rank] = stride;
        }
        self.rank += 1;
    }

    /// Total number of elements.
    pub(crate) fn elements(&self) -> usize {
        self.sizes[..self.rank].iter().product()
    }

    /// Drops axes of one element, and joins adjacent axes with matching strides in all of the first
    /// `used` views. Kernels number positions along an axis with 32 bits, so no joined axis becomes
    /// longer than that. Exception: a single axis may be longer if every view is contiguous or a
    /// single element, because no kernel then computes positions along it.
    pub(crate) fn collapse(&mut self, used: usize) {
        const LONGEST: usize = u32::MAX as usize;
        if self.elements() <= LONGEST {
            return self.join(used, usize::MAX);
        }
        let mut whole = *self;
        whole.join(used, usize::MAX);
        let walks = whole.strides[..used].iter().any(|strides| !matches!(strides[0], 0 | 1));
        if whole.rank > 1 || walks {
            return self.join(used, LONGEST);
        }
        *self = whole;
    }

    /// Joins axes up to the length `longest`.
    fn join(&mut self, used: usize, longest: usize) {
        let mut kept = 0;
        for axis in 0..self.rank {
            if self.sizes[axis] == 1 {
                continue;
            }
            let joins = kept > 0
                && self.sizes[kept - 1].saturating_mul(self.sizes[axis]) <= longest
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
        // [2, 3, 1, 5]: contiguous in the first view; in the second, one row broadcast to all.
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

    #[test]
    fn no_axis_is_longer_than_kernels_count() {
        let side = 1 << 20;
        let mut flat = Axes::<2>::of_sizes([side, side].into_iter());
        flat.strides = [[0; LAYOUT_AXES_MAX]; 2];
        flat.strides[0][..2].copy_from_slice(&[1, side as i64]);
        flat.collapse(2);
        assert_eq!((flat.rank, flat.sizes[0]), (1, side * side), "contiguous, and a single element");
        let mut apart = Axes::<1>::of_sizes([side, side].into_iter());
        apart.strides[0][..2].copy_from_slice(&[2, 2 * side as i64]);
        apart.collapse(1);
        assert_eq!((apart.rank, &apart.sizes[..2]), (2, &[side, side][..]), "every second element");
        let mut three = Axes::<1>::of_sizes([side, side, 1 << 10].into_iter());
        three.strides[0][..3].copy_from_slice(&[2, 2 << 10, 2 << 30]);
        three.collapse(1);
        assert_eq!((three.rank, &three.sizes[..2]), (2, &[1 << 30, side][..]), "as long as they fit");
    }
}
