//! Crc: one packet per message. An empty message has no beat, and its checksum is zero by
//! definition.

use panoply_core::op::signal::{Checksum, Crc};
use panoply_core::{Bytes, Result, Value};

use super::{CardWork, CorePass, Packet, too_long};
use crate::map::{BEAT_BYTES, CoreKind};

pub(super) fn refusal(op: &Crc) -> Option<String> {
    if op.kind != Checksum::Crc32 {
        return Some(format!("its core does crc32, not {}", op.kind.name()));
    }
    if op.messages.is_secret() {
        return Some("secrets are not sent to a card, whose memory is not wiped".to_owned());
    }
    op.messages.lens().max().and_then(|bytes| too_long("a message", bytes))
}

struct CrcWork {
    packets: Option<Vec<Packet>>,
    /// The message's index for each packet.
    places: Vec<usize>,
    checks: Vec<u8>,
}

pub(super) fn work(op: &Crc) -> Result<Box<dyn CardWork>> {
    let (mut packets, mut places) = (Vec::new(), Vec::new());
    for (place, message) in op.messages.slices()?.into_iter().enumerate().filter(|(_, message)| !message.is_empty()) {
        packets.push(Packet { payload: message.into(), answer_bytes: BEAT_BYTES });
        places.push(place);
    }
    Ok(Box::new(CrcWork { packets: Some(packets), places, checks: vec![0; op.messages.count() * 8] }))
}

impl CardWork for CrcWork {
    fn pass(&mut self, _number: usize) -> Option<CorePass> {
        let packets = self.packets.take()?;
        Some(CorePass { core: CoreKind::Crc32, registers: Vec::new(), packets })
    }

    fn take(&mut self, _pass: usize, packet: usize, answer: &[u8]) {
        let place = 8 * self.places[packet];
        // The checksum has 32 bits. The other half of the answer is ignored.
        self.checks[place..place + 4].copy_from_slice(&answer[..4]);
    }

    fn value(self: Box<Self>) -> Result<Value> {
        Ok(Value::Bytes(Bytes::from_vec(self.checks)))
    }
}
