//! The k largest or smallest elements of each lane, in order.
//!
//! A lane is scanned in blocks. A block in which no element beats the k-th best so far costs only
//! one vector comparison for each vector of elements. Elements that beat it go to a `SmallestKeys`.
//! The order is that of `order`: ties go to the smaller index, -0 equals +0, and NaN is larger than
//! +∞.

pub mod keep;
pub mod order;

use panoply_core::dtype::{bf16, f16};
use panoply_cpu_machine::compile_once;

use crate::scratch;
use crate::simd::Simd;
use crate::team::Team;
use keep::SmallestKeys;
pub use order::RankedElement;
use order::{CandidateKey, Rank};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Elements that are compared with the bound together before any is processed alone.
const BLOCK: usize = 64;
/// Minimum elements of a task.
const TASK_ELEMENTS_MIN: usize = 1 << 15;
/// Neighbouring lanes that are gathered together if a lane is not contiguous: a cache line of the
/// widest element.
const GATHER_LANES: usize = 8;

/// The layout of the lanes of a contiguous tensor: `outer` × `len` × `inner`, with a lane along the
/// middle dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// The product of the dimensions before the axis.
    pub outer: usize,
    /// The length of the axis, at most `u32::MAX`.
    pub len: usize,
    /// The product of the dimensions after the axis.
    pub inner: usize,
}

/// Writes the `k` best elements of each lane, best first, and their indices in the lane. The
/// outputs have the layout of the input, with `k` in place of `len`.
///
/// # Panics
/// If `k` is above the lane's length, or a slice does not have the length that the shape requires.
pub fn top_k<T: RankedElement>(
    team: &Team,
    simd: Simd,
    input: &[T],
    lanes: Lanes,
    k: usize,
    largest: bool,
    values: &mut [T],
    indices: &mut [u32],
) {
    T::choose(team, simd, input, lanes, k, largest, values, indices);
}

compile_once! {
    /// The selection of an element type.
    pub trait TopKKernels: RankedElement {
        fn choose(team: &Team, simd: Simd, input: &[Self], lanes: Lanes, k: usize, largest: bool, values: &mut [Self], indices: &mut [u32],) = choose;
    } for f32, f16, bf16, f64, i32, u32, i8, u8
}

fn choose<T: RankedElement>(
    team: &Team,
    simd: Simd,
    input: &[T],
    lanes: Lanes,
    k: usize,
    largest: bool,
    values: &mut [T],
    indices: &mut [u32],
) {
    let Lanes { outer, len, inner } = lanes;
    assert_eq!(input.len(), outer * len * inner, "input");
    assert!(k <= len && u32::try_from(len).is_ok(), "k");
    assert_eq!(values.len(), outer * k * inner, "values");
    assert_eq!(indices.len(), values.len(), "indices");
    if values.is_empty() {
        return;
    }
    let job = TopKTask { simd: simd.min(Simd::detect()), input, lanes, k, largest };
    if inner > 1 {
        let mut found = scratch::zeroed(indices.len());
        job.gathered_lanes(team, &mut found);
        job.write_gathered(&found, values, indices);
        return;
    }
    if outer < team.threads() && len >= TASK_ELEMENTS_MIN * 2 {
        let lanes = input.chunks_exact(len).zip(indices.chunks_exact_mut(k));
        lanes.for_each(|(lane, found)| job.split_lane(team, lane, found));
    } else {
        job.whole_lanes(team, indices);
    }
    for ((lane, values), indices) in
        input.chunks_exact(len).zip(values.chunks_exact_mut(k)).zip(indices.chunks_exact(k))
    {
        values.iter_mut().zip(indices).for_each(|(value, index)| *value = lane[*index as usize]);
    }
}

struct TopKTask<'a, T> {
    simd: Simd,
    input: &'a [T],
    lanes: Lanes,
    k: usize,
    largest: bool,
}

type KeyOf<T> = <<T as RankedElement>::Rank as Rank>::Key;

impl<T: RankedElement> TopKTask<'_, T> {
    /// Processes contiguous lanes, several lanes to a task.
    fn whole_lanes(&self, team: &Team, found: &mut [u32]) {
        let len = self.lanes.len;
        let task_lanes = (TASK_ELEMENTS_MIN / len).max(1);
        let jobs: Vec<_> = found.chunks_mut(task_lanes * self.k).map(Mutex::new).collect();
        team.run(jobs.len(), &|task| {
            let mut found = jobs[task].lock().unwrap_or_else(PoisonError::into_inner);
            let mut keeper = SmallestKeys::new(self.k, len);
            let lanes = self.input[task * task_lanes * len..].chunks_exact(len);
            for (lane, found) in lanes.zip(found.chunks_exact_mut(self.k)) {
                keeper.clear();
                scan(self.simd, lane, 0, self.largest, &mut keeper);
                write_indices::<T>(&mut keeper, found);
            }
        });
    }

    /// Processes one long lane with all threads: each thread keeps the best elements of the parts
    /// that it has claimed.
    fn split_lane(&self, team: &Team, lane: &[T], found: &mut [u32]) {
        let next = AtomicUsize::new(0);
        let keepers: Vec<OnceLock<SmallestKeys<KeyOf<T>>>> = (0..team.threads()).map(|_| OnceLock::new()).collect();
        team.run(keepers.len(), &|worker| {
            let mut keeper = SmallestKeys::new(self.k, lane.len());
            loop {
                let first = next.fetch_add(1, Ordering::Relaxed).saturating_mul(TASK_ELEMENTS_MIN);
                if first >= lane.len() {
                    break;
                }
                let stretch = &lane[first..lane.len().min(first + TASK_ELEMENTS_MIN)];
                scan(self.simd, stretch, first, self.largest, &mut keeper);
            }
            // Each worker has its own cell, so the cell is always empty.
            let _ = keepers[worker].set(keeper);
        });
        let mut keepers = keepers.into_iter().filter_map(OnceLock::into_inner);
        if let Some(mut first) = keepers.next() {
            keepers.for_each(|other| first.absorb(&other));
            write_indices::<T>(&mut first, found);
        }
    }

    /// Processes lanes that are not contiguous: a few neighbouring lanes are copied together, then
    /// scanned. `found` is stored lane by lane.
    fn gathered_lanes(&self, team: &Team, found: &mut [u32]) {
        let Lanes { outer, len, inner } = self.lanes;
        let groups = inner.div_ceil(GATHER_LANES);
        let places = found.chunks_mut(inner * self.k).flat_map(|found| found.chunks_mut(GATHER_LANES * self.k));
        let mut jobs = scratch::reserved(outer * groups);
        jobs.extend(places.map(Mutex::new));
        let task = |task: usize| {
            let mut found = jobs[task].lock().unwrap_or_else(PoisonError::into_inner);
            let plane = &self.input[task / groups * len * inner..][..len * inner];
            let first = task % groups * GATHER_LANES;
            let count = GATHER_LANES.min(inner - first);
            let mut gathered = scratch::filled(plane[0], count * len);
            for (index, line) in plane.chunks_exact(inner).enumerate() {
                for (lane, value) in line[first..first + count].iter().enumerate() {
                    gathered[lane * len + index] = *value;
                }
            }
            let mut keeper = SmallestKeys::new(self.k, len);
            for (lane, found) in gathered.chunks_exact(len).zip(found.chunks_exact_mut(self.k)) {
                keeper.clear();
                scan(self.simd, lane, 0, self.largest, &mut keeper);
                write_indices::<T>(&mut keeper, found);
            }
        };
        if self.input.len() < TASK_ELEMENTS_MIN {
            (0..jobs.len()).for_each(task);
        } else {
            team.run(jobs.len(), &task);
        }
    }

    /// Writes `found`, which is stored lane by lane, in the layout of the output.
    fn write_gathered(&self, found: &[u32], values: &mut [T], indices: &mut [u32]) {
        let Lanes { len, inner, .. } = self.lanes;
        let lines = values.chunks_exact_mut(inner).zip(indices.chunks_exact_mut(inner)).enumerate();
        for (line, (values, indices)) in lines {
            let (outer, rank) = (line / self.k, line % self.k);
            for lane in 0..inner {
                let index = found[(outer * inner + lane) * self.k + rank];
                indices[lane] = index;
                values[lane] = self.input[(outer * len + index as usize) * inner + lane];
            }
        }
    }
}

fn write_indices<T: RankedElement>(keeper: &mut SmallestKeys<KeyOf<T>>, found: &mut [u32]) {
    found.iter_mut().zip(keeper.finish()).for_each(|(index, key)| *index = T::Rank::index_of_key(*key));
}

/// Offers the elements of `lane` to `keeper`; the first element has the index `first`. Calls must
/// be in ascending order of `first`.
fn scan<T: RankedElement>(simd: Simd, lane: &[T], first: usize, largest: bool, keeper: &mut SmallestKeys<KeyOf<T>>) {
    match simd {
        // SAFETY: `top_k` has lowered the level to one that the CPU has.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { scan_avx512(lane, first, largest, keeper) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { scan_avx2(lane, first, largest, keeper) },
        _ => scan_either(lane, first, largest, keeper),
    }
}

/// # Safety
/// The CPU has AVX-512 F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
unsafe fn scan_avx512<T: RankedElement>(lane: &[T], first: usize, largest: bool, keeper: &mut SmallestKeys<KeyOf<T>>) {
    scan_either(lane, first, largest, keeper);
}

/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn scan_avx2<T: RankedElement>(lane: &[T], first: usize, largest: bool, keeper: &mut SmallestKeys<KeyOf<T>>) {
    scan_either(lane, first, largest, keeper);
}

#[inline(always)]
fn scan_either<T: RankedElement>(lane: &[T], first: usize, largest: bool, keeper: &mut SmallestKeys<KeyOf<T>>) {
    if largest { scan_for::<T, true>(lane, first, keeper) } else { scan_for::<T, false>(lane, first, keeper) }
}

#[inline(always)]
fn scan_for<T: RankedElement, const LARGEST: bool>(lane: &[T], first: usize, keeper: &mut SmallestKeys<KeyOf<T>>) {
    for (block, elements) in lane.chunks(BLOCK).enumerate() {
        let full = keeper.bound() < KeyOf::<T>::WORST;
        let bound = T::Rank::of_key(keeper.bound());
        // An element with the bound's own rank comes later than the element that set the bound, so
        // it loses the tie.
        let mut beating = 0_u32;
        for element in elements {
            beating |= u32::from(rank::<T, LARGEST>(*element) < bound);
        }
        if !full || beating != 0 {
            offer::<T, LARGEST>(elements, first + block * BLOCK, keeper);
        }
    }
}

#[inline(always)]
fn rank<T: RankedElement, const LARGEST: bool>(element: T) -> T::Rank {
    if LARGEST { element.rank().reversed() } else { element.rank() }
}

#[inline(never)]
fn offer<T: RankedElement, const LARGEST: bool>(elements: &[T], first: usize, keeper: &mut SmallestKeys<KeyOf<T>>) {
    for (index, element) in elements.iter().enumerate() {
        keeper.offer(rank::<T, LARGEST>(*element).key((first + index) as u32));
    }
}
