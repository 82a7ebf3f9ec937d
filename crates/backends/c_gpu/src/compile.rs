//! Compiling kernels ahead of time and in parallel.
//!
//! 1. A [`CompileQueue`] serves one kind of device. Engines of several devices of that kind share
//!    the queue, so each kernel is compiled once.
//! 2. A kernel requested ahead of time is compiled by one of a bounded set of threads, which end
//!    when the queue is empty.
//! 3. An engine waits only for the kernel that it needs. If no thread has begun to compile that
//!    kernel, the engine compiles it itself.
//! 4. Compiled kernels are cached on disk, if there is a cache, and in memory up to
//!    [`IMAGES_BYTES_MAX`].
//! 5. A kernel that failed to compile is tried again when it is next needed.
//!
//! The lock is taken when a kernel is launched for the first time, and not for ops whose kernels
//! are loaded.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use panoply_core::error::panic_message;
use panoply_kernels::c::{Kernel, KernelTarget};
use panoply_kernels::cache::Cache;

/// Maximum number of compiling threads, in addition to waiting engines.
pub const COMPILERS_MAX: usize = 16;
/// Maximum bytes of compiled kernels kept in memory; the oldest are dropped first.
pub const IMAGES_BYTES_MAX: usize = 256 << 20;
/// Interval of progress reports while no compilation finishes.
const PROGRESS_PAUSE: Duration = Duration::from_millis(100);

/// Compiles a kernel's complete text into a driver's loadable image. Called from any thread, also
/// concurrently.
pub trait Compiler: Send + Sync {
    /// The target of the generated texts.
    fn target(&self) -> KernelTarget;

    /// Everything besides the text that determines the result (architecture, versions, options):
    /// part of the cache's key.
    fn identity(&self) -> String;

    /// The compiled image, or the compiler's message.
    fn compile(&self, source: &str) -> Result<Vec<u8>, String>;
}

/// A compiled kernel.
pub(crate) type Image = Arc<[u8]>;

/// The kernels of one kind of device.
pub struct CompileQueue {
    shared: Arc<SharedCompiler>,
}

struct SharedCompiler {
    compiler: Arc<dyn Compiler>,
    /// A second compiler that must accept every kernel too: kernels that run emulated here must
    /// compile for a GPU.
    checker: Option<Arc<dyn Compiler>>,
    cache: Option<Cache>,
    threads_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    kernels: HashMap<Kernel, Progress>,
    /// Queue of kernels to compile. Some of them may have been started since.
    waiting: VecDeque<Kernel>,
    /// Compiled kernels, oldest first, and their total size.
    finished: VecDeque<Kernel>,
    image_bytes: usize,
    /// Number of kernels that are waiting or being compiled.
    unfinished: usize,
    threads: usize,
    /// Number of kernels that were in no cache.
    compiled: usize,
}

enum Progress {
    Waiting,
    Running,
    Done(Image),
    Failed(String),
}

impl CompileQueue {
    /// An empty queue for this compiler.
    pub fn new(compiler: Arc<dyn Compiler>, checker: Option<Arc<dyn Compiler>>, cache: Option<Cache>) -> CompileQueue {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads_max = (cores - 1).clamp(1, COMPILERS_MAX);
        let (state, changed) = (Mutex::default(), Condvar::new());
        CompileQueue { shared: Arc::new(SharedCompiler { compiler, checker, cache, threads_max, state, changed }) }
    }

    /// Requests that a kernel be compiled at some time.
    pub(crate) fn request(&self, kernel: &Kernel) {
        let mut state = self.shared.state();
        if state.kernels.contains_key(kernel) {
            return;
        }
        state.kernels.insert(kernel.clone(), Progress::Waiting);
        state.waiting.push_back(kernel.clone());
        state.unfinished += 1;
        if state.threads >= self.shared.threads_max {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("panoply-compile".to_owned());
        // If no thread can be started, the engine that needs the kernel compiles it.
        let work = move || {
            // The worker that asks may have a core of its own. A refusal leaves this thread there.
            let _ = panoply_placement::affinity::leave_core();
            shared.work();
        };
        state.threads += usize::from(thread.spawn(work).is_ok());
    }

    /// The compiled kernel. Waits for it, or compiles it on this thread. The error is the
    /// compiler's message.
    pub(crate) fn get(&self, kernel: &Kernel) -> Result<Image, String> {
        let mut state = self.shared.state();
        loop {
            match state.kernels.get(kernel) {
                Some(Progress::Done(image)) => return Ok(Arc::clone(image)),
                Some(Progress::Failed(_)) => match state.kernels.remove(kernel) {
                    Some(Progress::Failed(reason)) => return Err(reason),
                    _ => continue,
                },
                Some(Progress::Running) => state = self.shared.wait(state),
                Some(Progress::Waiting) | None => {
                    if state.kernels.insert(kernel.clone(), Progress::Running).is_none() {
                        state.unfinished += 1;
                    }
                    drop(state);
                    self.shared.compile(kernel);
                    state = self.shared.state();
                }
            }
        }
    }

    /// Compiles a kernel again and replaces its cached image, after a driver failed to load that
    /// image.
    pub(crate) fn renew(&self, kernel: &Kernel) -> Result<Image, String> {
        let fresh = catch_unwind(AssertUnwindSafe(|| self.shared.fresh(self.shared.compiler.as_ref(), kernel)));
        let image = fresh.unwrap_or_else(|panic| Err(panic_message(panic.as_ref())))?;
        let mut state = self.shared.state();
        state.compiled += 1;
        // Engines that still hold the old image will ask as well.
        let before = match state.kernels.get_mut(kernel) {
            Some(Progress::Done(kept)) => Some(std::mem::replace(kept, Arc::clone(&image))),
            _ => None,
        };
        if let Some(before) = before {
            state.image_bytes = state.image_bytes - before.len() + image.len();
        }
        Ok(image)
    }

    /// Waits until all requested kernels are compiled, and helps to compile them. Reports the
    /// number done and the total.
    pub(crate) fn finish(&self, progress: &mut dyn FnMut(usize, usize)) {
        let total = self.shared.state().unfinished;
        loop {
            let mut state = self.shared.state();
            let (left, next) = (state.unfinished, state.next());
            match next {
                Some(kernel) => {
                    drop(state);
                    self.shared.compile(&kernel);
                }
                None if left == 0 => return progress(total, total),
                None => drop(self.shared.changed.wait_timeout(state, PROGRESS_PAUSE)),
            }
            progress(total.saturating_sub(self.shared.state().unfinished), total);
        }
    }

    /// Kernels that failed to compile, with the compiler's message. A failure is removed when the
    /// kernel is next needed.
    pub fn failed(&self) -> Vec<(String, String)> {
        let state = self.shared.state();
        let failure = |(kernel, progress): (&Kernel, &Progress)| match progress {
            Progress::Failed(message) => Some((kernel.name(), message.clone())),
            _ => None,
        };
        state.kernels.iter().filter_map(failure).collect()
    }

    /// Number of kernels compiled, not counting those from the cache.
    pub fn compiled(&self) -> usize {
        self.shared.state().compiled
    }
}

impl Drop for CompileQueue {
    fn drop(&mut self) {
        // Each thread ends after its present kernel.
        self.shared.state().waiting.clear();
    }
}

impl State {
    /// Takes a kernel that no thread has begun to compile, and marks it as running.
    fn next(&mut self) -> Option<Kernel> {
        while let Some(kernel) = self.waiting.pop_front() {
            if let Some(progress @ Progress::Waiting) = self.kernels.get_mut(&kernel) {
                *progress = Progress::Running;
                return Some(kernel);
            }
        }
        None
    }

    fn keep(&mut self, kernel: &Kernel, image: Image) {
        self.image_bytes += image.len();
        self.finished.push_back(kernel.clone());
        self.kernels.insert(kernel.clone(), Progress::Done(image));
        while self.image_bytes > IMAGES_BYTES_MAX
            && self.finished.len() > 1
            && let Some(oldest) = self.finished.pop_front()
        {
            if let Some(Progress::Done(image)) = self.kernels.remove(&oldest) {
                self.image_bytes -= image.len();
            }
        }
    }
}

impl SharedCompiler {
    /// Every statement leaves the locked state consistent, so a poisoned lock can be used.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of a compiling thread. It ends when the queue is empty.
    fn work(&self) {
        loop {
            let mut state = self.state();
            let Some(kernel) = state.next() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            self.compile(&kernel);
        }
    }

    /// Compiles a kernel that is marked as running, and wakes the waiting threads.
    fn compile(&self, kernel: &Kernel) {
        let result = catch_unwind(AssertUnwindSafe(|| self.image(kernel)));
        let result = result.unwrap_or_else(|panic| Err(panic_message(panic.as_ref())));
        let mut state = self.state();
        state.unfinished -= 1;
        match result {
            Ok((image, is_new)) => {
                state.compiled += usize::from(is_new);
                state.keep(kernel, image);
            }
            Err(reason) => drop(state.kernels.insert(kernel.clone(), Progress::Failed(reason))),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The kernel from the cache, or newly compiled; and whether it was compiled.
    fn image(&self, kernel: &Kernel) -> Result<(Image, bool), String> {
        if let Some(checker) = &self.checker {
            self.image_by(checker.as_ref(), kernel)?;
        }
        self.image_by(self.compiler.as_ref(), kernel)
    }

    fn image_by(&self, compiler: &dyn Compiler, kernel: &Kernel) -> Result<(Image, bool), String> {
        let source = kernel.source(compiler.target());
        let kept = self.cache.as_ref().and_then(|cache| cache.read(&key(compiler, &source)));
        match kept {
            Some(image) => Ok((image.into(), false)),
            None => Ok((self.fresh(compiler, kernel)?, true)),
        }
    }

    /// Compiles the kernel and stores it in the cache.
    fn fresh(&self, compiler: &dyn Compiler, kernel: &Kernel) -> Result<Image, String> {
        let source = kernel.source(compiler.target());
        let image = compiler.compile(&source)?;
        if let Some(cache) = &self.cache {
            cache.write(&key(compiler, &source), &image);
        }
        Ok(image.into())
    }
}

/// The cache's key of a compiled text.
fn key(compiler: &dyn Compiler, source: &str) -> Vec<u8> {
    [source, &compiler.identity()].join("\0").into_bytes()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use panoply_kernels::c::Dialect;

    use super::*;

    /// A test compiler that takes some time, counts its calls, and rejects texts that contain
    /// «bad».
    #[derive(Default)]
    struct Slow {
        calls: AtomicUsize,
        at_once: AtomicUsize,
        at_once_max: AtomicUsize,
    }

    impl Compiler for Slow {
        fn target(&self) -> KernelTarget {
            KernelTarget { dialect: Dialect::Host, warp_lanes: 32 }
        }

        fn identity(&self) -> String {
            "slow".to_owned()
        }

        fn compile(&self, source: &str) -> Result<Vec<u8>, String> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let now = self.at_once.fetch_add(1, Ordering::AcqRel) + 1;
            self.at_once_max.fetch_max(now, Ordering::AcqRel);
            std::thread::sleep(Duration::from_millis(5));
            self.at_once.fetch_sub(1, Ordering::AcqRel);
            assert!(!source.contains("worse"), "a compiler that panics");
            if source.contains("bad") { Err("it is bad".to_owned()) } else { Ok(vec![1, 2, 3]) }
        }
    }

    fn kernel(text: &str) -> Kernel {
        Kernel::generated("test", text.into(), "test")
    }

    fn queue() -> (Arc<Slow>, CompileQueue) {
        let slow = Arc::new(Slow::default());
        (Arc::clone(&slow), CompileQueue::new(slow, None, None))
    }

    #[test]
    fn each_kernel_is_compiled_once_whoever_asks() {
        let (slow, queue) = queue();
        let kernels: Vec<Kernel> = (0..40).map(|number| kernel(&format!("text {number}"))).collect();
        kernels.iter().chain(&kernels).for_each(|kernel| queue.request(kernel));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    kernels.iter().rev().for_each(|kernel| assert_eq!(*queue.get(kernel).unwrap(), [1, 2, 3]));
                });
            }
        });
        assert_eq!((slow.calls.load(Ordering::Relaxed), queue.compiled()), (40, 40));
    }

    #[test]
    fn progress_ends_with_all_of_them() {
        let (slow, queue) = queue();
        (0..30).for_each(|number| queue.request(&kernel(&format!("text {number}"))));
        let mut told = Vec::new();
        queue.finish(&mut |done, total| told.push((done, total)));
        let (last, total) = *told.last().unwrap();
        assert!(last == total && told.is_sorted(), "{told:?}");
        assert_eq!(slow.calls.load(Ordering::Relaxed), 30);
        let cores = std::thread::available_parallelism().unwrap().get();
        assert!(slow.at_once_max.load(Ordering::Relaxed) <= COMPILERS_MAX.min(cores) + 1);
        // Nothing is left to compile, so this does not wait.
        queue.finish(&mut |done, total| assert_eq!((done, total), (0, 0)));
    }

    #[test]
    fn what_a_driver_does_not_load_is_compiled_again_and_replaced() {
        let folder = std::env::temp_dir().join(format!("panoply-renewed-{}", std::process::id()));
        let slow = Arc::new(Slow::default());
        let queue = || CompileQueue::new(Arc::clone(&slow) as _, None, Some(Cache::open_in(folder.clone()).unwrap()));
        let text = kernel("text");
        let at = key(slow.as_ref(), &text.source(slow.target()));
        Cache::open_in(folder.clone()).unwrap().write(&at, b"of another driver");
        let first = queue();
        assert_eq!((&*first.get(&text).unwrap(), first.compiled()), (&b"of another driver"[..], 0));
        assert_eq!((&*first.renew(&text).unwrap(), first.compiled()), (&[1, 2, 3][..], 1));
        assert_eq!(*first.get(&text).unwrap(), [1, 2, 3]);
        assert_eq!((&*queue().get(&text).unwrap(), slow.calls.load(Ordering::Relaxed)), (&[1, 2, 3][..], 1));
        assert!(first.renew(&kernel("bad")).is_err() && first.renew(&kernel("worse")).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_does_not_compile_is_tried_again() {
        let (slow, queue) = queue();
        for text in ["bad", "worse"] {
            let before = slow.calls.load(Ordering::Relaxed);
            queue.request(&kernel(text));
            queue.finish(&mut |_, _| {});
            let error = queue.get(&kernel(text)).unwrap_err();
            assert!(error.contains("it is bad") || error.contains("panics"), "{error}");
            assert!(queue.get(&kernel(text)).is_err());
            assert_eq!(slow.calls.load(Ordering::Relaxed), before + 2);
        }
        assert!(queue.get(&kernel("good")).is_ok());
    }
}
