//! Ops that a backend outside this workspace brings along. They are validated, routed, batched, retried and reported like
//! the others; the backend that knows such an op takes it out again with [`Extension::downcast_ref`], and every other
//! backend answers that it does not run it.

use std::any::Any;
use std::fmt;

use super::{Describe, Op};
use crate::error::Result;

/// An op of somebody else's type.
pub struct Extension(Box<dyn ExtensionOp>);

/// What a type needs to be an extension: it describes itself, and can be cloned and printed. Every such type has it.
trait ExtensionOp: Describe + Any + fmt::Debug + Send + Sync {
    fn boxed_clone(&self) -> Box<dyn ExtensionOp>;
    fn as_any(&self) -> &dyn Any;
    fn as_describe_mut(&mut self) -> &mut dyn Describe;
}

impl<T: Describe + Clone + fmt::Debug + Send + Sync + 'static> ExtensionOp for T {
    fn boxed_clone(&self) -> Box<dyn ExtensionOp> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_describe_mut(&mut self) -> &mut dyn Describe {
        self
    }
}

impl Op {
    /// An op of one's own, for the `into_op` of its [`Operation`](super::Operation).
    pub fn extension(op: impl Describe + Clone + fmt::Debug + Send + Sync + 'static) -> Result<Op> {
        op.validate()?;
        Op::Extension(Extension(Box::new(op))).checked()
    }
}

impl Extension {
    /// The op, where it is of this type.
    pub fn downcast_ref<T: 'static>(&self) -> Option<&T> {
        self.0.as_any().downcast_ref()
    }

    pub(super) fn describe(&self) -> &dyn Describe {
        &*self.0
    }

    pub(super) fn describe_mut(&mut self) -> &mut dyn Describe {
        self.0.as_describe_mut()
    }
}

impl Clone for Extension {
    fn clone(&self) -> Extension {
        Extension(self.0.boxed_clone())
    }
}

impl fmt::Debug for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
