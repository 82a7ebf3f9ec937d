//! Few queries: each row is read once, as vectors along its dimensions, and scored against every query while it is in the
//! first-level cache. For one query this runs at the speed of memory.

use super::lanes::{Kernel, LANES_MAX, Lanes, RowElement, exceeds, load_each, load_part};
use super::sink::{RowIds, Sink};

/// Sums that a step keeps in registers: eight rows with one query, four with two, two with four.
const SUMS: usize = 8;

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
        let mut values = vec![0.0; stride * count];
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
    /// Which of them to scan, `count` of them.
    pub(super) ids: RowIds<'a>,
    pub(super) count: usize,
    pub(super) queries: &'a PaddedQueries,
    pub(super) first_query: usize,
    /// Squared differences instead of products.
    pub(super) differences: bool,
    /// What each scanned row's and each query's closeness is multiplied by (cosine).
    pub(super) scales: Option<(&'a [f32], &'a [f32])>,
    pub(super) sink: &'a mut Sink,
}

impl<T: RowElement> Kernel for RowScan<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the caller's promise about instructions goes on.
        unsafe { if self.differences { self.scan::<L, true>() } else { self.scan::<L, false>() } }
    }
}

impl<T: RowElement> RowScan<'_, T> {
    /// # Safety
    /// The CPU has the instructions of `L`.
    #[inline(always)]
    unsafe fn scan<L: Lanes, const DIFFERENCES: bool>(mut self) {
        for first in (0..self.count).step_by(SUMS) {
            let rows = row_pointers(self.rows, self.dim, self.ids, first, self.count);
            let ahead = row_pointers(self.rows, self.dim, self.ids, first + SUMS, self.count);
            let mut query = self.first_query;
            // SAFETY: `row_pointers` gives whole rows, and queries below `count` are whole and padded.
            unsafe {
                while query < self.queries.count {
                    query += match self.queries.count - query {
                        1 => self.step::<L, 8, 1, DIFFERENCES>(first, query, &rows, &ahead),
                        2 | 3 => self.step::<L, 4, 2, DIFFERENCES>(first, query, &rows, &ahead),
                        _ => self.step::<L, 2, 4, DIFFERENCES>(first, query, &rows, &ahead),
                    };
                }
            }
        }
    }

    /// Scores eight rows against `Q` queries, `R` rows at a time, and gives back `Q`.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`, the rows hold `dim` elements, and the queries exist.
    #[inline(always)]
    unsafe fn step<L: Lanes, const R: usize, const Q: usize, const DIFFERENCES: bool>(
        &mut self,
        first: usize,
        query: usize,
        rows: &[*const T; SUMS],
        ahead: &[*const T; SUMS],
    ) -> usize {
        let stride = self.queries.stride;
        let from = self.queries.values[query * stride..][..Q * stride].as_ptr();
        for part in 0..SUMS / R {
            // SAFETY: the caller's promise; `from` holds Q padded queries, and `part` is one of the eight rows' parts of R.
            let mut sums = unsafe {
                let (rows, ahead) = (rows.as_ptr().add(part * R).cast(), ahead.as_ptr().add(part * R).cast());
                products::<L, T, R, Q, DIFFERENCES>(&*rows, &*ahead, from, stride, self.dim)
            };
            let valid = self.count.saturating_sub(first + part * R).min(R);
            self.scale::<R>(first + part * R, query, &mut sums);
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

    /// Multiplies by what the cosine needs.
    #[inline(always)]
    fn scale<const R: usize>(&self, first: usize, query: usize, sums: &mut [f32; SUMS]) {
        if let Some((row_scales, query_scales)) = self.scales {
            for (index, sum) in sums.iter_mut().enumerate() {
                let row = (first + index % R).min(self.count - 1);
                *sum = *sum * row_scales[row] * query_scales[query + index / R];
            }
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

/// Where the eight rows from `first` on begin. Behind the last of `count` rows that one is repeated.
#[inline(always)]
fn row_pointers<T>(rows: &[T], dim: usize, ids: RowIds<'_>, first: usize, count: usize) -> [*const T; SUMS] {
    let mut pointers = [std::ptr::null(); SUMS];
    for (index, pointer) in pointers.iter_mut().enumerate() {
        let row = ids.get((first + index).min(count - 1)) as usize;
        *pointer = rows[row * dim..][..dim].as_ptr();
    }
    pointers
}

/// The closeness of `R` rows and `Q` queries (see [`super::tile`]), `R` for the first query, then `R` for the next; `R * Q` is eight.
///
/// # Safety
/// The CPU has the instructions of `L`; the rows hold `dim` elements, and `Q` queries of `stride` numbers, `dim` rounded
/// up to whole vectors, are readable at `queries`.
#[inline(always)]
unsafe fn products<L: Lanes, T: RowElement, const R: usize, const Q: usize, const DIFFERENCES: bool>(
    rows: &[*const T; R],
    ahead: &[*const T; R],
    queries: *const f32,
    stride: usize,
    dim: usize,
) -> [f32; SUMS] {
    // SAFETY: offsets stay below `dim` in the rows and below the padded length in the queries.
    unsafe {
        let mut sums = [L::splat(0.0); SUMS];
        let mut k = 0;
        while k + L::WIDTH <= dim {
            let query = load_each::<L, Q>(queries.add(k), stride);
            for r in 0..R {
                L::prefetch(ahead[r].wrapping_add(k));
                accumulate::<L, R, Q, DIFFERENCES>(&mut sums, r, T::load::<L>(rows[r].add(k)), &query);
            }
            k += L::WIDTH;
        }
        if k < dim {
            let query = load_each::<L, Q>(queries.add(k), stride);
            for r in 0..R {
                let row = load_part::<L, T>(rows[r].add(k), dim - k);
                accumulate::<L, R, Q, DIFFERENCES>(&mut sums, r, row, &query);
            }
        }
        L::sum8(sums)
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
        // SAFETY: the caller's promise.
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

/// The sum of squares of each listed row.
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
        let count = self.out.len();
        for first in (0..count).step_by(SUMS) {
            let rows = row_pointers(self.rows, self.dim, self.ids, first, count);
            // SAFETY: the rows hold `dim` elements; the caller's promise about instructions goes on.
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
                let value = load_part::<L, T>(rows[r].add(k), dim - k);
                sums[r] = L::fma(value, value, sums[r]);
            }
        }
        L::sum8(sums)
    }
}
