//! The finished expression: canonical, hashed and immutable.

use core::fmt;
use std::sync::Arc;

use super::node::{Node, NodeId, mix};

/// A finished elementwise expression. A clone increments one reference count, or none for programs
/// that live as long as the process.
///
/// Nodes are in the order of a depth-first walk from the result, operands first, so equal
/// expressions have equal nodes however they were built. Every node is unique and used, and the
/// last node is the result.
#[derive(Clone)]
pub struct Program {
    inner: Handle,
}

#[derive(Clone)]
enum Handle {
    Counted(Arc<Inner>),
    /// A program without a reference count, whose cache line would move between the cores of
    /// callers and workers.
    Static(&'static Inner),
}

impl std::ops::Deref for Handle {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        match self {
            Handle::Counted(inner) => inner,
            Handle::Static(inner) => inner,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Inner {
    hash: u64,
    form_hash: u64,
    inputs: u32,
    nodes: Box<[Node]>,
}

impl Program {
    /// The nodes. The last one is the result.
    pub fn nodes(&self) -> &[Node] {
        &self.inner.nodes
    }

    /// One more than the largest input index that is read; 0 for a constant.
    pub fn inputs(&self) -> u32 {
        self.inner.inputs
    }

    /// A hash of the nodes that is the same in every process and on every platform. It is the key
    /// of kernel caches.
    pub fn hash(&self) -> u64 {
        self.inner.hash
    }

    /// A hash like [`Program::hash`], but without the values of constants. Expressions that differ
    /// only in constants share a kernel, which takes the constants as arguments.
    pub fn form_hash(&self) -> u64 {
        self.inner.form_hash
    }

    /// Leaks the program, so that it lives as long as the process. Only for the few programs that
    /// are used everywhere.
    pub(crate) fn for_ever(self) -> Program {
        match self.inner {
            Handle::Counted(inner) => {
                let Inner { hash, form_hash, inputs, nodes } = &*inner;
                let copy = Inner { hash: *hash, form_hash: *form_hash, inputs: *inputs, nodes: nodes.clone() };
                Program { inner: Handle::Static(Box::leak(Box::new(copy))) }
            }
            Handle::Static(_) => self,
        }
    }

    /// Copies the nodes that `root` needs, in canonical order.
    pub(super) fn from_nodes(nodes: &[Node], root: NodeId) -> Program {
        const UNSEEN: NodeId = NodeId::MAX;
        let mut renamed = vec![UNSEEN; nodes.len()];
        let mut ordered = Vec::new();
        let mut pending = vec![root];
        while let Some(&id) = pending.last() {
            if renamed[id as usize] != UNSEEN {
                pending.pop();
                continue;
            }
            let node = nodes[id as usize];
            let waiting = pending.len();
            pending.extend(node.operands().rev().filter(|&operand| renamed[operand as usize] == UNSEEN));
            if pending.len() == waiting {
                pending.pop();
                renamed[id as usize] = ordered.len() as NodeId;
                ordered.push(node.renamed(|operand| renamed[operand as usize]));
            }
        }
        let hash = ordered.iter().fold(0, |hash, node| mix(hash ^ node.stable_hash()));
        let form = |node: &Node| if let Node::Const(_) = node { 0 } else { node.stable_hash() };
        let form_hash = ordered.iter().fold(0, |hash, node| mix(hash ^ form(node)));
        let inputs = ordered.iter().map(|node| if let Node::Input(index) = node { index.saturating_add(1) } else { 0 });
        let inputs = inputs.max().unwrap_or(0);
        Program { inner: Handle::Counted(Arc::new(Inner { hash, form_hash, inputs, nodes: ordered.into() })) }
    }
}

impl PartialEq for Program {
    fn eq(&self, other: &Program) -> bool {
        std::ptr::eq(&*self.inner, &*other.inner) || *self.inner == *other.inner
    }
}

impl Eq for Program {}

impl core::hash::Hash for Program {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.inner.hash);
    }
}

/// One assignment for each node: `%0 = x0; %1 = 2; %2 = mul(%0, %1)`.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, node) in self.nodes().iter().enumerate() {
            let separator = if id == 0 { "" } else { "; " };
            write!(f, "{separator}%{id} = ")?;
            match *node {
                Node::Input(index) => write!(f, "x{index}"),
                Node::Const(constant) => write!(f, "{}", constant.value()),
                Node::Unary(op, a) => write!(f, "{}(%{a})", op.name()),
                Node::Binary(op, a, b) => write!(f, "{}(%{a}, %{b})", op.name()),
                Node::Ternary(op, a, b, c) => write!(f, "{}(%{a}, %{b}, %{c})", op.name()),
                Node::Cast(dtype, a) => write!(f, "cast_{dtype}(%{a})"),
            }?;
        }
        Ok(())
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({self})")
    }
}
