//! Placeholder for systems without AF_ALG sockets. Binding always fails.

use std::io;

use super::{Control, Family, SystemCallError};

pub(crate) struct Transform;

pub(crate) struct Operation;

impl Transform {
    pub(crate) fn bind(_: Family, _: &str) -> Result<Transform, SystemCallError> {
        let error = io::Error::new(io::ErrorKind::Unsupported, "only Linux has it");
        Err(SystemCallError { call: "AF_ALG", error })
    }

    pub(crate) fn set_key(&self, _: &[u8]) -> Result<(), SystemCallError> {
        Ok(())
    }

    pub(crate) fn set_tag_len(&self, _: usize) -> Result<(), SystemCallError> {
        Ok(())
    }

    pub(crate) fn operation(&self) -> Result<Operation, SystemCallError> {
        Ok(Operation)
    }
}

impl Operation {
    pub(crate) fn send_hashed(&self, _: &[u8], _: bool) -> Result<(), SystemCallError> {
        Ok(())
    }

    pub(crate) fn send(&self, _: &Control<'_>, _: [&[u8]; 3]) -> Result<(), SystemCallError> {
        Ok(())
    }

    pub(crate) fn receive(&self, _: [&mut [u8]; 3]) -> Result<(), SystemCallError> {
        Ok(())
    }
}
