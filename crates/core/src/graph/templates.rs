//! The distinct ops of a graph. A graph of many nodes has few distinct ops, apart from maps that
//! differ in their constants: such maps share everything but their expressions.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::ops::Deref;
use std::sync::Arc;

use super::placeholder::slot_of;
use crate::expr::Program;
use crate::once::OnceBox;
use crate::op::compute::{ComputeOp, Map};
use crate::op::{Describe, Op};
use crate::tensor::Tensor;

/// The op of a node, over placeholders of sample sizes. Clones share it.
///
/// It dereferences to the [`Op`]. A map that shares its tensors with other maps is assembled for
/// that, and the assembled op is kept; [`Template::op`] keeps nothing.
#[derive(Clone)]
pub struct Template(Arc<Inner>);

struct Inner {
    /// The op, or a map with the same inputs and another expression.
    form: Arc<Op>,
    /// The map's own expression, if the form has another one.
    program: Option<Program>,
    /// The map, assembled on first use.
    whole: OnceBox<Op>,
}

impl Template {
    /// The template of an op that is no part of a graph.
    pub fn new(op: Op) -> Template {
        Template::of(Arc::new(op), None)
    }

    fn of(form: Arc<Op>, program: Option<Program>) -> Template {
        Template(Arc::new(Inner { form, program, whole: OnceBox::new() }))
    }

    /// The op.
    pub fn op(&self) -> Cow<'_, Op> {
        match (&self.0.program, self.0.whole.get()) {
            (None, _) => Cow::Borrowed(&self.0.form),
            (Some(_), Some(whole)) => Cow::Borrowed(whole),
            (Some(program), None) => Cow::Owned(with_program(&self.0.form, program)),
        }
    }

    /// The op's name.
    pub fn name(&self) -> &'static str {
        self.0.form.name()
    }

    /// Identifies the op within its graph: equal ops have equal addresses.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The op, or a map with the same inputs and another expression.
    pub(super) fn form(&self) -> &Op {
        &self.0.form
    }
}

impl Deref for Template {
    type Target = Op;

    fn deref(&self) -> &Op {
        match &self.0.program {
            None => &self.0.form,
            Some(program) => self.0.whole.get_or_make(|| with_program(&self.0.form, program)),
        }
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.op().fmt(f)
    }
}

/// The map with this expression and the inputs of `form`, which is a map.
fn with_program(form: &Op, program: &Program) -> Op {
    match form {
        Op::Compute(ComputeOp::Map(map)) => {
            let inputs: Vec<&Tensor> = map.inputs().collect();
            Op::Compute(ComputeOp::Map(Map::with_program(program, &inputs)))
        }
        op => op.clone(),
    }
}

/// Two hashes with random keys of this builder, so that no attacker can construct two ops with
/// equal hashes.
type TemplateKey = [u64; 2];

/// The ops by their hashes.
#[derive(Debug, Default)]
pub(super) struct Templates {
    known: HashMap<TemplateKey, Template>,
    /// One map for each list of inputs, by the hashes of the inputs.
    forms: HashMap<TemplateKey, Arc<Op>>,
    keys: [RandomState; 2],
}

impl Templates {
    /// Returns an equal op that is already stored, or stores this one. The op's tensors are
    /// placeholders of its operands.
    pub(super) fn shared(&mut self, op: Op) -> Template {
        let key = self.key(|hashers| hashers.add(&op));
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let made = self.made(op);
        self.known.entry(key).or_insert(made).clone()
    }

    /// The template of a new op. A map takes the form of an earlier map with the same inputs.
    fn made(&mut self, op: Op) -> Template {
        let Op::Compute(ComputeOp::Map(map)) = &op else { return Template::new(op) };
        let Ok(program) = map.program().cloned() else { return Template::new(op) };
        let inputs = self.key(|hashers| hashers.add_inputs(map));
        match self.forms.get(&inputs) {
            Some(form) => Template::of(Arc::clone(form), Some(program)),
            None => {
                let form = Arc::new(op);
                self.forms.insert(inputs, Arc::clone(&form));
                Template::of(form, None)
            }
        }
    }

    fn key(&self, add: impl FnOnce(&mut TwoHashers<DefaultHasher>)) -> TemplateKey {
        let mut hashers = TwoHashers(self.keys.each_ref().map(RandomState::build_hasher));
        add(&mut hashers);
        hashers.0.map(|hasher| hasher.finish())
    }
}

struct TwoHashers<H>([H; 2]);

impl<H: Hasher> TwoHashers<H> {
    /// Hashes all that distinguishes an op: of a map its expression and inputs, of any other op its
    /// debug text.
    fn add(&mut self, op: &Op) {
        match op {
            Op::Compute(ComputeOp::Map(map)) if map.program().is_ok() => {
                if let Ok(program) = map.program() {
                    self.value(program.nodes());
                }
                self.add_inputs(map);
            }
            op => {
                self.value(&usize::MAX);
                // Hashing never fails.
                let _ = write!(self, "{op:?}");
            }
        }
    }

    fn add_inputs(&mut self, map: &Map) {
        self.value(&map.inputs().len());
        for input in map.inputs() {
            self.value(&(slot_of(input), input.dtype(), input.shape()));
        }
    }

    fn value(&mut self, value: &(impl Hash + ?Sized)) {
        self.0.iter_mut().for_each(|hasher| value.hash(hasher));
    }
}

impl<H: Hasher> Write for TwoHashers<H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.iter_mut().for_each(|hasher| hasher.write(text.as_bytes()));
        Ok(())
    }
}
