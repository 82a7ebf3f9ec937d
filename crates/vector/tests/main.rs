//! Every integration test of the crate that does not need a process of its own, in one program.

mod collection;
mod crash;
mod damage;
mod devices;
mod durable;
mod embedding_model;
mod encrypted;
mod index;
mod readers;
mod storm;
mod support;
mod ties;
