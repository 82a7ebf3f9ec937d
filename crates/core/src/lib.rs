//! The vocabulary of Panoply: what a device, a tensor, an op, an engine and an outcome are.
//!
//! Every other crate depends on this one, which depends on nothing but element types and error derivation: no threads,
//! no I/O, no vendor library, no wire format. Modules in reading order:
//!
//! * [`dtype`], [`shape`], [`lease`], [`buffer`], [`pool`], [`tensor`], [`bytes`]: data;
//! * [`object`], [`part`], [`sink`]: state on a device, and all that goes into an op or comes out of it;
//! * [`expr`]: the elementwise expression behind the op `Map`;
//! * [`op`]: what can be done with it, in domains;
//! * [`graph`]: many ops recorded as one;
//! * [`api`], [`device`], [`backend`], [`cpu_set`]: who does it, and where;
//! * [`outcome`], [`error`]: what comes of it;
//! * [`clock`]: time, real or virtual;
//! * [`threads`]: threads that a backend lends to the work of one op.
#![allow(unsafe_code)] // Shared buffers over raw memory, and the lock-free list of returned leases.

pub mod api;
pub mod backend;
pub mod buffer;
pub mod bytes;
pub mod clock;
pub mod cpu_set;
pub mod device;
pub mod dtype;
pub mod error;
pub mod expr;
pub mod graph;
pub mod lease;
pub mod object;
pub mod op;
pub mod outcome;
pub mod part;
pub mod pool;
pub mod shape;
pub mod sink;
mod sync;
pub mod tensor;
pub mod threads;

pub use backend::{
    Absence, Backend, Engine, Finished, FirstGuess, Health, Item, MemoryStats, OpenOptions, Support, Warmth,
};
pub use buffer::{Buffer, DeviceBuffer, HostBuffer, HostBufferMut};
pub use bytes::Bytes;
pub use device::{Api, Capabilities, DeviceId, DeviceInfo, DeviceKind, PciAddress};
pub use dtype::{Complex64, DType, Element, bf16, f16};
pub use error::{Error, ErrorKind, Result};
pub use object::{Object, ObjectTable};
pub use op::{BatchKey, CostClass, Describe, Domain, Op, Operation};
pub use outcome::{Alternative, Cut, Fallback, Outcome, Prediction, Report, Verdict};
pub use part::{Part, PartMut, PartRef, Value};
pub use shape::{RANK_MAX, Shape, Strides};
pub use tensor::{Location, Tensor};
pub use threads::{OneThread, Threads};
