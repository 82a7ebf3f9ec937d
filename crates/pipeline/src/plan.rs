//! The state of a builder: how each stage will be made when the run begins, and the first error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use panoply_core::clock::{Clock, SystemClock};

use super::control::{Control, Signals};
use super::error::PipelineError;
use super::machine::{Hooks, Machine};
use super::options::{RunChoices, Sort, StageOptions};
use super::report::Progress;
use super::stage::Stage;

/// The setting in which a stage is made when the run begins.
pub(crate) struct RunSetting {
    pub(crate) now: Instant,
    pub(crate) threads: usize,
    pub(crate) signals: Arc<Signals>,
}

type StageFactory = Box<dyn FnOnce(&RunSetting) -> Box<dyn Stage> + Send>;

pub(crate) struct RunPlan {
    pub(crate) signals: Arc<Signals>,
    pub(crate) choices: RunChoices,
    pub(crate) clock: Arc<dyn Clock>,
    makes: Vec<StageFactory>,
    names: Vec<String>,
    pub(crate) error: Option<PipelineError>,
    /// Nesting depth of forks at this point.
    pub(crate) branches: usize,
    pub(crate) taken: Arc<AtomicU64>,
    pub(crate) arrived: Arc<AtomicU64>,
    pub(crate) total: Option<u64>,
    pub(crate) hooks: Hooks,
}

impl RunPlan {
    pub(crate) fn new() -> RunPlan {
        RunPlan {
            signals: Arc::default(),
            choices: RunChoices::default(),
            clock: Arc::new(SystemClock),
            makes: Vec::new(),
            names: Vec::new(),
            error: None,
            branches: 0,
            taken: Arc::default(),
            arrived: Arc::default(),
            total: None,
            hooks: Hooks::default(),
        }
    }

    /// Registers a stage and returns its index in reports and traces. An error in its options is
    /// kept until the end.
    pub(crate) fn index(&mut self, options: &StageOptions, sort: Sort) -> usize {
        self.check(options, sort);
        self.names.push(options.name.clone());
        self.names.len() - 1
    }

    pub(crate) fn check(&mut self, options: &StageOptions, sort: Sort) {
        if let Err(error) = options.check(sort) {
            self.refuse(error);
        }
    }

    pub(crate) fn add(&mut self, make: impl FnOnce(&RunSetting) -> Box<dyn Stage> + Send + 'static) {
        self.makes.push(Box::new(make));
    }

    pub(crate) fn refuse(&mut self, error: PipelineError) {
        self.error.get_or_insert(error);
    }

    /// Refuses an option or stage that is not allowed in a branch of a fork.
    pub(crate) fn refuse_in_branch(&mut self, stage: &str, what: &'static str, got: &str) {
        if self.branches > 0 {
            let expected = "one item out for each item in, in order, between a fork and its join".to_owned();
            let (stage, got) = (stage.to_owned(), got.to_owned());
            self.refuse(PipelineError::BadOption { stage, what, expected, got });
        }
    }

    /// Refuses a number outside `1..=most`.
    pub(crate) fn expect_within(&mut self, stage: &str, what: &'static str, most: usize, got: usize) {
        if !(1..=most).contains(&got) {
            let (stage, expected, got) = (stage.to_owned(), format!("1 to {most}"), got.to_string());
            self.refuse(PipelineError::BadOption { stage, what, expected, got });
        }
    }

    /// How many threads an adaptive stage may have.
    pub(crate) fn threads(&self) -> usize {
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        self.choices.threads.unwrap_or_else(cpus)
    }

    pub(crate) fn machine(self) -> Result<Machine, PipelineError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.choices.check()?;
        let threads = self.threads();
        let setting = RunSetting { now: self.clock.now(), threads, signals: Arc::clone(&self.signals) };
        let control = Control::new(self.signals, self.clock, self.choices);
        let stages = self.makes.into_iter().map(|make| make(&setting)).collect();
        let (taken, arrived, total) = (self.taken, self.arrived, self.total);
        let progress =
            move || Progress { taken: taken.load(Ordering::Relaxed), arrived: arrived.load(Ordering::Relaxed), total };
        Ok(Machine::new(stages, self.names, control, Box::new(progress), self.hooks))
    }
}
