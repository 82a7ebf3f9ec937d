//! The options of a run and of each of its stages.

use std::time::Duration;

use panoply_lockfree::ring::RING_DEPTH_MAX;
use panoply_runtime::RunOptions;

use super::error::PipelineError;

/// The most items that may be in flight in one stage at a time.
pub const LANES_MAX: usize = 64;
/// The default capacity of a ring.
pub const RING_DEPTH_DEFAULT: usize = 16;
/// The default number of ops of one stage in flight at once: one is uploaded, one is computed, one
/// is downloaded, and one waits.
pub const IN_FLIGHT_DEFAULT: usize = 4;

/// The most items of a batch or a window.
pub const BATCH_MAX: usize = 1 << 20;
/// The most spans of a trace.
pub const TRACE_SPANS_MAX: usize = 1 << 24;
/// The most threads of a run.
pub const THREADS_MAX: usize = 4 * LANES_MAX;

/// How many threads may work in one stage at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// At most this many.
    Fixed(usize),
    /// All of the pipeline's threads that have nothing to do further down. Threads go where items
    /// wait.
    Adaptive,
}

/// The policy for items that fail in a stage.
///
/// ```
/// # use panoply_pipeline::ErrorPolicy;
/// # use std::time::Duration;
/// let patient = ErrorPolicy::skip().retry(3, Duration::from_millis(10));
/// assert_eq!(patient.retries, 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorPolicy {
    /// How often the item is tried again first.
    pub retries: u32,
    /// The wait before each retry.
    pub retry_wait: Duration,
    /// The fate of the item after the retries.
    pub finally: Finally,
}

/// The fate of an item that failed and is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finally {
    /// The run ends with the error.
    Stop,
    /// The item is left out and counted.
    Skip,
    /// The item is kept in the run's dead letters, with its error.
    DeadLetter,
}

impl ErrorPolicy {
    /// Ends the run at the first error.
    pub const fn stop() -> ErrorPolicy {
        ErrorPolicy { retries: 0, retry_wait: Duration::ZERO, finally: Finally::Stop }
    }

    /// Leaves out items that fail, and counts them.
    pub const fn skip() -> ErrorPolicy {
        ErrorPolicy { finally: Finally::Skip, ..ErrorPolicy::stop() }
    }

    /// Keeps items that fail in the dead letters, with their errors.
    pub const fn dead_letters() -> ErrorPolicy {
        ErrorPolicy { finally: Finally::DeadLetter, ..ErrorPolicy::stop() }
    }

    /// The same policy after `times` further attempts, with this wait before each.
    pub const fn retry(self, times: u32, wait: Duration) -> ErrorPolicy {
        ErrorPolicy { retries: times, retry_wait: wait, ..self }
    }
}

impl Default for ErrorPolicy {
    fn default() -> ErrorPolicy {
        ErrorPolicy::stop()
    }
}

/// The options that a sort of stage has besides its ring's depth. An option that was set for a
/// stage without this option is refused, because it would have no effect.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sort {
    pub(crate) threads: bool,
    pub(crate) in_flight: bool,
    pub(crate) order: bool,
    pub(crate) policy: bool,
    pub(crate) time: bool,
    pub(crate) wishes: bool,
    /// Whether its ring exists already.
    pub(crate) ring_is_made: bool,
}

impl Sort {
    const NONE: Sort = Sort {
        threads: false,
        in_flight: false,
        order: false,
        policy: false,
        time: false,
        wishes: false,
        ring_is_made: false,
    };
    /// A closure that several threads may call.
    pub(crate) const CLOSURE: Sort = Sort { threads: true, order: true, ..Sort::STATE };
    /// A program's code that runs on one thread at a time.
    pub(crate) const STATE: Sort = Sort { policy: true, time: true, ..Sort::NONE };
    pub(crate) const OPS: Sort = Sort { in_flight: true, order: true, policy: true, wishes: true, ..Sort::NONE };
    pub(crate) const REQUESTS: Sort = Sort { wishes: false, time: true, ..Sort::OPS };
    pub(crate) const JOIN: Sort = Sort::NONE;
    /// The start of a branch, and a channel's end in a pipeline.
    pub(crate) const RING: Sort = Sort { ring_is_made: true, ..Sort::NONE };
}

/// The options of one stage.
#[derive(Clone, Debug)]
pub(crate) struct StageOptions {
    pub(crate) name: String,
    pub(crate) parallelism: Parallelism,
    pub(crate) in_flight: usize,
    pub(crate) ring: usize,
    pub(crate) policy: ErrorPolicy,
    pub(crate) ordered: bool,
    pub(crate) time_max: Option<Duration>,
    pub(crate) wishes: Option<RunOptions>,
}

impl StageOptions {
    pub(crate) fn named(name: &str) -> StageOptions {
        StageOptions {
            name: name.to_owned(),
            parallelism: Parallelism::Fixed(1),
            in_flight: IN_FLIGHT_DEFAULT,
            ring: RING_DEPTH_DEFAULT,
            policy: ErrorPolicy::default(),
            ordered: true,
            time_max: None,
            wishes: None,
        }
    }

    /// How many threads may be in the stage, in a run with `threads` threads.
    pub(crate) fn lanes(&self, threads: usize) -> usize {
        let lanes = match self.parallelism {
            Parallelism::Fixed(count) => count,
            Parallelism::Adaptive => threads,
        };
        lanes.clamp(1, LANES_MAX)
    }

    /// Checks that the options are valid for a stage of this sort.
    pub(crate) fn check(&self, sort: Sort) -> Result<(), PipelineError> {
        let bad = |what, expected: String, got: String| {
            Err(PipelineError::BadOption { stage: self.name.clone(), what, expected, got })
        };
        let chosen = [
            ("parallelism", sort.threads || self.parallelism == Parallelism::Fixed(1)),
            ("in_flight", sort.in_flight || self.in_flight == IN_FLIGHT_DEFAULT),
            ("order", sort.order || self.ordered),
            ("policy", sort.policy || self.policy == ErrorPolicy::default()),
            ("time_max", sort.time || self.time_max.is_none()),
            ("wishes", sort.wishes || self.wishes.is_none()),
            ("ring", !sort.ring_is_made || self.ring == RING_DEPTH_DEFAULT),
        ];
        if let Some((what, _)) = chosen.iter().find(|(_, fits)| !fits) {
            return bad(what, "no such choice for this sort of stage".to_owned(), "one".to_owned());
        }
        let lanes = format!("1 to {LANES_MAX}");
        match self.parallelism {
            Parallelism::Fixed(count) if count == 0 || count > LANES_MAX => {
                return bad("parallelism", lanes, count.to_string());
            }
            _ => {}
        }
        if self.in_flight == 0 || self.in_flight > LANES_MAX {
            return bad("in_flight", lanes, self.in_flight.to_string());
        }
        if self.ring == 0 || self.ring > RING_DEPTH_MAX {
            return bad("ring", format!("1 to {RING_DEPTH_MAX}"), self.ring.to_string());
        }
        if self.time_max.is_some_and(|time| time.is_zero()) {
            return bad("time_max", "more than 0 s".to_owned(), "0 s".to_owned());
        }
        match self.wishes.as_ref().map(RunOptions::check) {
            Some(Err(error)) => bad("wishes", "no contradiction".to_owned(), error.to_string()),
            _ => Ok(()),
        }
    }
}

/// The options of the run as a whole.
#[derive(Clone, Debug)]
pub(crate) struct RunChoices {
    pub(crate) threads: Option<usize>,
    pub(crate) time_max: Option<Duration>,
    pub(crate) item_time_max: Option<Duration>,
    pub(crate) trace_spans_max: usize,
    pub(crate) dead_letters_max: usize,
}

impl Default for RunChoices {
    fn default() -> RunChoices {
        RunChoices { threads: None, time_max: None, item_time_max: None, trace_spans_max: 0, dead_letters_max: 1024 }
    }
}

impl RunChoices {
    /// Checks that the options are valid.
    pub(crate) fn check(&self) -> Result<(), PipelineError> {
        let bad = |what, expected: String, got: String| {
            Err(PipelineError::BadOption { stage: "the pipeline".to_owned(), what, expected, got })
        };
        if let Some(threads) = self.threads.filter(|threads| !(1..=THREADS_MAX).contains(threads)) {
            return bad("threads", format!("1 to {THREADS_MAX}"), threads.to_string());
        }
        if self.time_max.is_some_and(|time| time.is_zero()) {
            return bad("deadline", "more than 0 s".to_owned(), "0 s".to_owned());
        }
        if self.item_time_max.is_some_and(|time| time.is_zero()) {
            return bad("item_deadline", "more than 0 s".to_owned(), "0 s".to_owned());
        }
        if self.trace_spans_max > TRACE_SPANS_MAX {
            return bad("trace", format!("at most {TRACE_SPANS_MAX} spans"), self.trace_spans_max.to_string());
        }
        Ok(())
    }
}
