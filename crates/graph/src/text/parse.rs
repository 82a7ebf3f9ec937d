//! From text to a graph.

use std::collections::HashMap;

use panoply_core::expr::{BinaryOp, Expr, TernaryOp, UnaryOp};
use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::Map;
use panoply_core::{DType, Shape};

use super::lexer::{Line, clipped};
use super::ops::{Argument, Arguments, build, dtype_named, dtype_names};
use super::{CONSTANT_BYTES_MAX, EXPRESSION_NODES_MAX, TEXT_BYTES_MAX, TextError, values};

/// The most operands of a node and numbers of a list.
const LIST_MAX: usize = 64;

/// Reads a graph.
pub fn parse(text: &str) -> Result<Graph, TextError> {
    if text.len() > TEXT_BYTES_MAX {
        let reason = format!("expected at most {TEXT_BYTES_MAX} bytes of text, got {}", text.len());
        return Err(TextError { line: 1, reason });
    }
    let mut reader = Reader::new(text);
    let mut last = 1;
    for (index, line) in text.lines().enumerate() {
        last = index + 1;
        let mut line = Line::new(line);
        if !line.is_empty() {
            reader.statement(&mut line).map_err(|reason| TextError { line: last, reason })?;
        }
    }
    reader.builder.finish().map_err(|error| TextError { line: last, reason: error.to_string() })
}

struct Reader<'a> {
    text: &'a str,
    builder: GraphBuilder,
    nodes: HashMap<String, NodeId>,
    symbols: HashMap<String, Dim>,
    constant_bytes: usize,
    is_named: bool,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Reader<'a> {
        let (nodes, symbols) = (HashMap::new(), HashMap::new());
        Reader { text, builder: Graph::builder("graph"), nodes, symbols, constant_bytes: 0, is_named: false }
    }

    /// One line. The words that begin statements are names of nodes too: `output = relu(x)` makes one.
    fn statement(&mut self, line: &mut Line<'_>) -> Result<(), String> {
        let word = line.name().ok_or_else(|| format!("expected a statement, got {}", line.rest()))?;
        match word {
            "graph" if !line.is_next("=") => self.graph(line)?,
            "symbol" if !line.is_next("=") => {
                let name = expect_name(line)?;
                let dim = self.builder.symbol(name).map_err(|error| error.to_string())?;
                self.symbols.insert(name.to_owned(), dim);
            }
            "input" if !line.is_next("=") => {
                let (name, dtype, dims) = self.declaration(line)?;
                let node = self.builder.input(name, dtype, &dims).map_err(|error| error.to_string())?;
                self.nodes.insert(name.to_owned(), node);
            }
            "const" if !line.is_next("=") => self.constant(line)?,
            "output" if !line.is_next("=") => {
                let name = expect_name(line)?;
                let node = if line.takes("=") { expect_name(line)? } else { name };
                let node = self.node(node)?;
                self.builder.output(name, node).map_err(|error| error.to_string())?;
            }
            name => self.assignment(name, line)?,
        }
        if line.is_empty() { Ok(()) } else { Err(format!("expected the end of the line, got {}", line.rest())) }
    }

    fn graph(&mut self, line: &mut Line<'_>) -> Result<(), String> {
        let name = expect_name(line)?;
        if self.is_named || !self.nodes.is_empty() || !self.symbols.is_empty() {
            return Err("expected `graph` once, before everything else".to_owned());
        }
        self.is_named = true;
        self.builder = Graph::builder(name);
        Ok(())
    }

    /// `name dtype [dims]`.
    fn declaration<'l>(&mut self, line: &mut Line<'l>) -> Result<(&'l str, DType, Vec<Dim>), String> {
        let name = expect_name(line)?;
        let word = line.name().unwrap_or_default();
        let dtype = dtype_named(word).ok_or_else(|| {
            format!("expected an element type ({}) after the name, got `{}`", dtype_names(), clipped(word))
        })?;
        Ok((name, dtype, self.dims(line)?))
    }

    fn constant(&mut self, line: &mut Line<'_>) -> Result<(), String> {
        let (name, dtype, dims) = self.declaration(line)?;
        let sizes: Option<Vec<usize>> = dims.iter().map(Dim::as_fixed).collect();
        let sizes = sizes.ok_or("expected numbers as the dimensions of a constant, got a symbol")?;
        let shape = Shape::new(sizes).map_err(|error| error.to_string())?;
        self.constant_bytes = self.constant_bytes.saturating_add(shape.elements().saturating_mul(dtype.size_bytes()));
        if self.constant_bytes > CONSTANT_BYTES_MAX {
            return Err(format!("expected at most {CONSTANT_BYTES_MAX} bytes of constants, got more"));
        }
        if !line.takes("=") {
            return Err(format!("expected `=` and the values, got {}", line.rest()));
        }
        let tensor = values::read(line, dtype, shape)?;
        let node = self.builder.constant(name, &tensor).map_err(|error| error.to_string())?;
        self.nodes.insert(name.to_owned(), node);
        Ok(())
    }

    /// `name = op(operands, argument=value, …)`.
    fn assignment(&mut self, name: &str, line: &mut Line<'_>) -> Result<(), String> {
        if !line.takes("=") {
            return Err(format!("expected `=` after `{}`, got {}", clipped(name), line.rest()));
        }
        let op = expect_name(line)?;
        if !line.takes("(") {
            return Err(format!("expected `(` after `{}`, got {}", clipped(op), line.rest()));
        }
        let (operands, mut arguments, dims) = self.operands(line)?;
        let node = match (op, operands.as_slice(), dims) {
            ("reshape", [x], Some(dims)) => self.builder.reshape(*x, &dims).map_err(|error| error.to_string()),
            ("broadcast", [x], Some(dims)) => self.builder.broadcast(*x, &dims).map_err(|error| error.to_string()),
            ("reshape" | "broadcast", ..) => return Err(format!("expected `{op}(x, to=[…])`")),
            ("map", _, None) => self.map(&operands, line),
            (_, _, Some(_)) => return Err(format!("`{op}` has no argument `to` that is a shape")),
            _ => build(&mut self.builder, op, &operands, &mut arguments),
        };
        let node = node.map_err(|reason| in_the_file(reason, name, op))?;
        if let Some(unknown) = arguments.0.keys().next() {
            return Err(format!("`{op}` has no argument `{}`", clipped(unknown)));
        }
        self.builder.rename(node, name).map_err(|error| error.to_string())?;
        self.nodes.insert(name.to_owned(), node);
        Ok(())
    }

    /// Names, then arguments, up to the closing parenthesis. A shape is an argument of its own.
    #[allow(clippy::type_complexity)] // Three lists, named where they are used.
    fn operands(&mut self, line: &mut Line<'_>) -> Result<(Vec<NodeId>, Arguments, Option<Vec<Dim>>), String> {
        let (mut operands, mut arguments, mut shape) = (Vec::new(), Arguments::default(), None);
        while !line.takes(")") {
            let word = expect_name(line)?;
            if !line.takes("=") {
                operands.push(self.node(word)?);
            } else if arguments.0.contains_key(word) || (word == "to" && shape.is_some()) {
                return Err(format!("expected `{}=` once", clipped(word)));
            } else if word == "to" && line.is_next("[") {
                shape = Some(self.dims(line)?);
            } else {
                arguments.0.insert(word.to_owned(), argument(line)?);
            }
            if !line.takes(",") && !line.is_next(")") {
                return Err(format!("expected `,` or `)`, got {}", line.rest()));
            }
            if operands.len() > LIST_MAX || arguments.0.len() > LIST_MAX {
                return Err(format!("expected at most {LIST_MAX} operands, got more"));
            }
        }
        Ok((operands, arguments, shape))
    }

    /// `{ %0 = x0; %1 = 2; %2 = mul(%0, %1) }`: an expression of the operands.
    fn map(&mut self, operands: &[NodeId], line: &mut Line<'_>) -> Result<NodeId, String> {
        if !line.takes("{") {
            return Err(format!("expected `{{` and an expression, got {}", line.rest()));
        }
        let body = line.until("}").ok_or("expected `}` after the expression")?;
        let mut values: Vec<Expr> = Vec::new();
        for part in body.split(';') {
            if values.len() == EXPRESSION_NODES_MAX {
                return Err(format!("expected at most {EXPRESSION_NODES_MAX} nodes of an expression, got more"));
            }
            let mut part = Line::new(part);
            let place = part.name().and_then(|name| name.strip_prefix('%')?.parse::<usize>().ok());
            if place != Some(values.len()) || !part.takes("=") {
                return Err(format!("expected `%{} =` in the expression, got {}", values.len(), part.rest()));
            }
            let value = expression_node(&mut part, &values)?;
            if !part.is_empty() {
                return Err(format!("expected `;` or `}}` after %{}, got {}", values.len(), part.rest()));
            }
            values.push(value);
        }
        let last = values.pop().ok_or("expected an expression")?;
        let made = self.builder.op(operands, |t| Map::new(last, &t.iter().collect::<Vec<_>>()));
        made.map_err(|error| error.to_string())
    }

    fn node(&self, name: &str) -> Result<NodeId, String> {
        if let Some(node) = self.nodes.get(name) {
            return Ok(*node);
        }
        let defines = |line: &str| {
            let mut line = Line::new(line);
            line.name() == Some(name) && line.takes("=")
        };
        match self.text.lines().position(defines) {
            Some(line) => {
                Err(format!("`{name}` is made in line {}, after it is used: a graph has no cycles", line + 1))
            }
            None => Err(format!("there is no node `{}`", clipped(name))),
        }
    }

    /// `[batch, 784, 2*batch]`.
    fn dims(&self, line: &mut Line<'_>) -> Result<Vec<Dim>, String> {
        if !line.takes("[") {
            return Err(format!("expected `[` and dimensions, got {}", line.rest()));
        }
        let mut dims = Vec::new();
        while !line.takes("]") {
            let mut dim = Dim::fixed(1);
            loop {
                dim = match line.size() {
                    Some(size) => dim * size,
                    None => {
                        let name = expect_name(line)?;
                        let symbol = self.symbols.get(name);
                        dim * *symbol.ok_or_else(|| format!("there is no symbol `{}`", clipped(name)))?
                    }
                };
                if !line.takes("*") {
                    break;
                }
            }
            dims.push(dim);
            if !line.takes(",") && !line.is_next("]") {
                return Err(format!("expected `,` or `]`, got {}", line.rest()));
            }
            if dims.len() > LIST_MAX {
                return Err(format!("expected at most {LIST_MAX} dimensions, got more"));
            }
        }
        Ok(dims)
    }
}

/// What the builder says of a node which it knows by its number alone, with the file's names of the node and of its op.
fn in_the_file(reason: String, name: &str, op: &str) -> String {
    let numbered = reason.strip_prefix('n').map(|rest| rest.trim_start_matches(|letter: char| letter.is_ascii_digit()));
    match numbered.and_then(|rest| rest.strip_prefix(" = ")).and_then(|rest| rest.split_once('(')) {
        Some((_, rest)) => format!("{name} = {op}({rest}"),
        None => reason,
    }
}

fn expect_name<'l>(line: &mut Line<'l>) -> Result<&'l str, String> {
    line.name().ok_or_else(|| format!("expected a name, got {}", line.rest()))
}

/// A number, a list of whole numbers, or a word.
fn argument(line: &mut Line<'_>) -> Result<Argument, String> {
    if line.takes("[") {
        let mut sizes = Vec::new();
        while !line.takes("]") {
            sizes.push(line.size().ok_or_else(|| format!("expected a whole number or `]`, got {}", line.rest()))?);
            line.takes(",");
            if sizes.len() > LIST_MAX {
                return Err(format!("expected at most {LIST_MAX} numbers, got more"));
            }
        }
        return Ok(Argument::Sizes(sizes));
    }
    match line.number() {
        Some(number) => Ok(Argument::Number(number)),
        None => Ok(Argument::Word(expect_name(line)?.to_owned())),
    }
}

/// One node of an expression: an input, a constant, or a function of earlier nodes.
fn expression_node(part: &mut Line<'_>, values: &[Expr]) -> Result<Expr, String> {
    if let Some(number) = part.number() {
        return Ok(Expr::constant(number));
    }
    let word = expect_name(part)?;
    if let Some(index) = word.strip_prefix('x').and_then(|index| index.parse::<u32>().ok()) {
        return Ok(Expr::input(index));
    }
    let mut operands = Vec::new();
    if part.takes("(") {
        while !part.takes(")") {
            let known = part.name().and_then(|name| values.get(name.strip_prefix('%')?.parse::<usize>().ok()?));
            operands.push(
                known.ok_or_else(|| format!("expected an earlier node such as %0, got {}", part.rest()))?.clone(),
            );
            part.takes(",");
            if operands.len() > 3 {
                return Err("expected at most three operands in an expression".to_owned());
            }
        }
    }
    let mut operands = operands.into_iter();
    let made = match (operands.next(), operands.next(), operands.next()) {
        (Some(a), None, None) => match word.strip_prefix("cast_").and_then(dtype_named) {
            Some(dtype) => Some(a.cast(dtype)),
            None => UnaryOp::ALL.iter().find(|op| op.name() == word).map(|op| a.unary(*op)),
        },
        (Some(a), Some(b), None) => BinaryOp::ALL.iter().find(|op| op.name() == word).map(|op| a.binary(*op, b)),
        (Some(a), Some(b), Some(c)) => {
            TernaryOp::ALL.iter().find(|op| op.name() == word).map(|op| a.ternary(*op, b, c))
        }
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
