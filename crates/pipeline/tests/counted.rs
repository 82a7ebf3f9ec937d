//! Pipelines that are misused or fail: tests that count the threads of pipelines.
#![allow(unsafe_code)] // The shared module contains a counting allocator.

#[path = "counted/attacks.rs"]
mod attacks;
#[path = "counted/faults.rs"]
mod faults;
#[path = "../../runtime/tests/support/mod.rs"]
mod support;
#[path = "counted/threads.rs"]
mod threads;
