//! Ops that are defined outside this workspace. They are validated, routed, batched, retried
//! and reported like the others. The backend that knows such an op reads it with
//! [`Extension::downcast_ref`]. Every other backend answers that it does not run the op.

use std::any::Any;
use std::fmt;

use super::host::{HostOp, HostSide};
use super::{AnswerTypes, Describe, Domain, Op};
use crate::error::{Error, Result};

/// An op of a foreign type.
pub struct Extension {
    op: Box<dyn ExtensionOp>,
    takes_secrets: bool,
    /// The types of the answer, as the op stated them when it was made. Answers are checked against
    /// them without calling the op.
    types: AnswerTypes<'static>,
    /// The op's domain, and its code for the host.
    pub(super) host: Option<HostSide>,
}

/// The requirements of an extension: it describes itself, and can be cloned and printed. Every such
/// type implements this trait.
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
    /// Makes an op of a foreign type, for the `into_op` of its [`Operation`](super::Operation). It
    /// refuses secret parts.
    pub fn extension(op: impl Describe + Clone + fmt::Debug + Send + Sync + 'static) -> Result<Op> {
        Extension::build(op, false, None)
    }

    /// Like [`Op::extension`], for an op that may have secret parts. Every engine that runs it must
    /// wipe its copies of them.
    pub fn extension_with_secrets(op: impl Describe + Clone + fmt::Debug + Send + Sync + 'static) -> Result<Op> {
        Extension::build(op, true, None)
    }

    /// Makes an op of a domain outside this workspace, which the engines of the host run, for the
    /// `into_op` of its [`Operation`](super::Operation). Fails if the domain has the name of one of
    /// [`Domain::ALL`].
    pub fn of_host<T: HostOp>(op: T) -> Result<Op> {
        if Domain::ALL.iter().any(|domain| domain.name() == T::DOMAIN) {
            return Err(Error::invalid("domain of an op", "a name of its own", T::DOMAIN));
        }
        Extension::build(op, T::TAKES_SECRETS, Some(HostSide::of::<T>()))
    }
}

impl Extension {
    fn build(op: impl ExtensionOp, takes_secrets: bool, host: Option<HostSide>) -> Result<Op> {
        op.validate()?;
        let types = op.answer_types()?.into_owned();
        Op::Extension(Extension { op: Box::new(op), takes_secrets, types, host }).checked()
    }

    /// The op, if it is of this type.
    pub fn downcast_ref<T: 'static>(&self) -> Option<&T> {
        self.any().downcast_ref()
    }

    /// The domain: [`Domain::Outside`] if the op names it.
    pub fn domain(&self) -> Domain {
        self.host.map_or(Domain::Extension, |side| Domain::Outside(side.domain))
    }

    pub(super) fn any(&self) -> &dyn Any {
        self.op.as_any()
    }

    pub(super) fn takes_secrets(&self) -> bool {
        self.takes_secrets
    }

    pub(super) fn stated_types(&self) -> AnswerTypes<'_> {
        self.types.clone()
    }

    pub(super) fn describe(&self) -> &dyn Describe {
        &*self.op
    }

    pub(super) fn describe_mut(&mut self) -> &mut dyn Describe {
        self.op.as_describe_mut()
    }
}

impl Clone for Extension {
    fn clone(&self) -> Extension {
        let types = self.types.clone();
        Extension { op: self.op.boxed_clone(), takes_secrets: self.takes_secrets, types, host: self.host }
    }
}

impl fmt::Debug for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.op.fmt(f)
    }
}
