//! Pipelines that are misused or fail: tests that count the threads of pipelines.

mod pipeline_attacks;
mod pipeline_faults;
mod support;
