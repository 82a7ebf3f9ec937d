//! A program's own workers, in pools.
//!
//! A [`Worker`] is a state that one thread owns. A [`WorkerPool`] gives each of its workers a
//! thread and a bounded queue. The pool sends messages by turn, by index or by a [`Partitioner`],
//! returns typed replies, and replaces workers that fail. An [`AcceleratedWorker`] owns a device,
//! or a part of one ([`claim`](panoply_runtime::Runtime::claim)).
//!
//! ```
//! use panoply::worker::{BoxError, Envelope, HashBy, PoolOptions, Worker, WorkerPool};
//! use std::collections::HashMap;
//!
//! /// Counts words; each word always reaches the same worker.
//! #[derive(Default)]
//! struct Counter(HashMap<String, u64>);
//!
//! impl Worker for Counter {
//!     type Message = String;
//!     type Reply = u64;
//!
//!     fn handle(&mut self, envelope: Envelope<String>) -> Result<u64, BoxError> {
//!         let count = self.0.entry(envelope.message).or_default();
//!         *count += 1;
//!         Ok(*count)
//!     }
//! }
//!
//! let options = PoolOptions { workers: 2, ..Default::default() };
//! let pool = WorkerPool::start_partitioned(options, HashBy::new(|word: &String| word.clone()), |_| Counter::default())?;
//! pool.send_partitioned("panoply".to_owned())?;
//! assert_eq!(pool.request_partitioned("panoply".to_owned())?.wait()?, 2);
//! # Ok::<(), panoply::worker::WorkerError>(())
//! ```

pub use panoply_runtime::partition::{ConsistentHash, HashBy, PartitionError, Partitioner, RangeBy, RoundRobin};
pub use panoply_runtime::pool::{PendingReply, WorkerHealth, WorkerStatus};
pub use panoply_runtime::worker::BoxError;
pub use panoply_runtime::{
    AcceleratedWorker, DeviceShare, Envelope, OnDevice, PoolOptions, Share, Worker, WorkerError, WorkerPool,
};
