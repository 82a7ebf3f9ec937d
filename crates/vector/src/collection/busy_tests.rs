//! The non-blocking forms never block, however many writes are waiting.

use std::sync::Arc;
use std::sync::mpsc::channel;

use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;
use serde_json::Value;

use super::Collection;
use crate::error::Error;
use crate::schema::{Options, Schema};
use crate::{Metric, Task};

fn collection(dimension: usize) -> Collection {
    let runtime = Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap());
    Collection::in_memory(runtime, Schema::new("busy", dimension, Metric::Dot), Options::default()).unwrap()
}

#[test]
fn a_full_queue_is_said_at_once() {
    let collection = collection(1);
    let (release, held) = channel::<()>();
    let holding = collection.inner.writer.run(move |_| {
        let _ = held.recv();
        Ok(())
    });
    let mut taken: Vec<Task<()>> = Vec::new();
    let refused = loop {
        let task = collection.insert_async(&taken.len().to_string(), &[1.0], Value::Null);
        if task.is_done() {
            break task.wait();
        }
        taken.push(task);
    };
    assert!(matches!(refused, Err(Error::Busy { unit: "writes", .. })), "{refused:?}");
    assert!(matches!(collection.flush_async().wait(), Err(Error::Busy { .. })));
    assert!(matches!(collection.clear_async().wait(), Err(Error::Busy { .. })));
    assert!(matches!(collection.remove_many_async(&["0"]).wait(), Err(Error::Busy { .. })));
    release.send(()).unwrap();
    holding.wait().unwrap();
    let count = taken.len();
    taken.into_iter().for_each(|task| task.wait().unwrap());
    assert_eq!(collection.len(), count);
    collection.flush_async().wait().unwrap();
}

#[test]
fn what_waits_is_bounded_in_bytes() {
    let collection = collection(1 << 16);
    let (release, held) = channel::<()>();
    let holding = collection.inner.writer.run(move |_| {
        let _ = held.recv();
        Ok(())
    });
    let ids: Vec<String> = (0..10).map(|index| index.to_string()).collect();
    let vectors = vec![1.0; 10 << 16];
    let first = collection.insert_many_async(&ids[..5], &vectors[..5 << 16], &[]);
    let second = collection.insert_many_async(&ids, &vectors, &[]);
    assert!(second.is_done());
    let refused = second.wait();
    assert!(matches!(refused, Err(Error::Busy { unit: "bytes of writes", .. })), "{refused:?}");
    release.send(()).unwrap();
    holding.wait().unwrap();
    first.wait().unwrap();
    // A single batch may exceed the bound if nothing else waits.
    collection.upsert_many_async(&ids, &vectors, &[]).wait().unwrap();
    assert_eq!(collection.len(), 10);
}
