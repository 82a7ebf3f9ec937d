//! The messages of Burn's remote protocol, version 2, which Burn 0.22 speaks: MessagePack over one WebSocket per session.
//!
//! Burn keeps these types to itself, so they are written down here as they travel: structs as lists of their fields, enums by the names
//! of their variants. What they carry (operations, tensors, settings) are Burn's own public types. Both ends compare versions first, so
//! that a client of another one is told so. What is not served is taken as [`IgnoredAny`].

use std::time::Duration;

use burn_backend::{DTypeUsageSet, ExecutionError, ProfileToken, TensorData};
use burn_ir::{GraphBindings, GraphId, OperationIr, TensorId, TensorIr};
use burn_std::{DType, DeviceSettings};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// The version that both ends must speak.
pub(crate) const PROTOCOL_VERSION: u16 = 2;

/// A client's number for an answer it waits for.
pub(crate) type RequestId = u64;

#[derive(Deserialize)]
#[allow(clippy::large_enum_variant)] // Most are the large one.
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
#[allow(dead_code)] // A message has more in it than is asked for here.
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
    /// No window: nothing is measured here.
    ProfileStart(Result<Option<ProfileToken>, ExecutionError>),
    ProfileEnd(Result<Option<Duration>, ExecutionError>),
    InitRefused(SessionRefusal),
}

#[derive(Serialize)]
pub(crate) struct SessionInfo {
    pub(crate) version: u16,
    pub(crate) settings: DeviceSettings,
    pub(crate) device_count: u32,
    /// Over a WebSocket nobody has an identity.
    pub(crate) peer_id: Option<()>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) enum SessionRefusal {
    Unauthorized,
    NoSuchDevice { device_count: u32 },
    IncompatibleProtocol { server_version: u16 },
}
