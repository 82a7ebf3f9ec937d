//! Every integration test of the crate that does not need a process of its own, in one program.

mod anchors;
mod compression;
mod crash;
mod damage;
mod full_disk;
mod keys;
mod mutations;
mod older_head;
mod planes;
mod repair;
mod store;
mod support;
