//! The two ends of a pipeline: its sources and its sinks.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_core::Stream;
use panoply_lockfree::ring::{RING_DEPTH_MAX, Ring};
use panoply_runtime::worker::BoxError;

use super::builder::Builder;
use super::channel::{Receiver, Sender};
use super::control::lock;
use super::error::PipelineError;
use super::file::{CHUNK_BYTES_MAX, Chunks, FileLines, FileSink, contents};
use super::options::{ErrorPolicy, Sort};
use super::plan::RunPlan;
use super::report::Report;
use super::running::{RunOutcome, Running};
use super::serial::{RingPair, Serial};
use super::sink::{ByClosure, SinkBody, Takes};
use super::source::{FromIterator, FromStream, ItemSource, SourceBody, SourceRings};

/// A pipeline that can be started. `R` is its result: a list for [`Builder::collect`], nothing for
/// most others.
#[must_use = "a pipeline does nothing until it is run"]
pub struct Pipeline<R = ()> {
    pub(crate) plan: RunPlan,
    pub(crate) output: Box<dyn FnMut() -> Option<R> + Send>,
}

impl Pipeline {
    /// Begins a pipeline: first the choices for the run as a whole, then its source.
    pub fn builder() -> Start {
        Start { plan: RunPlan::new() }
    }
}

impl<R> Pipeline<R> {
    /// Starts the pipeline's threads.
    pub fn start(self) -> Result<Running<R>, PipelineError> {
        Running::start(self.plan.machine()?, self.output)
    }

    /// Runs the pipeline to its end.
    pub fn run(self) -> Result<(R, Report), PipelineError> {
        let RunOutcome { result, report, .. } = self.start()?.wait();
        result.map(|output| (output, report))
    }
}

/// The beginning of a pipeline.
#[must_use = "a pipeline needs a source"]
pub struct Start {
    pub(crate) plan: RunPlan,
}

impl Start {
    /// Sets the number of threads that run the closures. The default is as many as the stages can
    /// use, limited by the number of CPUs.
    pub fn threads(mut self, threads: usize) -> Start {
        self.plan.choices.threads = Some(threads);
        self
    }

    /// Sets a deadline for the whole run. A run that exceeds it ends with an error that names the
    /// stage with the most items.
    pub fn deadline(mut self, time: Duration) -> Start {
        self.plan.choices.time_max = Some(time);
        self
    }

    /// Sets a deadline for each item, counted from when it leaves its source. A late item fails
    /// according to the policy of the stage that has it. Ops get the time that is left as their
    /// deadline.
    pub fn item_deadline(mut self, time: Duration) -> Start {
        self.plan.choices.item_time_max = Some(time);
        self
    }

    /// Records a trace of at most `spans_max` spans.
    pub fn trace(mut self, spans_max: usize) -> Start {
        self.plan.choices.trace_spans_max = spans_max;
        self
    }

    /// Keeps at most `letters_max` dead letters (default: 1024). One more ends the run.
    pub fn dead_letters(mut self, letters_max: usize) -> Start {
        self.plan.choices.dead_letters_max = letters_max;
        self
    }

    /// Takes the items of an iterator, which may block.
    pub fn source<I>(self, items: I) -> Builder<I::Item>
    where
        I: IntoIterator,
        I::IntoIter: Send + 'static,
        I::Item: Send + 'static,
    {
        self.try_source(items.into_iter().map(Ok::<_, BoxError>))
    }

    /// Takes the items of an iterator that may fail. A failure is the source's error and is handled
    /// according to its policy.
    pub fn try_source<T, E, I>(mut self, items: I) -> Builder<T>
    where
        T: Send + 'static,
        E: Into<BoxError>,
        I: IntoIterator<Item = Result<T, E>>,
        I::IntoIter: Send + 'static,
    {
        let items = items.into_iter().map(|item| item.map_err(Into::into));
        self.plan.total = match items.size_hint() {
            (least, Some(most)) if least == most => Some(most as u64),
            _ => None,
        };
        given(self.plan, "source", true, move |_| (FromIterator(items), None))
    }

    /// Takes the items of a stream. The pipeline's threads poll it; it needs no executor.
    pub fn stream<S>(self, stream: S) -> Builder<S::Item>
    where
        S: Stream + Send + 'static,
        S::Item: Send + 'static,
    {
        given(self.plan, "source", false, move |plan| {
            let (source, flag) = FromStream::new(stream, &plan.signals);
            (source, Some(flag))
        })
    }

    /// Takes the items that the program sends. At most `depth` items wait in the channel.
    pub fn channel<T: Send + 'static>(mut self, depth: usize) -> (Sender<T>, Builder<T>) {
        let ring = Arc::new(Ring::new(depth));
        let sender = Sender::new(&ring, &self.plan.signals, &self.plan.taken);
        let sent = Arc::clone(&ring);
        self.plan.hooks.drain = Some(Box::new(move || sent.end()));
        self.plan.expect_within("source", "depth", RING_DEPTH_MAX, depth);
        let builder = Builder::stage(self.plan, "source", move |plan, options| {
            plan.check(&options, Sort::RING);
            ring
        });
        (sender, builder)
    }

    /// Reads the lines of a text file, without their line ends. A line that is not valid UTF-8 is
    /// an error. A line of more than [`LINE_BYTES_MAX`] bytes is an error too, and ends the source.
    /// A pipe can be read as well; its thread blocks while no data arrives.
    pub fn lines(self, path: impl Into<PathBuf>) -> Builder<String> {
        self.try_source(FileLines::new(path.into()))
    }

    /// Reads the bytes of a file, `size` at a time, at most [`CHUNK_BYTES_MAX`]. A pipe can be read
    /// as well, as with [`Start::lines`].
    pub fn chunks(mut self, path: impl Into<PathBuf>, size: usize) -> Builder<Vec<u8>> {
        self.plan.expect_within("source", "size", CHUNK_BYTES_MAX, size);
        self.try_source(Chunks::new(path.into(), size.clamp(1, CHUNK_BYTES_MAX)))
    }

    /// Reads files, each with its whole contents. A path that is not a regular file (a folder, a
    /// pipe, a device) is an error.
    pub fn files<I>(self, paths: I) -> Builder<(PathBuf, Vec<u8>)>
    where
        I: IntoIterator<Item = PathBuf>,
        I::IntoIter: Send + 'static,
    {
        self.try_source(paths.into_iter().map(contents))
    }
}

/// Builds a source that is asked for items.
fn given<T, S>(
    plan: RunPlan,
    name: &str,
    heavy: bool,
    source: impl FnOnce(&RunPlan) -> (S, Option<Arc<super::source::Flag>>) + Send + 'static,
) -> Builder<T>
where
    T: Send + 'static,
    S: ItemSource<T>,
{
    Builder::stage(plan, name, move |plan, options| {
        let (index, output) = (plan.index(&options, Sort::STATE), Arc::new(Ring::new(options.ring)));
        let (source, flag) = source(plan);
        let (to, taken) = (Arc::clone(&output), Arc::clone(&plan.taken));
        plan.add(move |setting| {
            let glance = SourceRings { output: Arc::clone(&to), flag };
            let body = SourceBody::new(source, to, options.policy, taken);
            Box::new(Serial::new(index, &options, heavy, body, glance, setting.now))
        });
        output
    })
}

impl<T: Send + 'static> Builder<T> {
    /// Renames the stage that was added last.
    pub fn named(mut self, name: &str) -> Builder<T> {
        name.clone_into(&mut self.options.name);
        self
    }

    /// Passes every item to a closure, in order.
    pub fn for_each(self, name: &str, mut take: impl FnMut(T) + Send + 'static) -> Pipeline {
        let sink = ByClosure(move |item: &mut Option<T>| {
            if let Some(item) = item.take() {
                take(item);
            }
            Ok(())
        });
        self.end(name, ErrorPolicy::default(), sink, || Some(()))
    }

    /// Passes a reference to every item to a closure that may fail, in order. The policy says what
    /// happens to an item that fails.
    pub fn try_for_each<E, F>(self, name: &str, policy: ErrorPolicy, mut take: F) -> Pipeline
    where
        E: Into<BoxError>,
        F: FnMut(&T) -> Result<(), E> + Send + 'static,
    {
        let sink = ByClosure(move |item: &mut Option<T>| match item {
            Some(item) => take(item).map_err(Into::into),
            None => Ok(()),
        });
        self.end(name, policy, sink, || Some(()))
    }

    /// Collects all items into a list.
    pub fn collect(self) -> Pipeline<Vec<T>> {
        let items = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&items);
        let sink = ByClosure(move |item: &mut Option<T>| {
            lock(&list).extend(item.take());
            Ok(())
        });
        self.end("collect", ErrorPolicy::default(), sink, move || Some(std::mem::take(&mut *lock(&items))))
    }

    /// Lets the program take the items from a channel. At most as many items wait as the last
    /// stage's [`Builder::ring`] holds.
    pub fn into_receiver(self) -> (Pipeline, Receiver<T>) {
        let stage = self.options.name.clone();
        let (mut plan, ring) = self.close();
        let receiver = Receiver::new(Arc::clone(&ring), Arc::clone(&plan.signals), Arc::clone(&plan.arrived), stage);
        plan.hooks.close = Some(Box::new(move || ring.cut()));
        (Pipeline { plan, output: Box::new(|| Some(())) }, receiver)
    }

    /// Writes every item's bytes to a file. An existing file is replaced.
    pub fn write_bytes(self, path: impl Into<PathBuf>) -> Pipeline
    where
        T: AsRef<[u8]>,
    {
        self.end("write", ErrorPolicy::default(), FileSink::new(path.into(), b""), || Some(()))
    }

    /// Writes every item as a line of a file. An existing file is replaced.
    pub fn write_lines(self, path: impl Into<PathBuf>) -> Pipeline
    where
        T: AsRef<[u8]>,
    {
        self.end("write", ErrorPolicy::default(), FileSink::new(path.into(), b"\n"), || Some(()))
    }

    fn end<R, S>(
        self,
        name: &str,
        policy: ErrorPolicy,
        sink: S,
        output: impl FnMut() -> Option<R> + Send + 'static,
    ) -> Pipeline<R>
    where
        S: Takes<T>,
    {
        let (mut plan, input) = self.close();
        let options = super::options::StageOptions::named(name);
        let (index, arrived) = (plan.index(&options, Sort::STATE), Arc::clone(&plan.arrived));
        plan.add(move |setting| {
            let glance = RingPair { input: Arc::clone(&input), output: () };
            let body = SinkBody { input, sink: Some(sink), policy, arrived };
            Box::new(Serial::new(index, &options, true, body, glance, setting.now))
        });
        Pipeline { plan, output: Box::new(output) }
    }
}
