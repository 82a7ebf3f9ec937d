//! Reusable memory for batches: fresh pages cost more than the copies into them.

use std::num::NonZero;
use std::thread;

use panoply_core::buffer::{HostBuffer, HostBufferMut};
use panoply_models::{Array, ElementType, rows};

use crate::error::Result;

/// Smaller batches take fresh memory, which allocators provide quickly.
const KEPT_BYTES_MIN: usize = 128 << 10;
/// Maximal bytes and number of the buffers that are kept.
const KEPT_BYTES_MAX: usize = 256 << 20;
const KEPT_MAX: usize = 16;
/// Minimal bytes per copying thread: less is copied faster than a thread starts.
const COPY_BYTES_MIN: usize = 2 << 20;
/// Maximal number of copying threads: they saturate the memory bandwidth.
const COPIERS_MAX: usize = 8;

/// The buffers of one instance.
#[derive(Default)]
pub(super) struct InstanceBuffers {
    /// Sorted by last use, the most recent last.
    kept: Vec<HostBuffer>,
}

impl InstanceBuffers {
    /// Concatenates arrays along an axis.
    pub(super) fn concat(&mut self, arrays: &[&Array], axis: usize) -> Result<Array> {
        let bytes: usize = arrays.iter().map(|array| array.bytes().len()).sum();
        if axis != 0 || bytes < KEPT_BYTES_MIN || arrays[0].kind() == ElementType::String {
            return Ok(rows::concat(arrays, axis)?);
        }
        let dims = rows::concatenated_dims(arrays, axis)?;
        let mut buffer = self.take(bytes)?;
        if let Some(target) = buffer.get_mut() {
            copy(target, arrays);
        }
        self.keep(buffer.clone());
        Ok(Array::from_buffer(arrays[0].kind(), &dims, buffer)?)
    }

    /// A buffer of this size without other owners.
    fn take(&mut self, bytes: usize) -> Result<HostBuffer> {
        let free = |buffer: &mut HostBuffer| buffer.bytes().len() == bytes && buffer.get_mut().is_some();
        match self.kept.iter_mut().position(free) {
            Some(place) => Ok(self.kept.remove(place)),
            None => Ok(HostBufferMut::zeroed(bytes)?.freeze()),
        }
    }

    /// Keeps a buffer, and drops the least recently used ones.
    fn keep(&mut self, buffer: HostBuffer) {
        self.kept.push(buffer);
        let held = |kept: &[HostBuffer]| kept.iter().map(|buffer| buffer.bytes().len()).sum::<usize>();
        while self.kept.len() > KEPT_MAX || held(&self.kept) > KEPT_BYTES_MAX {
            self.kept.remove(0);
        }
    }
}

/// Copies arrays one after the other, on several threads if they are large.
fn copy(target: &mut [u8], arrays: &[&Array]) {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let copiers = (cores / 2).min(target.len() / COPY_BYTES_MIN).min(arrays.len()).clamp(1, COPIERS_MAX);
    let run = |target: &mut [u8], arrays: &[&Array]| {
        let mut rest = target;
        for array in arrays {
            let (head, tail) = rest.split_at_mut(array.bytes().len());
            head.copy_from_slice(array.bytes());
            rest = tail;
        }
    };
    let size = |part: &[&Array]| part.iter().map(|array| array.bytes().len()).sum();
    let (own, others) = arrays.split_at(arrays.len().div_ceil(copiers));
    let refused = thread::scope(|scope| {
        let (first, mut rest) = target.split_at_mut(size(own));
        let mut refused = false;
        for part in others.chunks(own.len()) {
            let (head, tail) = rest.split_at_mut(size(part));
            rest = tail;
            refused |= thread::Builder::new().spawn_scoped(scope, move || run(head, part)).is_err();
        }
        run(first, own);
        refused
    });
    // The system could not start threads.
    if refused {
        run(target, arrays);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(count: usize, len: usize, first: f32) -> Array {
        let values: Vec<f32> = (0..count * len).map(|at| first + at as f32).collect();
        Array::from_slice(&values, [count, len]).unwrap()
    }

    #[test]
    fn batches_are_their_parts_one_after_the_other() {
        let mut room = InstanceBuffers::default();
        for (counts, len) in [(vec![1, 3, 2], 50_000), (vec![1; 37], 40_000), (vec![2], 70_000), (vec![1, 1], 3)] {
            let parts: Vec<Array> =
                counts.iter().enumerate().map(|(at, count)| numbered(*count, len, at as f32)).collect();
            let parts: Vec<&Array> = parts.iter().collect();
            for _ in 0..3 {
                let joined = room.concat(&parts, 0).unwrap();
                let expected = rows::concat(&parts, 0).unwrap();
                assert_eq!(joined.dims(), expected.dims());
                assert_eq!(joined.bytes(), expected.bytes());
            }
        }
        assert!(room.concat(&[&numbered(1, 50_000, 0.0), &numbered(1, 50_001, 0.0)], 0).is_err());
    }

    #[test]
    fn copies_on_threads_are_whole() {
        let parts: Vec<Array> = (0..9).map(|at| numbered(1, 300_000 + at, at as f32)).collect();
        let parts: Vec<&Array> = parts.iter().collect();
        let expected: Vec<u8> = parts.iter().flat_map(|part| part.bytes()).copied().collect();
        let mut target = vec![0; expected.len()];
        copy(&mut target, &parts);
        assert_eq!(target, expected);
    }

    #[test]
    fn memory_is_used_again_once_nobody_holds_it() {
        let mut room = InstanceBuffers::default();
        let (a, b) = (numbered(1, 100_000, 1.0), numbered(1, 100_000, 2.0));
        let first = room.concat(&[&a, &b], 0).unwrap();
        let second = room.concat(&[&b, &a], 0).unwrap();
        assert_eq!(first.as_slice::<f32>().unwrap()[0], 1.0);
        assert_ne!(first.bytes().as_ptr(), second.bytes().as_ptr());
        let place = first.bytes().as_ptr();
        drop(first);
        let third = room.concat(&[&b, &b], 0).unwrap();
        assert_eq!(third.bytes().as_ptr(), place);
        assert_eq!(second.as_slice::<f32>().unwrap()[0], 2.0);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut room = InstanceBuffers::default();
        for len in 0..40 {
            drop(room.concat(&[&numbered(2, 50_000 + len, 0.0)], 0).unwrap());
        }
        assert!(room.kept.len() <= KEPT_MAX);
        let large = HostBufferMut::zeroed(KEPT_BYTES_MAX).unwrap().freeze();
        let large = Array::from_buffer(ElementType::U8, &[1, KEPT_BYTES_MAX], large).unwrap();
        drop(room.concat(&[&large, &large], 0).unwrap());
        assert!(room.kept.iter().map(|buffer| buffer.bytes().len()).sum::<usize>() <= KEPT_BYTES_MAX);
    }
}
