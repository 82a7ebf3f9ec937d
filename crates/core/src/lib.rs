//! The vocabulary of Panoply: devices, tensors, ops, engines and outcomes.
//!
//! Every other crate depends on this one. It depends only on element types, error derivation and a
//! few system calls about memory and processes: no threads, no I/O, no vendor library, no wire
//! format. Modules in reading order:
//!
//! * [`dtype`], [`shape`], [`lease`], [`buffer`], [`pool`], [`tensor`], [`bytes`]: data;
//! * [`read_back`]: copies on the host of what is read from a device's memory;
//! * [`object`], [`part`], [`sink`]: state on a device, and the inputs and outputs of ops;
//! * [`expr`]: the elementwise expression of the op `Map`;
//! * [`op`]: the ops, in domains;
//! * [`graph`]: many ops recorded as one;
//! * [`api`], [`device_id`], [`device`], [`backend`], [`cpu_set`]: the devices that run ops, and
//!   their APIs;
//! * [`outcome`], [`error`]: the results;
//! * [`clock`]: time, real or virtual;
//! * [`process`]: identifies the process, and distinguishes it from its forks;
//! * [`vendor`]: which processes can load vendors' libraries;
//! * [`once`]: values that are made once, without a lock that a fork could copy;
//! * [`threads`]: threads that a backend lends to one op;
//! * [`locked`]: memory for secrets, kept out of swap. `sync`: the atomics, or loom's.
#![allow(unsafe_code)] // Shared buffers over raw memory, calls about memory and forks, and the lock-free places of leases and values made once.

pub mod api;
pub mod backend;
pub mod buffer;
pub mod bytes;
pub mod clock;
pub mod cpu_set;
pub mod device;
pub mod device_id;
pub mod dtype;
pub mod error;
pub mod expr;
pub mod graph;
pub mod lease;
pub mod locked;
pub mod object;
pub mod once;
pub mod op;
pub mod outcome;
pub mod part;
pub mod pool;
pub mod process;
pub mod read_back;
pub mod shape;
pub mod sink;
mod sync;
pub mod tensor;
pub mod threads;
pub mod vendor;

pub use backend::{
    Absence, Backend, CryptoProvider, Engine, FinishedOp, FirstGuess, Health, Item, MemoryLimits, MemoryStats,
    OpenOptions, Support, Warmth,
};
pub use buffer::{Buffer, DeviceBuffer, HostBuffer, HostBufferMut};
pub use bytes::Bytes;
pub use device::{Api, Capabilities, DeviceId, DeviceInfo, DeviceKind, MemoryUse, PciAddress};
pub use dtype::{Complex64, DType, Element, bf16, f16};
pub use error::{Error, ErrorKind, Result};
pub use object::{Object, ObjectTable};
pub use op::{AnswerTypes, BatchKey, CostClass, Describe, Domain, Op, Operation};
pub use outcome::{Alternative, Cut, Fallback, Outcome, Prediction, Report, Verdict, Verification};
pub use part::{Part, PartMut, PartRef, Parts, Value};
pub use read_back::ReadBack;
pub use shape::{RANK_MAX, Shape, Strides};
pub use tensor::{Location, Tensor};
pub use threads::{OneThread, Threads};
