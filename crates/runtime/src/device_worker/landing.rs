//! Handles the ops that an engine has finished: they teach the router, go on to their next stop, or
//! are answered.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use panoply_core::op::compute::{ComputeOp, Transfer};
use panoply_core::{
    Buffer, DeviceId, Error, FinishedOp, Location, Op, Outcome, PartRef, ReadBack, Report, Result, Tensor, Value,
};
use panoply_lockfree::foreign::{contain, discard, tell};
use panoply_lockfree::wakes::Caller;

use super::Times;
use super::flights::{Flight, Flights, LandedOp};
use super::visit::Generation;
use crate::health::Mark;
use crate::lane::task::{Forecast, stands_for, transfer_to_host};
use crate::lane::{Lane, OpRequest, OpStage, OpTicket};
use crate::learned::model::{Label, Sample};
use crate::time::nanoseconds;

/// The largest fraction of an op's time that is attributed to a transfer that the engine did not
/// report.
const UNTOLD_TRANSFER_SHARE_MAX: f32 = 0.9;

/// If an engine does not report how long a copy took, the total time of a copy that ran alone is
/// used, from this number of bytes on: the fixed costs are then a small part of that time.
const UNTOLD_COPY_BYTES_MIN: u64 = 1 << 20;

/// From this number of ops that land together, callers wake each other.
const CALLED_TOGETHER_MIN: usize = 6;

/// The ops that one poll of the engine returned.
pub(super) struct Landing<'a> {
    lane: &'a Arc<Lane>,
    now: Instant,
    /// The ratio of the time that these ops kept the device busy, all together, to the expected
    /// time.
    stretch: f32,
    /// Wakes the callers, if there are many.
    caller: Option<Caller>,
    /// The loss of the device, if an op reported it.
    pub(super) lost: Option<Error>,
}

/// The measurements that one op adds to the models.
struct OpMeasurement {
    forecast: Forecast,
    sample: Sample,
    ran_ns: f32,
    transfer: Option<TransferMeasurement>,
}

/// Bytes that were copied between the host and the device, and how long that took.
struct TransferMeasurement {
    to_host: bool,
    bytes: f32,
    time_ns: f32,
}

/// An op with its answer.
type AnsweredOp = (OpTicket, Result<Value>, Report);

/// An op that goes on at the same engine.
pub(super) type ContinuedOp = (OpTicket, Op, Flight);

impl Landing<'_> {
    /// Starts to handle ops that landed together. They share the time since the ops before them
    /// landed, in proportion to their expected times.
    pub(super) fn new<'a>(
        lane: &'a Arc<Lane>,
        flights: &Flights,
        finished: &[FinishedOp],
        last_landed: Option<Instant>,
        now: Instant,
        caller: Option<Caller>,
    ) -> Landing<'a> {
        let mut expected_ns = 0.0;
        let mut since = now;
        for (submitted, service_ns) in finished.iter().filter_map(|done| flights.expectation(done.token)) {
            expected_ns += service_ns.max(1.0);
            since = since.min(submitted);
        }
        let since = last_landed.map_or(since, |landed| since.max(landed));
        let taken_ns = nanoseconds(now.saturating_duration_since(since)) as f32;
        Landing { lane, now, stretch: taken_ns / expected_ns.max(1.0), caller, lost: None }
    }

    /// The value that wakes the callers of `count` ops. `None` if they are few.
    pub(super) fn caller(count: usize, generation: &Generation) -> Option<Caller> {
        (count >= CALLED_TOGETHER_MIN).then(|| Caller::new(count, &generation.board))
    }

    /// Answers one op, or returns the next leg that the engine has to run for it.
    pub(super) fn receive(&mut self, landed: LandedOp, mut done: FinishedOp) -> Option<ContinuedOp> {
        if let Err(error @ Error::DeviceLost { .. }) = &done.result {
            self.lost = Some(error.clone());
        }
        let (mut ticket, flight) = (landed.ticket?, landed.flight);
        if flight.leg == OpStage::Run {
            self.check(ticket.question_mut()?, &mut done);
        }
        if flight.leg == OpStage::Run
            && let Ok(value) = &done.result
        {
            self.lane.objects.note(value);
            attach(self.lane, value);
            let task = ticket.question_mut()?;
            let lesson = self.lesson(&task.forecast, &flight, &done);
            // The plain path: every input was here, and the output may stay here.
            let plain = task.history.is_none() && !task.wishes.to_host;
            // A lesson that adds little to the model is learned after the answer, while the caller
            // already goes on: learning loads cache lines that other threads read. An extension op
            // is always answered before it is asked for its name.
            let later = plain && (lesson.forecast.settled || matches!(done.op, Op::Extension(_)));
            if !later {
                self.teach(&lesson, &done.op);
            }
            if plain {
                let report = self.report(task, flight.times, &done);
                self.finish(ticket, done.result, report);
                if later {
                    self.teach(&lesson, &done.op);
                }
                return None;
            }
        }
        match done.result {
            Err(error) if flight.leg == OpStage::Fetch => {
                let task = ticket.question_mut()?;
                self.lane.settle(task, Mark::Failure, self.now);
                match task.begin_parts_again(self.lane.info.id, &error) {
                    true => self.lane.hand_over(ticket, true),
                    false => self.lane.fail_finally(ticket, error),
                }
                None
            }
            Err(error) => {
                self.lane.fail(ticket, error);
                None
            }
            Ok(_) => self.go_on(ticket, flight, done),
        }
    }

    /// Turns a wrong answer into an error: no caller may receive an output that its op cannot have.
    fn check(&self, task: &OpRequest, done: &mut FinishedOp) {
        let Ok(value) = &done.result else { return };
        // The task's own copy, if it has one, is more trustworthy than the op that the engine hands
        // back.
        let op = task.op.as_ref().unwrap_or(&done.op);
        if let Err(error) = op.check_answer(value, self.lane.info.id) {
            discard(std::mem::replace(&mut done.result, Err(error)));
        }
    }

    /// The next stop of an op that makes several.
    fn go_on(&mut self, mut ticket: OpTicket, flight: Flight, done: FinishedOp) -> Option<ContinuedOp> {
        let device = self.lane.info.id;
        let task = ticket.question_mut()?;
        let next = match flight.leg {
            OpStage::Fetch => {
                self.note_transfer(task, &flight, &done);
                // The op's description of its parts may be foreign code, and a panic there affects
                // this op alone.
                let arrived = contain(|| arrive(task, device, &done).then(|| task.next_item(self.lane.id, device)));
                match arrived {
                    Err(panic) => {
                        return self.end(ticket, Error::invalid("op", "a description without a panic", panic));
                    }
                    Ok(None) => return self.astray(ticket, "an input on the host"),
                    Ok(Some(Some(next))) => Some(next),
                    Ok(Some(None)) => {
                        self.lane.settle(task, Mark::Success, self.now);
                        self.lane.hand_over(ticket, false);
                        return None;
                    }
                }
            }
            OpStage::Run => {
                let report = self.report(task, flight.times, &done);
                task.history().output = done.result.ok().map(|value| (value, Box::new(report)));
                next_delivery(task)
            }
            OpStage::Deliver => {
                self.note_transfer(task, &flight, &done);
                let before = outputs_away(task);
                if let Ok(Value::Tensor(delivered)) = done.result {
                    put_output(task, delivered);
                }
                if outputs_away(task) >= before {
                    return self.astray(ticket, "an output on the host");
                }
                next_delivery(task)
            }
        };
        match next {
            Some((op, leg)) => {
                let times = Times { submitted: self.now, ..flight.times };
                Some((
                    ticket,
                    op,
                    Flight { times, leg, submitted: true, alone: false, session: false, service_ns: 0.0 },
                ))
            }
            None => {
                self.finish_journey(ticket);
                None
            }
        }
    }

    /// Ends an op whose part did not arrive although the engine said so. Otherwise the part would
    /// be fetched again for ever.
    fn astray(&self, ticket: OpTicket, expected: &'static str) -> Option<ContinuedOp> {
        let reason = format!("its transfer brought something else than {expected}");
        self.end(ticket, Error::DeviceFault { device: self.lane.info.id, reason })
    }

    /// Ends an op on its way with an error.
    fn end(&self, mut ticket: OpTicket, error: Error) -> Option<ContinuedOp> {
        if let Some(task) = ticket.question_mut() {
            self.lane.settle(task, Mark::Failure, self.now);
        }
        self.lane.fail_finally(ticket, error);
        None
    }

    /// Answers an op that made several stops, with a report of all of them.
    fn finish_journey(&mut self, mut ticket: OpTicket) {
        let Some(task) = ticket.question_mut() else { return };
        let accepted = task.accepted;
        let history = task.history();
        let Some((value, report)) = history.output.take() else {
            self.astray(ticket, "an output");
            return;
        };
        let mut report = *report;
        let told = history.transferred;
        if !told.is_zero() {
            report.transferred = Some(report.transferred.unwrap_or_default().saturating_add(told));
        }
        report.bytes_moved = report.bytes_moved.saturating_add(history.bytes_moved);
        report.ran = self.now.saturating_duration_since(accepted).saturating_sub(report.queued);
        report.attempts = history.failures + 1;
        report.fallback = history.fallback.take();
        report.alternatives = std::mem::take(&mut history.alternatives);
        match &mut history.parts {
            None => self.finish(ticket, Ok(value), report),
            Some(parts) => match parts.take(value, report) {
                Ok(Some((value, report))) => self.finish(ticket, Ok(value), report),
                Ok(None) => self.begin_next_part(ticket),
                Err(error) => drop(self.end(ticket, error)),
            },
        }
    }

    /// Sends the next part of a graph on its way.
    fn begin_next_part(&self, mut ticket: OpTicket) {
        let Some(task) = ticket.question_mut() else { return };
        self.lane.settle(task, Mark::Success, self.now);
        match task.begin_part() {
            Ok(()) => self.lane.hand_over(ticket, false),
            Err(error) => self.lane.fail_finally(ticket, error),
        }
    }

    /// Whether the answer to this op must be compared. An op may have come here from the lane that
    /// it was chosen for, so this is checked again: the processor's answers are not compared, and
    /// neither are those of graphs that ran in parts.
    fn is_compared(&self, task: &OpRequest) -> bool {
        let in_parts = || task.history.as_ref().is_some_and(|history| history.parts.is_some());
        task.verify && !self.lane.info.is_processor() && !in_parts()
    }

    /// Queues an answer for comparison with another device's. Returns the answer if there is no
    /// room for it.
    #[cold]
    fn hold_back(&self, ticket: OpTicket, result: Result<Value>, report: Report) -> Option<AnsweredOp> {
        match result {
            Ok(value) => match self.lane.hold_back(ticket, value, report, self.now) {
                Ok(()) => None,
                Err((ticket, value, report)) => Some((ticket, Ok(value), report)),
            },
            Err(error) => Some((ticket, Err(error), report)),
        }
    }

    fn finish(&mut self, mut ticket: OpTicket, mut result: Result<Value>, mut report: Report) {
        if ticket.question_mut().is_some_and(|task| self.is_compared(task)) {
            match self.hold_back(ticket, result, report) {
                Some(back) => (ticket, result, report) = back,
                None => return,
            }
        }
        // The task's copy of an op is normally dropped in place when the answer overwrites the
        // question. A copy of an extension op is dropped after the answer, because its destructor
        // is foreign and may not return.
        let Some(task) = ticket.question_mut() else { return };
        let copy = task.op.take_if(|op| matches!(op, Op::Extension(_)));
        self.lane.settle(task, Mark::Success, self.now);
        self.lane.note_report(&report);
        tell(tracing::Level::TRACE, || {
            tracing::trace!(
                target: "panoply::op",
                device = %report.device,
                queued_us = report.queued.as_secs_f64() * 1e6,
                ran_us = report.ran.as_secs_f64() * 1e6,
                predicted_us = task.forecast.prediction().finish().as_secs_f64() * 1e6,
                "an op is done"
            );
        });
        self.lane.counts.completed.fetch_add(1, Ordering::Release);
        let answer = result.map(|output| Outcome { output, report });
        match &mut self.caller {
            Some(caller) => ticket.answer_among(answer, caller),
            None => ticket.answer(answer),
        }
        if let Some(copy) = copy {
            discard(copy);
        }
    }

    fn report(&self, task: &OpRequest, times: Times, done: &FinishedOp) -> Report {
        Report {
            device: self.lane.info.id,
            queued: times.submitted.saturating_duration_since(times.accepted),
            transferred: done.transferred,
            device_time: done.device_time,
            ran: self.now.saturating_duration_since(times.submitted),
            batch_size: done.batch_size,
            bytes_moved: done.bytes_moved,
            fallback: None,
            attempts: 1,
            cuts: Vec::new(),
            predicted: Some(task.forecast.prediction()),
            alternatives: Vec::new(),
            verification: None,
        }
    }

    /// The lesson of an op that ran.
    fn lesson(&self, forecast: &Forecast, flight: &Flight, done: &FinishedOp) -> OpMeasurement {
        let lane = self.lane;
        let ran_ns = nanoseconds(self.now.saturating_duration_since(flight.times.submitted)) as f32;
        let told_ns = done.transferred.map(|time| nanoseconds(time) as f32);
        let bytes = done.bytes_moved as f32;
        let transfer_ns =
            told_ns.unwrap_or_else(|| lane.links.up.time_ns(bytes).min(ran_ns * UNTOLD_TRANSFER_SHARE_MAX));
        let device_ns = done.device_time.map(|time| nanoseconds(time) as f32);
        let share_ns = (flight.service_ns.max(1.0) * self.stretch - transfer_ns).max(1.0);
        let own_ns = device_ns.filter(|_| lane.info.computes_in_submit);
        // For ops that ran side by side, the engine reports each one's share of the time, and not
        // how long it takes by itself.
        let run_ns =
            own_ns.filter(|_| done.batch_size == 1).or_else(|| flight.alone.then(|| (ran_ns - transfer_ns).max(1.0)));
        let service_ns = own_ns.unwrap_or(match (flight.alone, device_ns) {
            // The device's own time includes its copies, which are predicted separately.
            (true, Some(device_ns)) => (device_ns - transfer_ns).max(device_ns / 10.0),
            _ => share_ns,
        });
        let output_bytes = done.result.as_ref().map_or(0, Value::len_bytes);
        let sample = Sample { run_ns, service_ns, output_bytes: output_bytes as f32 };
        let transfer = crossing(flight, done, told_ns, ran_ns);
        OpMeasurement { forecast: *forecast, sample, ran_ns, transfer }
    }

    /// Adds a lesson to the router's models.
    fn teach(&self, lesson: &OpMeasurement, op: &Op) {
        let (lane, forecast) = (self.lane, &lesson.forecast);
        if let Some(TransferMeasurement { to_host, bytes, time_ns }) = lesson.transfer {
            let link = if to_host { &lane.links.down } else { &lane.links.up };
            link.learn(bytes, time_ns);
        }
        if forecast.explored {
            lane.explored_ns.fetch_add(lesson.ran_ns as u64, Ordering::Relaxed);
        }
        // An extension op may panic when it is asked for its name.
        let _ = contain(|| lane.model.learn(forecast.key, || Label::of(op), forecast.work_log2, lesson.sample));
        lane.note_long(lesson.ran_ns);
    }

    /// Learns from a transfer to the host, and adds it to the op's history.
    fn note_transfer(&self, task: &mut OpRequest, flight: &Flight, done: &FinishedOp) {
        let bytes = done.result.as_ref().map_or(0, Value::len_bytes);
        let took = done.transferred.unwrap_or(self.now.saturating_duration_since(flight.times.submitted));
        self.lane.links.down.learn(bytes as f32, nanoseconds(took) as f32);
        let history = task.history();
        history.bytes_moved = history.bytes_moved.saturating_add(bytes as u64);
        history.transferred = history.transferred.saturating_add(took);
    }
}

/// Lets callers read the outputs that stay on the device.
fn attach(lane: &Arc<Lane>, value: &Value) {
    for part in value.parts() {
        let buffer = match part {
            PartRef::Tensor(tensor) => tensor.buffer(),
            PartRef::Bytes(bytes) => bytes.buffer(),
            PartRef::Object(_) | PartRef::Sink(_) => continue,
        };
        if let Buffer::Device(buffer) = buffer
            && buffer.device() == lane.info.id
        {
            buffer.attach(|| Arc::downgrade(lane) as Weak<dyn ReadBack>);
        }
    }
}

/// The bytes that crossed a link for an op, and in what time. A copy to the host has its bytes on
/// the way down; every other op has its inputs on the way up.
fn crossing(flight: &Flight, done: &FinishedOp, told_ns: Option<f32>, ran_ns: f32) -> Option<TransferMeasurement> {
    let copy = match &done.op {
        Op::Compute(ComputeOp::Transfer(Transfer { to, .. })) => Some(*to),
        _ => None,
    };
    let untold = copy.is_some() && flight.alone && done.bytes_moved >= UNTOLD_COPY_BYTES_MIN;
    let time_ns = told_ns.or(untold.then_some(ran_ns))?;
    Some(TransferMeasurement { to_host: copy == Some(Location::Host), bytes: done.bytes_moved as f32, time_ns })
}

/// Puts an input that was copied to the host into its op. Returns false if the input is not there.
fn arrive(task: &mut OpRequest, device: DeviceId, done: &FinishedOp) -> bool {
    let before = task.inputs_on(device);
    if let Ok(Value::Tensor(fetched)) = &done.result {
        task.put_input(device, fetched);
    }
    task.inputs_on(device) < before
}

/// How many parts of the output are not on the host.
fn outputs_away(task: &OpRequest) -> usize {
    let output = task.history.as_ref().and_then(|history| history.output.as_ref());
    let away = |part: &PartRef<'_>| part.object().is_none() && part.location() != Location::Host;
    output.map_or(0, |(value, _)| value.parts().filter(away).count())
}

/// The transfer that brings the next part of the output to the host. `None` if all of it is there,
/// or may stay on the device.
fn next_delivery(task: &mut OpRequest) -> Option<(Op, OpStage)> {
    if !task.wishes.to_host {
        return None;
    }
    let (value, _) = task.history.as_ref()?.output.as_ref()?;
    let away = value.parts().find(|part| part.object().is_none() && part.location() != Location::Host)?;
    let away = match away {
        PartRef::Tensor(tensor) => tensor.clone(),
        PartRef::Bytes(bytes) => bytes.to_tensor().ok()?,
        PartRef::Object(_) | PartRef::Sink(_) => return None,
    };
    Some((transfer_to_host(&away)?, OpStage::Deliver))
}

/// Replaces a part of the output on the device by its copy on the host.
fn put_output(task: &mut OpRequest, delivered: Tensor) {
    let Some((value, report)) = task.history().output.take() else { return };
    let mut delivered = Some(delivered);
    let value = value.try_map(|tensor| {
        let wanted = |delivered: &mut Tensor| tensor.location() != Location::Host && stands_for(delivered, &tensor);
        Ok(delivered.take_if(wanted).unwrap_or(tensor))
    });
    task.history().output = value.ok().map(|value| (value, report));
}
