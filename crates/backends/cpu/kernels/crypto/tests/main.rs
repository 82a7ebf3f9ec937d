//! Every integration test of the crate that does not need a process of its own, in one program.

mod curves;
mod hostile;
mod in_place;
mod lanes;
mod openssl;
mod provider;
mod rsa;
mod rsa_hostile;
mod suite;
mod vectors;
