//! Expressions of elements: `{ %0 = x0; %1 = 2; %2 = mul(%0, %1) }`.

use panoply_core::expr::{BinaryOp, Constant, Expr, Node, NodeId, TernaryOp, UnaryOp};

use super::EXPRESSION_NODES_MAX;
use super::lexer::{LineLexer, clipped};
use super::ops::dtype_named;

/// Reads an expression in braces. Its last node is its value.
pub(super) fn read(line: &mut LineLexer<'_>) -> Result<Expr, String> {
    if !line.takes("{") {
        return Err(format!("expected `{{` and an expression, got {}", line.rest()));
    }
    let body = line.until("}").ok_or("expected `}` after the expression")?;
    let mut nodes: Vec<Node> = Vec::new();
    for part in body.split(';') {
        if nodes.len() == EXPRESSION_NODES_MAX {
            return Err(format!("expected at most {EXPRESSION_NODES_MAX} nodes of an expression, got more"));
        }
        let mut part = LineLexer::new(part);
        let place = part.name().and_then(|name| name.strip_prefix('%')?.parse::<usize>().ok());
        if place != Some(nodes.len()) || !part.takes("=") {
            return Err(format!("expected `%{} =` in the expression, got {}", nodes.len(), part.rest()));
        }
        let node = node(&mut part, nodes.len())?;
        if !part.is_empty() {
            return Err(format!("expected `;` or `}}` after %{}, got {}", nodes.len(), part.rest()));
        }
        nodes.push(node);
    }
    Expr::from_nodes(&nodes).ok_or_else(|| "expected an expression".to_owned())
}

/// One node of an expression: an input, a constant, or a function of earlier nodes, of which there
/// are `known`.
fn node(part: &mut LineLexer<'_>, known: usize) -> Result<Node, String> {
    if let Some(number) = part.number() {
        return Ok(Node::Const(Constant::new(number)));
    }
    let word = part.name().ok_or_else(|| format!("expected a name, got {}", part.rest()))?;
    if let Some(index) = word.strip_prefix('x').and_then(|index| index.parse::<u32>().ok()) {
        return Ok(Node::Input(index));
    }
    let mut operands: Vec<NodeId> = Vec::new();
    if part.takes("(") {
        while !part.takes(")") {
            let operand = part.name().and_then(|name| name.strip_prefix('%')?.parse::<NodeId>().ok());
            let operand = operand.filter(|operand| (*operand as usize) < known);
            operands.push(operand.ok_or_else(|| format!("expected an earlier node such as %0, got {}", part.rest()))?);
            part.takes(",");
            if operands.len() > 3 {
                return Err("expected at most three operands in an expression".to_owned());
            }
        }
    }
    let made = match *operands {
        [a] => match word.strip_prefix("cast_").and_then(dtype_named) {
            Some(dtype) => Some(Node::Cast(dtype, a)),
            None => UnaryOp::ALL.iter().find(|op| op.name() == word).map(|op| Node::Unary(*op, a)),
        },
        [a, b] => BinaryOp::ALL.iter().find(|op| op.name() == word).map(|op| Node::Binary(*op, a, b)),
        [a, b, c] => TernaryOp::ALL.iter().find(|op| op.name() == word).map(|op| Node::Ternary(*op, a, b, c)),
        _ => None,
    };
    made.ok_or_else(|| {
        let unary = UnaryOp::ALL.iter().map(|op| op.name());
        let larger = BinaryOp::ALL.iter().map(|op| op.name()).chain(TernaryOp::ALL.iter().map(|op| op.name()));
        let known: Vec<&str> = unary.chain(larger).collect();
        let (word, known) = (clipped(word), known.join(", "));
        format!("there is no function `{word}` of so many operands; there are {known}, and cast_ with an element type")
    })
}
