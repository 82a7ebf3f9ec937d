//! One opened card. Ops run one after the other. Each op keeps as many packets in flight as the
//! ring holds.
//!
//! After any error the card is lost: every waiting op fails with the error, the worker reopens the
//! card, and the runtime's fallback decides where the ops run. An op's result is returned only
//! after all its answers have arrived and the card has confirmed them, so no result of a lost card
//! is returned.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use panoply_core::{DeviceInfo, Engine, Error, FinishedOp, Health, Item, MemoryStats, Result, Value};

use crate::card::CardError;
use crate::driver::{CardAnswer, Driver};
use crate::ops::{self, CardWork, CorePass};

/// The op that runs on the card.
struct CardOp {
    item: Item,
    work: Box<dyn CardWork>,
    pass: Option<CorePass>,
    /// Index of the current pass.
    number: usize,
    /// Numbers of the pass's packets that were started and answered.
    started: usize,
    answered: usize,
    bytes_moved: u64,
    began: Instant,
}

/// The engine of one card.
pub(crate) struct FpgaEngine {
    info: DeviceInfo,
    driver: Driver,
    queue: VecDeque<Item>,
    running: Option<CardOp>,
    lost: Option<CardError>,
    /// Ops that were finished outside of `poll`.
    held: Vec<FinishedOp>,
}

/// The result of a step.
enum StepOutcome {
    /// The card has not answered yet.
    Waits,
    /// There is more to do.
    GoesOn,
    /// The op is done.
    Done(Box<Result<Value>>),
}

impl FpgaEngine {
    pub(crate) fn new(info: DeviceInfo, driver: Driver) -> FpgaEngine {
        FpgaEngine { info, driver, queue: VecDeque::new(), running: None, lost: None, held: Vec::new() }
    }

    /// Runs ops until one is finished, the time is up, or nothing is left to do.
    fn advance(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) {
        let began = Instant::now();
        loop {
            if let Some(error) = self.lost.clone() {
                return self.give_up(&error, finished);
            }
            if self.running.is_none() && !self.begin(finished) {
                return;
            }
            let left = if finished.is_empty() { wait_max.saturating_sub(began.elapsed()) } else { Duration::ZERO };
            match self.step(left) {
                Ok(StepOutcome::GoesOn) => {}
                Ok(StepOutcome::Waits) if left.is_zero() => return,
                Ok(StepOutcome::Waits) => {}
                Ok(StepOutcome::Done(result)) => self.end(*result, finished),
                Err(error) => self.lost = Some(error),
            }
        }
    }

    /// Takes the next valid op from the queue. Returns false if there is none.
    fn begin(&mut self, finished: &mut Vec<FinishedOp>) -> bool {
        while let Some(item) = self.queue.pop_front() {
            match ops::work(self.driver.identity(), &item.op) {
                Err(error) => finished.push(FinishedOp::alone(item, Err(error))),
                Ok(work) => {
                    let began = Instant::now();
                    let (pass, number, started, answered, bytes_moved) = (None, 0, 0, 0, 0);
                    self.running = Some(CardOp { item, work, pass, number, started, answered, bytes_moved, began });
                    return true;
                }
            }
        }
        false
    }

    /// Starts as many packets as fit, and takes one answer if it arrives within `wait_max`.
    fn step(&mut self, wait_max: Duration) -> Result<StepOutcome, CardError> {
        let Some(running) = &mut self.running else { return Ok(StepOutcome::Waits) };
        let Some(pass) = &running.pass else {
            return match running.work.pass(running.number) {
                Some(pass) => {
                    self.driver.set_up(pass.core, &pass.registers)?;
                    running.pass = Some(pass);
                    Ok(StepOutcome::GoesOn)
                }
                None => self.complete(),
            };
        };
        while running.started < pass.packets.len() && self.driver.has_room() {
            let packet = &pass.packets[running.started];
            self.driver.start(&packet.payload, packet.answer_bytes)?;
            running.bytes_moved += (packet.payload.len() + packet.answer_bytes) as u64;
            running.started += 1;
        }
        if running.answered == pass.packets.len() {
            running.pass = None;
            (running.number, running.started, running.answered) = (running.number + 1, 0, 0);
            return Ok(StepOutcome::GoesOn);
        }
        let Some(CardAnswer { payload, .. }) = self.driver.finish(wait_max)? else { return Ok(StepOutcome::Waits) };
        running.work.take(running.number, running.answered, &payload);
        running.answered += 1;
        Ok(StepOutcome::GoesOn)
    }

    /// All answers have arrived: confirms them and takes the op's value.
    fn complete(&mut self) -> Result<StepOutcome, CardError> {
        self.driver.confirm()?;
        let Some(running) = &mut self.running else { return Ok(StepOutcome::Waits) };
        let work = std::mem::replace(&mut running.work, Box::new(NoWork));
        Ok(StepOutcome::Done(Box::new(work.value())))
    }

    fn end(&mut self, result: Result<Value>, finished: &mut Vec<FinishedOp>) {
        if let Some(running) = self.running.take() {
            let (bytes_moved, device_time) = (running.bytes_moved, Some(running.began.elapsed()));
            finished.push(FinishedOp { bytes_moved, device_time, ..FinishedOp::alone(running.item, result) });
        }
    }

    /// Fails all ops with the loss of the card, the running op first.
    fn give_up(&mut self, error: &CardError, finished: &mut Vec<FinishedOp>) {
        let (device, reason) = (self.info.id, error.to_string());
        let running = self.running.take().map(|running| running.item);
        for item in running.into_iter().chain(self.queue.drain(..)) {
            let error = Error::DeviceLost { device, reason: reason.clone() };
            finished.push(FinishedOp::alone(item, Err(error)));
        }
    }
}

impl Engine for FpgaEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        self.queue.extend(batch.drain(..));
        // Starts the first packets immediately. `poll` returns ops that finish here.
        let mut held = std::mem::take(&mut self.held);
        self.advance(&mut held, Duration::ZERO);
        self.held = held;
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        finished.append(&mut self.held);
        self.advance(finished, wait_max);
        self.queue.len() + usize::from(self.running.is_some())
    }

    fn memory(&mut self) -> MemoryStats {
        MemoryStats::default()
    }

    fn health(&mut self) -> Health {
        let idle = self.running.is_none() && self.lost.is_none();
        if let Some(error) = idle.then(|| self.driver.check().err()).flatten() {
            self.lost = Some(error);
        }
        let lost = |error: &CardError| Error::DeviceLost { device: self.info.id, reason: error.to_string() };
        Health { fault: self.lost.as_ref().map(lost), ..Health::default() }
    }
}

/// Placeholder for work that was taken out.
struct NoWork;

impl CardWork for NoWork {
    fn pass(&mut self, _number: usize) -> Option<CorePass> {
        None
    }

    fn take(&mut self, _pass: usize, _packet: usize, _answer: &[u8]) {}

    fn value(self: Box<Self>) -> Result<Value> {
        Err(Error::invalid("the engine's work", "one that is not done", "one that is"))
    }
}
