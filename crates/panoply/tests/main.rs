//! Every integration test of the crate that does not need a process of its own, in one program.

mod crypto;
mod crypto_provider;
mod examples;
mod facade;
mod training;
#[cfg(feature = "vector")]
mod vectors_on_gpus;
