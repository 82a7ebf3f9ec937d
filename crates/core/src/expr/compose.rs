//! Composing several programs into one, which fuses elementwise work.

use super::arena::Arena;
use super::node::{Node, NodeId};
use super::program::Program;
use super::{ExprError, INPUTS_MAX, NODES_MAX};

/// The replacement of one input of a composed program.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// This input of the composed program.
    Input(u32),
    /// The result of this program. The list maps its inputs to inputs of the composed program.
    Result(&'a Program, &'a [u32]),
}

impl Program {
    /// Replaces each input of this program by the operand at the same index. Takes time linear in
    /// the nodes of all programs. Fails if the result has too many nodes or inputs, or if an
    /// operand is missing.
    pub fn compose(&self, operands: &[Operand<'_>]) -> Result<Program, ExprError> {
        let mut arena = Arena::default();
        let mut results: Vec<Option<NodeId>> = vec![None; operands.len()];
        let missing = ExprError::MissingInput { expected: self.inputs(), got: operands.len() as u32 };
        let mut renamed: Vec<NodeId> = Vec::with_capacity(self.nodes().len());
        for node in self.nodes() {
            let here = match node {
                Node::Input(index) => {
                    let place = *index as usize;
                    let known = *results.get(place).ok_or(missing)?;
                    let result = match known {
                        Some(result) => result,
                        None => place_operand(&mut arena, operands[place])?,
                    };
                    results[place] = Some(result);
                    result
                }
                other => arena.intern(other.renamed(|id| renamed[id as usize])),
            };
            renamed.push(here);
        }
        let root = renamed.last().copied().unwrap_or(0);
        if arena.overflowed() {
            return Err(ExprError::TooManyNodes { nodes_max: NODES_MAX });
        }
        let program = Program::from_nodes(arena.nodes(), root);
        if program.inputs() > INPUTS_MAX {
            return Err(ExprError::InputIndex { index: program.inputs() - 1, inputs_max: INPUTS_MAX });
        }
        Ok(program)
    }
}

fn place_operand(arena: &mut Arena, operand: Operand<'_>) -> Result<NodeId, ExprError> {
    let (program, inputs) = match operand {
        Operand::Input(index) => return Ok(arena.intern(Node::Input(index))),
        Operand::Result(program, inputs) => (program, inputs),
    };
    let mut renamed: Vec<NodeId> = Vec::with_capacity(program.nodes().len());
    for node in program.nodes() {
        let node = match node {
            Node::Input(index) => {
                let missing = ExprError::MissingInput { expected: program.inputs(), got: inputs.len() as u32 };
                Node::Input(*inputs.get(*index as usize).ok_or(missing)?)
            }
            other => other.renamed(|id| renamed[id as usize]),
        };
        renamed.push(arena.intern(node));
    }
    Ok(renamed.last().copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Expr;

    #[test]
    fn programs_are_composed_as_if_written_as_one() {
        let (x, y) = (Expr::input(0), Expr::input(1));
        let inner = (&x * 2.0 + &y).finish().unwrap();
        let outer = (x.clone().relu() + &y * &x).finish().unwrap();
        let composed = outer.compose(&[Operand::Result(&inner, &[1, 0]), Operand::Input(2)]).unwrap();
        let value = &y * 2.0 + &x;
        assert_eq!(composed, (value.clone().relu() + Expr::input(2) * &value).finish().unwrap());
        assert!(matches!(outer.compose(&[Operand::Input(0)]), Err(ExprError::MissingInput { expected: 2, got: 1 })));
        assert!(matches!(outer.compose(&[Operand::Input(64), Operand::Input(0)]), Err(ExprError::InputIndex { .. })));
        let bare = outer.compose(&[Operand::Result(&inner, &[1]), Operand::Input(0)]);
        assert!(matches!(bare, Err(ExprError::MissingInput { .. })));
    }
}
