//! How a driver answers requests for the device's memory. A step of the machine in `driver`, whose
//! rules hold here too.

use panoply_core::{Engine, Error, Result};
use panoply_lockfree::foreign::contain;

use super::driver::{Driver, DriverStep};
use super::visit::{Interruption, inside};
use crate::lane::{MemoryAnswer, MemoryRequest};

impl Driver {
    /// Answers one request for memory, if there is one. Returns the step to take if the engine
    /// panicked or the driver was replaced meanwhile.
    pub(super) fn answer_memory_request(&mut self) -> Option<DriverStep> {
        let Driver { engine: Some(engine), generation, lane, clock, .. } = self else { return None };
        let mut ticket = lane.next_memory_request()?;
        let (request, now, device) = (ticket.take_question()?, clock.now(), lane.info.id);
        let answered = inside(generation, now, || match contain(|| answer(engine.as_mut(), request)) {
            Ok(result) => {
                ticket.answer(result);
                Ok(engine.memory())
            }
            Err(message) => {
                ticket.answer(Err(Error::EnginePanicked { device, message: message.clone() }));
                Err(Interruption::Panicked(message))
            }
        });
        match answered.flatten() {
            Ok(memory) => {
                lane.metrics.set_memory(memory);
                None
            }
            Err(interrupted) => Some(self.interrupted(now, interrupted)),
        }
    }
}

fn answer(engine: &mut dyn Engine, request: MemoryRequest) -> Result<MemoryAnswer> {
    match request {
        MemoryRequest::Pinned { len_bytes } => engine.pinned(len_bytes).map(MemoryAnswer::Pinned),
        MemoryRequest::Trim { keep_bytes } => {
            let before = engine.memory().cached_bytes;
            engine.trim(keep_bytes);
            Ok(MemoryAnswer::Trimmed(before.saturating_sub(engine.memory().cached_bytes)))
        }
    }
}
