//! The messages of Burn's remote protocol, version 2, which Burn 0.22 speaks: MessagePack over one
//! WebSocket per session.
//!
//! Burn keeps these types private, so they are defined here in their serialised form: structs as
//! lists of their fields, enums by the names of their variants. Their contents (operations,
//! tensors, settings) are Burn's own public types. Both ends compare versions first, so that a
//! client of another version gets a clear refusal. Parts that are not used are read as
//! [`IgnoredAny`].

use std::time::Duration;

use burn_backend::{DTypeUsageSet, ExecutionError, ProfileToken, TensorData};
use burn_ir::{GraphBindings, GraphId, OperationIr, TensorId, TensorIr};
use burn_std::{DType, DeviceSettings};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// The version that both ends must speak.
pub(crate) const PROTOCOL_VERSION: u16 = 2;

/// The most numbers, names and lists in one message. Each may become a structure many times its
/// size. The bytes of a tensor or a text count as one.
const TOKENS_MAX: usize = 1 << 21;

/// Decodes the messages in these bytes. Too many tokens are refused before anything is decoded.
pub(crate) fn read(bytes: &[u8]) -> Result<Vec<RemoteMessage>, String> {
    if has_more_tokens(bytes, TOKENS_MAX) {
        return Err(format!("it has more than {TOKENS_MAX} numbers, names and lists"));
    }
    rmp_serde::from_slice(bytes).map_err(|error| error.to_string())
}

/// Whether MessagePack data has more than `most` tokens. Truncated and invalid data is left to the
/// decoder.
fn has_more_tokens(bytes: &[u8], most: usize) -> bool {
    let (mut at, mut tokens) = (0_usize, 0);
    while let Some(marker) = bytes.get(at) {
        tokens += 1;
        if tokens > most {
            return true;
        }
        // The number of length bytes after the marker, and the number of bytes that follow in
        // addition to that length.
        let (length_bytes, more) = match marker {
            0xa0..=0xbf => (0, usize::from(marker & 0x1f)),
            0xc4 | 0xd9 => (1, 0),
            0xc5 | 0xda => (2, 0),
            0xc6 | 0xdb => (4, 0),
            0xc7 => (1, 1),
            0xc8 => (2, 1),
            0xc9 => (4, 1),
            0xcc | 0xd0 => (0, 1),
            0xcd | 0xd1 | 0xdc | 0xde => (0, 2),
            0xca | 0xce | 0xd2 | 0xdd | 0xdf => (0, 4),
            0xcb | 0xcf | 0xd3 => (0, 8),
            0xd4..=0xd8 => (0, 1 + (1 << (marker - 0xd4))),
            _ => (0, 0),
        };
        let Some(length) = bytes.get(at + 1..at + 1 + length_bytes) else { return false };
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        at = at.saturating_add(1 + length_bytes + more).saturating_add(length);
    }
    false
}

/// A client's number for an answer that it waits for.
pub(crate) type RequestId = u64;

#[derive(Deserialize)]
#[allow(clippy::large_enum_variant)] // Most messages are the large variant.
pub(crate) enum RemoteMessage {
    Task(Task),
    Init(SessionInit),
    Close(SessionId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct SessionId {
    #[allow(dead_code)] // Compared as a whole.
    id: u64,
}

#[derive(Deserialize)]
pub(crate) struct SessionInit {
    pub(crate) version: u16,
    pub(crate) session_id: SessionId,
    pub(crate) device_index: u32,
    #[serde(with = "serde_bytes")]
    pub(crate) authorization: Vec<u8>,
}

#[derive(Deserialize)]
#[allow(clippy::large_enum_variant)]
#[allow(dead_code)] // The messages have more fields than are used here.
pub(crate) enum Task {
    Seed(u64),
    RegisterOperation(IgnoredAny, OperationIr),
    RegisterAndExecuteGraph {
        stream_id: IgnoredAny,
        graph_id: GraphId,
        relative_graph: Vec<OperationIr>,
        bindings: GraphBindings,
    },
    ExecuteGraph {
        stream_id: IgnoredAny,
        graph_id: GraphId,
        bindings: GraphBindings,
    },
    RegisterTensor(IgnoredAny, TensorId, TensorData),
    RegisterAlias {
        stream_id: IgnoredAny,
        new_id: TensorId,
        src_id: TensorId,
    },
    RegisterTensorRemote(IgnoredAny, IgnoredAny, TensorId),
    ExposeTensorRemote(IgnoredAny),
    ExposeTensorLocal(IgnoredAny),
    RegisterTensorLocal {
        stream_id: IgnoredAny,
        transfer_id: IgnoredAny,
        new_id: TensorId,
    },
    ReadTensor(RequestId, IgnoredAny, TensorIr),
    SyncBackend(RequestId, IgnoredAny),
    DTypeUsage(RequestId, DType),
    ProfileStart(RequestId, IgnoredAny),
    ProfileEnd(RequestId, IgnoredAny, IgnoredAny, IgnoredAny),
    ProfileAbandon(IgnoredAny, IgnoredAny),
}

#[derive(Serialize)]
pub(crate) struct TaskResponse {
    pub(crate) content: TaskResponseContent,
    pub(crate) id: RequestId,
}

#[derive(Serialize)]
pub(crate) enum TaskResponseContent {
    Init(SessionInfo),
    ReadTensor(Result<TensorData, ExecutionError>),
    SyncBackend(Result<(), ExecutionError>),
    DTypeUsage(DTypeUsageSet),
    /// Always `None`: this server does not measure profiles.
    ProfileStart(Result<Option<ProfileToken>, ExecutionError>),
    ProfileEnd(Result<Option<Duration>, ExecutionError>),
    InitRefused(SessionRefusal),
}

#[derive(Serialize)]
pub(crate) struct SessionInfo {
    pub(crate) version: u16,
    pub(crate) settings: DeviceSettings,
    pub(crate) device_count: u32,
    /// Always `None`: a WebSocket client has no identity.
    pub(crate) peer_id: Option<()>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) enum SessionRefusal {
    Unauthorized,
    NoSuchDevice { device_count: u32 },
    IncompatibleProtocol { server_version: u16 },
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use super::*;

    #[test]
    fn tokens_are_counted_as_the_encoder_writes_them() {
        type WireParts = (Vec<u64>, String, Vec<f64>, serde_bytes::ByteBuf, Option<bool>);
        for long in [0, 3, 40, 300, 70_000] {
            let parts: WireParts = (
                (0..long).map(|at| at << (at % 60)).collect(),
                "é".repeat(long as usize),
                vec![0.5; long as usize],
                serde_bytes::ByteBuf::from(vec![0xc1; long as usize]),
                Some(true),
            );
            let bytes = rmp_serde::to_vec(&parts).unwrap();
            // The list of five, two lists with their elements, and one token for each of the
            // others.
            let tokens = 6 + 2 * long as usize;
            assert!(!has_more_tokens(&bytes, tokens) && has_more_tokens(&bytes, tokens - 1), "{long}");
            assert!(!has_more_tokens(&bytes[..bytes.len() - 1], tokens), "cut short");
        }
    }

    #[test]
    fn a_message_of_countless_small_things_is_refused_unread() {
        let mut bytes = vec![0xdd, 0xff, 0xff, 0xff, 0xff];
        bytes.resize(TOKENS_MAX + 5, 0xc0);
        assert!(read(&bytes).is_err_and(|reason| reason.contains("more than")));
        // A length beyond the end is an error of the decoder, not a crash.
        assert!(read(&[0xc6, 0xff, 0xff, 0xff, 0xff, 1]).is_err());
    }
}
