//! What can go wrong, in three kinds that a caller can tell apart.

use std::borrow::Cow;
use std::time::Duration;

use crate::device::DeviceId;
use crate::dtype::DType;

/// The result of everything in Panoply that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whose fault an error is, and so what to do about it.
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
        /// Which operand of which op.
        what: &'static str,
        /// The dimensions that would have fitted.
        expected: Vec<usize>,
        /// The dimensions that were given.
        got: Vec<usize>,
    },
    /// A tensor has the wrong number of dimensions.
    #[error("{what}: expected {expected} dimensions, got {got}")]
    RankMismatch {
        /// Which operand of which op.
        what: &'static str,
        /// What would have fitted, such as `4` or `at least 2`.
        expected: Cow<'static, str>,
        /// The rank that was given.
        got: usize,
    },
    /// Two element types that must agree do not.
    #[error("{what}: expected {expected}, got {got}")]
    DTypeMismatch {
        /// Which operand of which op.
        what: &'static str,
        /// The element type that would have fitted.
        expected: DType,
        /// The element type that was given.
        got: DType,
    },
    /// The op is not defined for this element type.
    #[error("{what} is not defined for {got}; expected {expected}")]
    DTypeUnsupported {
        /// The op, or its operand.
        what: &'static str,
        /// The element types that it is defined for.
        expected: &'static str,
        /// The element type that was given.
        got: DType,
    },
    /// A shape, a stride or a size does not fit the address space.
    #[error("{what}: {got:?} overflows; expected at most {limit} bytes in all")]
    SizeOverflow {
        /// What was being sized.
        what: &'static str,
        /// The dimensions that were given.
        got: Vec<usize>,
        /// The largest size in bytes.
        limit: usize,
    },
    /// An index, an axis or the end of a view lies outside what it refers to.
    #[error("{what}: expected at most {limit}, got {got}")]
    OutOfBounds {
        /// What was being indexed.
        what: &'static str,
        /// The largest value that would have fitted.
        limit: usize,
        /// The value that was given.
        got: usize,
    },
    /// Any other argument outside its range.
    #[error("{what}: expected {expected}, got {got}")]
    InvalidArgument {
        /// Which argument of which op.
        what: &'static str,
        /// What would have been accepted.
        expected: Cow<'static, str>,
        /// What was given.
        got: String,
    },
    /// The expression of a map is not valid for its inputs.
    #[error("map: {0}")]
    Expression(#[from] crate::expr::ExprError),
    /// A node of a graph cannot be what it was recorded as, or failed when it ran.
    #[error("{node}: {cause}")]
    Node {
        /// The node: its name, its op, and its operands' types.
        node: String,
        /// What is wrong with it.
        cause: Box<Error>,
    },
    /// A kernel of the caller's own does not compile.
    #[error("the kernel {kernel} does not compile as {language}: {message}")]
    KernelSource {
        /// The program's name.
        kernel: String,
        /// The form that was tried: `C` or `WGSL`.
        language: &'static str,
        /// What the compiler said. Lines count in the caller's text.
        message: String,
    },
    /// A kernel of the caller's own, or its closure, did what it must not.
    #[error("the kernel {kernel} went wrong: {reason}")]
    KernelFault {
        /// The program's name.
        kernel: String,
        /// What it did: an address out of bounds, barriers that not all threads reach, no end, a panic.
        reason: String,
    },
    /// The elements do not lie one after the other in memory, as a slice must.
    #[error("a tensor of shape {shape:?} with strides {strides:?} is not contiguous; make it so with `contiguous()`")]
    NotContiguous {
        /// The tensor's dimensions.
        shape: Vec<usize>,
        /// The tensor's strides, in elements.
        strides: Vec<isize>,
    },
    /// The data is in a device's memory; bring it to the host first.
    #[error("the data lives on {device}; run `Transfer::to_host` on it to read it here")]
    NotOnHost {
        /// Where the data is.
        device: DeviceId,
    },
    /// No device that may be used can run this op.
    #[error("no device can run {op}: {reason}")]
    Unsupported {
        /// The op's name.
        op: &'static str,
        /// What each candidate said.
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
    /// Two wishes that cannot both be fulfilled.
    #[error("{first} contradicts {second}; leave one of them out")]
    Contradiction {
        /// One of the two.
        first: String,
        /// The other.
        second: String,
    },
    /// A message is not what it claims to be. Nothing of its op is handed out, and no more is said: the reason would help whoever
    /// made it.
    #[error("{op}: message {index} is rejected")]
    Rejected {
        /// The op's name.
        op: &'static str,
        /// The first such message.
        index: usize,
    },
    /// A message would become longer than the op allows.
    #[error(
        "{op}: message {index} becomes longer than the limit of {limit} bytes; raise the limit where it is trusted"
    )]
    OutputLimit {
        /// The op's name.
        op: &'static str,
        /// The first such message.
        index: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A key is malformed or weak, or belongs to another algorithm or length.
    #[error("the key is no valid key of {algorithm}")]
    InvalidKey {
        /// The algorithm that it was given for.
        algorithm: &'static str,
    },
    /// A nonce would be used twice with one key.
    #[error("the nonce of message {index} was used before; use one that is new")]
    RepeatedNonce {
        /// The message.
        index: usize,
    },
    /// A session has no nonces left for so many messages.
    #[error("a session has {left} nonces left, {asked} were asked for; begin a session with a new key")]
    NoncesExhausted {
        /// How many are left.
        left: u64,
        /// How many messages were to be sealed.
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
        /// What it said last.
        reason: String,
    },
    /// The device reported a failure of this op alone.
    #[error("{device} failed: {reason}")]
    DeviceFault {
        /// The device.
        device: DeviceId,
        /// What it said.
        reason: String,
    },
    /// The device did not answer within the op's time bound.
    #[error("{device} did not answer within {after:?}")]
    Timeout {
        /// The device.
        device: DeviceId,
        /// How long the op was waited for.
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
        /// Why.
        reason: String,
    },
    /// A device object that the op names is gone.
    #[error("the {kind} on {device} is gone: {reason}; make it again")]
    ObjectLost {
        /// What the object was.
        kind: &'static str,
        /// The device that had it.
        device: DeviceId,
        /// What became of it.
        reason: String,
    },
    /// The device's queue is full.
    #[error("the queue of {device} is full ({queue_depth_max} ops); wait for an outcome, or use `run`, which waits")]
    Busy {
        /// The device.
        device: DeviceId,
        /// How many ops its queue holds.
        queue_depth_max: usize,
    },
    /// Memory ran out.
    #[error("out of memory in {place}: asked for {asked} bytes, {free} free, largest block {largest}")]
    OutOfMemory {
        /// Which memory: a device, or the host.
        place: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes free.
        free: u64,
        /// The largest block that could have been had.
        largest: u64,
    },
    /// The op's deadline passed before it was started.
    #[error("the deadline passed {late_by:?} before the op was started")]
    DeadlineExceeded {
        /// By how much it was missed.
        late_by: Duration,
    },
    /// The runtime is shutting down, or has.
    #[error("the runtime is shutting down and takes no more work")]
    ShuttingDown,
}

impl Error {
    /// Whose fault it is.
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
            | Error::Cancelled => ErrorKind::Caller,
            Error::DeviceLost { .. }
            | Error::DeviceFault { .. }
            | Error::Timeout { .. }
            | Error::EnginePanicked { .. }
            | Error::ObjectLost { .. }
            | Error::DeviceUnavailable { .. } => ErrorKind::Device,
            Error::Busy { .. } | Error::OutOfMemory { .. } | Error::DeadlineExceeded { .. } | Error::ShuttingDown => {
                ErrorKind::Capacity
            }
        }
    }

    /// An argument outside its range; `what` names the op and the argument.
    pub fn invalid(what: &'static str, expected: impl Into<Cow<'static, str>>, got: impl ToString) -> Error {
        Error::InvalidArgument { what, expected: expected.into(), got: got.to_string() }
    }
}

/// What a caught panic said.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
