//! Placeholder for systems without AF_ALG sockets. Binding always fails.

use std::io;

use super::{Control, Family, Trouble};

pub(crate) struct Transform;

pub(crate) struct Operation;

impl Transform {
    pub(crate) fn bind(_: Family, _: &str) -> Result<Transform, Trouble> {
        let error = io::Error::new(io::ErrorKind::Unsupported, "only Linux has it");
        Err(Trouble { call: "AF_ALG", error })
    }

    pub(crate) fn set_key(&self, _: &[u8]) -> Result<(), Trouble> {
        Ok(())
    }

    pub(crate) fn set_tag_len(&self, _: usize) -> Result<(), Trouble> {
        Ok(())
    }

    pub(crate) fn operation(&self) -> Result<Operation, Trouble> {
        Ok(Operation)
    }
}

impl Operation {
    pub(crate) fn send_hashed(&self, _: &[u8], _: bool) -> Result<(), Trouble> {
        Ok(())
    }

    pub(crate) fn send(&self, _: &Control<'_>, _: [&[u8]; 3]) -> Result<(), Trouble> {
        Ok(())
    }

    pub(crate) fn receive(&self, _: [&mut [u8]; 3]) -> Result<(), Trouble> {
        Ok(())
    }
}
