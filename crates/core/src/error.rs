//! Errors, in three kinds that a caller can tell apart.

use std::borrow::Cow;
use std::time::Duration;

use crate::device_id::DeviceId;
use crate::dtype::DType;

/// The result of every fallible function of Panoply.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Who can act on an error: the caller, another device, or a later attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The caller asked for something impossible. Asking again gives the same answer.
    Caller,
    /// A device failed. The same op may succeed elsewhere, or later.
    Device,
    /// There is no room or no time now. The same op may succeed later.
    Capacity,
}

/// An error of an op, a tensor or a device. [`Error::kind`] tells the three kinds apart.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two shapes that must agree do not.
    #[error("{what}: expected shape {expected:?}, got {got:?}")]
    ShapeMismatch {
        /// The operand and its op.
        what: &'static str,
        /// The expected dimensions.
        expected: Vec<usize>,
        /// The dimensions that were given.
        got: Vec<usize>,
    },
    /// A tensor has the wrong number of dimensions.
    #[error("{what}: expected {expected} dimensions, got {got}")]
    RankMismatch {
        /// The operand and its op.
        what: &'static str,
        /// The expected rank, such as `4` or `at least 2`.
        expected: Cow<'static, str>,
        /// The rank that was given.
        got: usize,
    },
    /// Two element types that must agree do not.
    #[error("{what}: expected {expected}, got {got}")]
    DTypeMismatch {
        /// The operand and its op.
        what: &'static str,
        /// The expected element type.
        expected: DType,
        /// The element type that was given.
        got: DType,
    },
    /// The op is not defined for this element type.
    #[error("{what} is not defined for {got}; expected {expected}")]
    DTypeUnsupported {
        /// The op, or its operand.
        what: &'static str,
        /// The element types for which the op is defined.
        expected: &'static str,
        /// The element type that was given.
        got: DType,
    },
    /// A shape, a stride or a size does not fit the address space.
    #[error("{what}: {got:?} overflows; expected at most {limit} bytes in all")]
    SizeOverflow {
        /// The value whose size overflows.
        what: &'static str,
        /// The dimensions that were given.
        got: Vec<usize>,
        /// The largest size in bytes.
        limit: usize,
    },
    /// An index, an axis or the end of a view lies outside what it refers to.
    #[error("{what}: expected at most {limit}, got {got}")]
    OutOfBounds {
        /// The value that was indexed, or the index.
        what: &'static str,
        /// The largest valid value.
        limit: usize,
        /// The value that was given.
        got: usize,
    },
    /// Any other argument outside its range.
    #[error("{what}: expected {expected}, got {got}")]
    InvalidArgument {
        /// The argument and its op.
        what: &'static str,
        /// Description of the valid values.
        expected: Cow<'static, str>,
        /// The value that was given.
        got: String,
    },
    /// The expression of a map is not valid for its inputs.
    #[error("map: {0}")]
    Expression(#[from] crate::expr::ExprError),
    /// A node of a graph is invalid, or failed when it ran.
    #[error("{node}: {cause}")]
    Node {
        /// The node: its name, its op, and the types of its operands.
        node: String,
        /// The cause.
        cause: Box<Error>,
    },
    /// A dimension of a graph has a symbol to which no input gives a size.
    #[error(
        "graph: the symbol {symbol}: expected an input with {symbol} by itself as a dimension, got none, and {node} \
         has the shape {got}; give an input this dimension, or put a number in place of the symbol"
    )]
    UnboundSymbol {
        /// The symbol's name.
        symbol: String,
        /// The first node that has the symbol: its name, its op, and the types of its operands.
        node: String,
        /// The element type and dimensions of the node.
        got: String,
    },
    /// A caller's kernel does not compile.
    #[error("the kernel {kernel} does not compile as {language}: {message}")]
    KernelSource {
        /// The program's name.
        kernel: String,
        /// The language that was tried: `C` or `WGSL`.
        language: &'static str,
        /// The compiler's message. Line numbers refer to the caller's text.
        message: String,
    },
    /// A caller's kernel, or its closure, violated a rule.
    #[error("the kernel {kernel} went wrong: {reason}")]
    KernelFault {
        /// The program's name.
        kernel: String,
        /// The violation: an address out of bounds, barriers that not all threads reach, an endless
        /// loop, a panic.
        reason: String,
    },
    /// The elements are not adjacent in memory, as a slice requires.
    #[error("a tensor of shape {shape:?} with strides {strides:?} is not contiguous; make it so with `contiguous()`")]
    NotContiguous {
        /// The tensor's dimensions.
        shape: Vec<usize>,
        /// The tensor's strides, in elements.
        strides: Vec<isize>,
    },
    /// The data is in a device's memory, and cannot be fetched here: the caller is a thread of the
    /// runtime, which must not wait for a device, or no runtime has handed the data out.
    #[error("the data lives on {device} and cannot be fetched here; run `Transfer::to_host` on it before")]
    NotOnHost {
        /// The device that holds the data.
        device: DeviceId,
    },
    /// None of the permitted devices can run this op.
    #[error("no device can run {op}: {reason}")]
    Unsupported {
        /// The op's name.
        op: &'static str,
        /// The reason of each candidate.
        reason: String,
    },
    /// The named device does not exist.
    #[error("there is no device {device}; there are: {known}")]
    NoSuchDevice {
        /// The device that was asked for.
        device: DeviceId,
        /// The devices that exist.
        known: String,
    },
    /// Two requests of the caller exclude each other.
    #[error("{first} contradicts {second}; leave one of them out")]
    Contradiction {
        /// The first request.
        first: String,
        /// The second request.
        second: String,
    },
    /// A message failed verification. No output of the op is handed out, and the error gives no
    /// reason, since the reason would help an attacker.
    #[error("{op}: message {index} is rejected")]
    Rejected {
        /// The op's name.
        op: &'static str,
        /// Index of the first rejected message.
        index: usize,
    },
    /// A message would become longer than the op allows.
    #[error(
        "{op}: message {index} becomes longer than the limit of {limit} bytes; raise the limit where it is trusted"
    )]
    OutputLimit {
        /// The op's name.
        op: &'static str,
        /// Index of the first message that is too long.
        index: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A key is malformed or weak, or belongs to another algorithm or length.
    #[error("the key is no valid key of {algorithm}")]
    InvalidKey {
        /// The algorithm for which the key was given.
        algorithm: &'static str,
    },
    /// A nonce would be used twice with one key.
    #[error("the nonce of message {index} was used before; use one that is new")]
    RepeatedNonce {
        /// Index of the message.
        index: usize,
    },
    /// A session has fewer nonces left than there are messages.
    #[error("a session has {left} nonces left, {asked} were asked for; begin a session with a new key")]
    NoncesExhausted {
        /// Number of nonces left.
        left: u64,
        /// Number of messages to be sealed.
        asked: u64,
    },
    /// The op was cancelled by dropping its future.
    #[error("cancelled by the caller")]
    Cancelled,
    /// The device disappeared or must be reset.
    #[error("{device} is lost: {reason}")]
    DeviceLost {
        /// The device.
        device: DeviceId,
        /// The last message of the device.
        reason: String,
    },
    /// The device reported a failure of this op alone.
    #[error("{device} failed: {reason}")]
    DeviceFault {
        /// The device.
        device: DeviceId,
        /// The device's message.
        reason: String,
    },
    /// The device did not answer before the op's timeout.
    #[error("{device} did not answer within {after:?}")]
    Timeout {
        /// The device.
        device: DeviceId,
        /// Time that the runtime waited for the op.
        after: Duration,
    },
    /// The engine or its worker panicked while it held this op.
    #[error("the engine of {device} panicked: {message}")]
    EnginePanicked {
        /// The device.
        device: DeviceId,
        /// The panic's message.
        message: String,
    },
    /// The device could not be opened, or is being reopened.
    #[error("{device} is not available: {reason}")]
    DeviceUnavailable {
        /// The device.
        device: DeviceId,
        /// The reason.
        reason: String,
    },
    /// A device object that the op names is gone.
    #[error("the {kind} on {device} is gone: {reason}; make it again")]
    ObjectLost {
        /// The kind of the object, such as `model`.
        kind: &'static str,
        /// The device that held the object.
        device: DeviceId,
        /// How the object was lost.
        reason: String,
    },
    /// The device's queue is full.
    #[error("the queue of {device} is full ({queue_depth_max} ops); wait for an outcome, or use `run`, which waits")]
    Busy {
        /// The device.
        device: DeviceId,
        /// Capacity of the queue, in ops.
        queue_depth_max: usize,
    },
    /// Too few devices are fit for work, and the runtime refuses patient ops meanwhile.
    #[error(
        "only {fit_percent} % of the devices' capacity is fit for work, and patient ops are refused below \
         {min_percent} % (`system_capacity_min`); send the op again later, or with another priority"
    )]
    Degraded {
        /// The share of the devices' capacity that is fit for work.
        fit_percent: u32,
        /// The share below which patient ops are refused.
        min_percent: u32,
    },
    /// Memory ran out.
    #[error("out of memory in {place}: asked for {asked} bytes, {free} free, largest block {largest}")]
    OutOfMemory {
        /// The memory that ran out: of a device, or of the host.
        place: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes free.
        free: u64,
        /// The largest free block.
        largest: u64,
    },
    /// The op's deadline passed before the op was started, or before its answer arrived.
    #[error("the deadline passed {late_by:?} before the op was started")]
    DeadlineExceeded {
        /// Time between the deadline and the start.
        late_by: Duration,
    },
    /// The runtime is shutting down, or has shut down.
    #[error("the runtime is shutting down and takes no more work")]
    ShuttingDown,
    /// The calling process is a fork. The threads of objects that were made before the fork exist
    /// only in the parent process.
    #[error(
        "{what} belongs to process {made_in}, and this is its fork {called_in}, which has none of its threads; \
         make a new one after the fork, or start processes without fork (Python: `spawn` or `forkserver`)"
    )]
    Forked {
        /// The object that was called, such as `the runtime`.
        what: &'static str,
        /// Id of the process that made the object.
        made_in: u32,
        /// Id of the process that called it.
        called_in: u32,
    },
}

impl Error {
    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Node { cause, .. } => cause.kind(),
            Error::ShapeMismatch { .. }
            | Error::RankMismatch { .. }
            | Error::DTypeMismatch { .. }
            | Error::DTypeUnsupported { .. }
            | Error::SizeOverflow { .. }
            | Error::OutOfBounds { .. }
            | Error::InvalidArgument { .. }
            | Error::Expression(_)
            | Error::UnboundSymbol { .. }
            | Error::KernelSource { .. }
            | Error::KernelFault { .. }
            | Error::NotContiguous { .. }
            | Error::NotOnHost { .. }
            | Error::Unsupported { .. }
            | Error::NoSuchDevice { .. }
            | Error::Contradiction { .. }
            | Error::Rejected { .. }
            | Error::OutputLimit { .. }
            | Error::InvalidKey { .. }
            | Error::RepeatedNonce { .. }
            | Error::NoncesExhausted { .. }
            | Error::Forked { .. }
            | Error::Cancelled => ErrorKind::Caller,
            Error::DeviceLost { .. }
            | Error::DeviceFault { .. }
            | Error::Timeout { .. }
            | Error::EnginePanicked { .. }
            | Error::ObjectLost { .. }
            | Error::DeviceUnavailable { .. } => ErrorKind::Device,
            Error::Busy { .. }
            | Error::Degraded { .. }
            | Error::OutOfMemory { .. }
            | Error::DeadlineExceeded { .. }
            | Error::ShuttingDown => ErrorKind::Capacity,
        }
    }

    /// The error for an argument outside its range. `what` names the op and the argument.
    pub fn invalid(what: &'static str, expected: impl Into<Cow<'static, str>>, got: impl ToString) -> Error {
        Error::InvalidArgument { what, expected: expected.into(), got: got.to_string() }
    }
}

/// The message of a caught panic.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
