//! Work split into pieces for the threads that the caller provides.

use std::sync::Mutex;

use panoply_core::Threads;

/// Splits `out` into pieces of `piece` elements, and calls `work` with the index and the elements
/// of each piece.
pub fn for_each_piece<T: Send>(
    threads: &dyn Threads,
    out: &mut [T],
    piece: usize,
    work: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    if out.is_empty() {
        return;
    }
    let piece = piece.max(1);
    if threads.count() < 2 || out.len() <= piece {
        out.chunks_mut(piece).enumerate().for_each(|(index, part)| work(index, part));
        return;
    }
    let parts: Vec<Mutex<&mut [T]>> = out.chunks_mut(piece).map(Mutex::new).collect();
    threads.run(parts.len(), &|index| {
        // Each piece is taken by one task only, so this lock never blocks.
        let mut part = parts[index].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        work(index, &mut part);
    });
}

/// Number of `items` that a thread takes at a time: each thread gets several turns, and a turn has
/// at least `least` items.
pub fn share(items: usize, threads: usize, least: usize) -> usize {
    if threads < 2 { items.max(1) } else { items.div_ceil(4 * threads).max(least).max(1) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Threads for tests.
    pub(crate) struct ScopedThreads(pub(crate) usize);

    impl Threads for ScopedThreads {
        fn count(&self) -> usize {
            self.0
        }

        fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
            std::thread::scope(|scope| (0..tasks).for_each(|index| drop(scope.spawn(move || task(index)))));
        }
    }

    #[test]
    fn every_piece_is_worked_on_once() {
        for (len, piece) in [(0, 3), (1, 3), (10, 3), (9, 3), (5, 0)] {
            let mut out = vec![0; len];
            for_each_piece(&ScopedThreads(3), &mut out, piece, &|index, part| {
                part.iter_mut().for_each(|value| *value += index + 1);
            });
            let expected: Vec<usize> = (0..len).map(|at| at / piece.max(1) + 1).collect();
            assert_eq!(out, expected);
        }
    }
}
