//! For few queries: each row is read once, as vectors along its dimensions, and scored against
//! every query while it is in the first-level cache. For one query, this runs at memory bandwidth.

use super::float::inverse_of_square;
use super::lanes::{Kernel, LANES_MAX, Lanes, RowElement, exceeds, load_each};
use super::sink::{RowIds, Sink};
use crate::scratch;

/// Sums that a step keeps in registers: eight rows with one query, four rows with two queries, or
/// two rows with four.
const SUMS: usize = 8;

/// Maximum bytes of prefetching: more would evict from the first-level cache data that is needed
/// earlier. For longer rows, their own next lines are prefetched instead of the next rows.
const AHEAD_BYTES_MAX: usize = 32 << 10;

/// Queries as `f32`, each padded with zeros to whole vectors.
pub(super) struct PaddedQueries {
    values: Vec<f32>,
    stride: usize,
    count: usize,
}

impl PaddedQueries {
    /// Widens `count` queries of `dim` elements.
    pub(super) fn new<T: RowElement>(queries: &[T], dim: usize, count: usize) -> PaddedQueries {
        let stride = dim.next_multiple_of(LANES_MAX);
        let mut values = scratch::zeroed(stride * count);
        for query in 0..count {
            let from = &queries[query * dim..][..dim];
            values[query * stride..].iter_mut().zip(from).for_each(|(to, from)| *to = from.widen());
        }
        PaddedQueries { values, stride, count }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    pub(super) fn stride(&self) -> usize {
        self.stride
    }
}

/// Scans rows with the queries from `first_query` on.
pub(super) struct RowScan<'a, T> {
    /// All rows, `dim` elements each.
    pub(super) rows: &'a [T],
    pub(super) dim: usize,
    /// The rows to scan, `count` of them.
    pub(super) ids: RowIds<'a>,
    pub(super) count: usize,
    pub(super) queries: &'a PaddedQueries,
    pub(super) first_query: usize,
    /// Whether to sum squared differences instead of products.
    pub(super) differences: bool,
    pub(super) scales: Scales<'a>,
    pub(super) sink: &'a mut Sink,
}

/// The factors of each scanned row's and each query's closeness: for the cosine, the inverses of
/// their lengths.
#[derive(Clone, Copy)]
pub(super) enum Scales<'a> {
    None,
    Ready {
        rows: &'a [f32],
        queries: &'a [f32],
    },
    /// The rows' lengths are computed while the rows are read.
    FromRows {
        queries: &'a [f32],
    },
}

impl<T: RowElement> Kernel for RowScan<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the caller guarantees the instructions.
        unsafe {
            match (self.differences, self.scales) {
                (true, _) => self.scan::<L, true, false>(),
                (false, Scales::FromRows { .. }) => self.scan::<L, false, true>(),
                (false, _) => self.scan::<L, false, false>(),
            }
        }
    }
}

impl<T: RowElement> RowScan<'_, T> {
    /// # Safety
    /// The CPU has the instructions of `L`.
    #[inline(always)]
    unsafe fn scan<L: Lanes, const DIFFERENCES: bool, const LENGTHS: bool>(mut self) {
        let checked = CheckedRows::new(self.rows, self.dim, self.ids, self.count);
        let far = SUMS * self.dim * size_of::<T>() > AHEAD_BYTES_MAX;
        for first in (0..self.count).step_by(SUMS) {
            let rows = checked.eight(first);
            let mut ahead = checked.eight(first + SUMS);
            if far {
                for (ahead, row) in ahead.iter_mut().zip(rows) {
                    *ahead = row.wrapping_byte_add(AHEAD_BYTES_MAX / 2 / SUMS);
                }
            }
            let mut query = self.first_query;
            // SAFETY: `checked` returns whole rows, and queries below `count` are whole and padded.
            unsafe {
                while query < self.queries.count {
                    query += match self.queries.count - query {
                        1 => self.step::<L, 8, 1, DIFFERENCES, LENGTHS>(first, query, &rows, &ahead),
                        2 | 3 => self.step::<L, 4, 2, DIFFERENCES, LENGTHS>(first, query, &rows, &ahead),
                        _ => self.step::<L, 2, 4, DIFFERENCES, LENGTHS>(first, query, &rows, &ahead),
                    };
                }
            }
        }
    }

    /// Scores eight rows against `Q` queries, `R` rows at a time, and returns `Q`.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`, the rows hold `dim` elements, and the queries exist.
    #[inline(always)]
    unsafe fn step<L: Lanes, const R: usize, const Q: usize, const DIFFERENCES: bool, const LENGTHS: bool>(
        &mut self,
        first: usize,
        query: usize,
        rows: &[*const T; SUMS],
        ahead: &[*const T; SUMS],
    ) -> usize {
        let stride = self.queries.stride;
        let from = self.queries.values[query * stride..][..Q * stride].as_ptr();
        for part in 0..SUMS / R {
            // SAFETY: the caller's contract; `from` holds Q padded queries, and `part` is one of
            // the eight rows' parts of R.
            let (mut sums, squares) = unsafe {
                let (rows, ahead) = (rows.as_ptr().add(part * R).cast(), ahead.as_ptr().add(part * R).cast());
                products::<L, T, R, Q, DIFFERENCES, LENGTHS>(&*rows, &*ahead, from, stride, self.dim)
            };
            let valid = self.count.saturating_sub(first + part * R).min(R);
            self.scale::<R>(first + part * R, query, &mut sums, &squares);
            for (q, sums) in sums.chunks_exact(R).enumerate() {
                let bound = self.sink.bounds()[query + q];
                let mut any = false;
                for sum in sums {
                    any |= exceeds(*sum, bound);
                }
                if any {
                    self.offer(first + part * R, query + q, &sums[..valid]);
                }
            }
        }
        Q
    }

    /// Applies the cosine's factors. `squares` are the rows' sums of squares, if they were
    /// computed.
    #[inline(always)]
    fn scale<const R: usize>(&self, first: usize, query: usize, sums: &mut [f32; SUMS], squares: &[f32; SUMS]) {
        let queries = match self.scales {
            Scales::None => return,
            Scales::Ready { queries, .. } | Scales::FromRows { queries } => queries,
        };
        let mut scales = [0.0; R];
        for (r, scale) in scales.iter_mut().enumerate() {
            let row = (first + r).min(self.count - 1);
            *scale = match self.scales {
                Scales::Ready { rows, .. } => rows[row],
                _ => inverse_of_square(squares[r], self.rows, self.dim, self.ids.get(row)),
            };
        }
        for (index, sum) in sums.iter_mut().enumerate() {
            *sum = *sum * scales[index % R] * queries[query + index / R];
        }
    }

    #[cold]
    #[inline(never)]
    fn offer(&mut self, first: usize, query: usize, closeness: &[f32]) {
        for (row, value) in (first..).zip(closeness) {
            if exceeds(*value, self.sink.bounds()[query]) {
                self.sink.offer(query, self.ids.get(row), *value);
            }
        }
    }
}

/// Rows whose ids were checked once, so that pointers to them need no further check.
#[derive(Clone, Copy)]
struct CheckedRows<'a, T> {
    rows: &'a [T],
    dim: usize,
    ids: RowIds<'a>,
    count: usize,
}

impl<'a, T> CheckedRows<'a, T> {
    #[inline(always)]
    fn new(rows: &'a [T], dim: usize, ids: RowIds<'a>, count: usize) -> Self {
        let end = match ids {
            RowIds::From(first) => first as usize + count,
            RowIds::List(ids) => ids[..count].iter().max().map_or(0, |id| *id as usize + 1),
        };
        assert!(end * dim <= rows.len());
        CheckedRows { rows, dim, ids, count }
    }

    /// Pointers to the eight rows from `first` on. After the last row, the last row is repeated.
    /// `count` must be above zero.
    #[inline(always)]
    fn eight(&self, first: usize) -> [*const T; SUMS] {
        let mut pointers = [self.rows.as_ptr(); SUMS];
        for (index, pointer) in pointers.iter_mut().enumerate() {
            let index = (first + index).min(self.count - 1);
            let row = match self.ids {
                RowIds::From(id) => id as usize + index,
                // SAFETY: `new` sliced the list to `count`, and `index` is below that.
                RowIds::List(ids) => unsafe { *ids.get_unchecked(index) as usize },
            };
            // SAFETY: `new` checked that every listed row is in `rows`.
            *pointer = unsafe { self.rows.as_ptr().add(row * self.dim) };
        }
        pointers
    }
}

/// The closeness of `R` rows and `Q` queries (see [`super::tile`]): `R` for the first query, then
/// `R` for the next; `R * Q` is eight. With `LENGTHS`, also the sum of squares of each row.
///
/// # Safety
/// The CPU has the instructions of `L`. The rows hold `dim` elements. At `queries`, `Q` queries of
/// `stride` numbers are readable; `stride` is `dim` rounded up to whole vectors.
#[inline(always)]
unsafe fn products<
    L: Lanes,
    T: RowElement,
    const R: usize,
    const Q: usize,
    const DIFFERENCES: bool,
    const LENGTHS: bool,
>(
    rows: &[*const T; R],
    ahead: &[*const T; R],
    queries: *const f32,
    stride: usize,
    dim: usize,
) -> ([f32; SUMS], [f32; SUMS]) {
    // SAFETY: offsets stay below `dim` in the rows and below the padded length in the queries.
    unsafe {
        let mut sums = [L::splat(0.0); SUMS];
        let mut squares = [L::splat(0.0); SUMS];
        let mut k = 0;
        while k + L::WIDTH <= dim {
            let query = load_each::<L, Q>(queries.add(k), stride);
            for (r, (row, ahead)) in rows.iter().zip(ahead).enumerate() {
                L::prefetch(ahead.wrapping_add(k));
                let row = T::load::<L>(row.add(k));
                accumulate::<L, R, Q, DIFFERENCES>(&mut sums, r, row, &query);
                if LENGTHS {
                    squares[r] = L::fma(row, row, squares[r]);
                }
            }
            k += L::WIDTH;
        }
        if k < dim {
            let query = load_each::<L, Q>(queries.add(k), stride);
            for (r, row) in rows.iter().enumerate() {
                let row = T::load_part::<L>(row.add(k), dim - k);
                accumulate::<L, R, Q, DIFFERENCES>(&mut sums, r, row, &query);
                if LENGTHS {
                    squares[r] = L::fma(row, row, squares[r]);
                }
            }
        }
        (L::sum8(sums), if LENGTHS { L::sum8(squares) } else { [0.0; SUMS] })
    }
}

/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
unsafe fn accumulate<L: Lanes, const R: usize, const Q: usize, const DIFFERENCES: bool>(
    sums: &mut [L::V; SUMS],
    r: usize,
    row: L::V,
    query: &[L::V; Q],
) {
    for q in 0..Q {
        // SAFETY: the caller's contract.
        unsafe {
            sums[q * R + r] = if DIFFERENCES {
                let difference = L::sub(row, query[q]);
                L::nfma(difference, difference, sums[q * R + r])
            } else {
                L::fma(row, query[q], sums[q * R + r])
            };
        }
    }
}

/// Computes the sum of squares of each listed row.
pub(super) struct SquaredNorms<'a, T> {
    pub(super) rows: &'a [T],
    pub(super) dim: usize,
    pub(super) ids: RowIds<'a>,
    pub(super) out: &'a mut [f32],
}

impl<T: RowElement> Kernel for SquaredNorms<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let checked = CheckedRows::new(self.rows, self.dim, self.ids, self.out.len());
        for first in (0..self.out.len()).step_by(SUMS) {
            let rows = checked.eight(first);
            // SAFETY: the rows hold `dim` elements; the caller guarantees the instructions.
            let squares = unsafe { squares::<L, T>(rows, self.dim) };
            self.out[first..].iter_mut().zip(squares).for_each(|(out, square)| *out = square);
        }
    }
}

/// # Safety
/// The CPU has the instructions of `L`; the rows hold `dim` elements.
#[inline(always)]
unsafe fn squares<L: Lanes, T: RowElement>(rows: [*const T; SUMS], dim: usize) -> [f32; SUMS] {
    // SAFETY: offsets stay below `dim`.
    unsafe {
        let mut sums = [L::splat(0.0); SUMS];
        let mut k = 0;
        while k + L::WIDTH <= dim {
            for r in 0..SUMS {
                let value = T::load::<L>(rows[r].add(k));
                sums[r] = L::fma(value, value, sums[r]);
            }
            k += L::WIDTH;
        }
        if k < dim {
            for r in 0..SUMS {
                let value = T::load_part::<L>(rows[r].add(k), dim - k);
                sums[r] = L::fma(value, value, sums[r]);
            }
        }
        L::sum8(sums)
    }
}
