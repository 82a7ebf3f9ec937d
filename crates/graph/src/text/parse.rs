//! Parses a graph.

use std::collections::HashMap;

use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{Map, RowFunction, RowMap};
use panoply_core::{DType, Error, Shape};

use super::fields::needed;
use super::lexer::{LineLexer, clipped};
use super::ops::{Argument, Arguments, build, dtype_named, dtype_names};
use super::{CONSTANT_BYTES_MAX, LIST_NUMBERS_MAX, TEXT_BYTES_MAX, TextError, expression, table, values};

/// Maximal number of operands of a node, arguments of a node, and dimensions of a shape.
const LIST_MAX: usize = 64;

/// Parses a graph.
pub fn parse(text: &str) -> Result<Graph, TextError> {
    if text.len() > TEXT_BYTES_MAX {
        let reason = format!("expected at most {TEXT_BYTES_MAX} bytes of text, got {}", text.len());
        return Err(TextError { line: 1, reason });
    }
    let mut reader = GraphParser::new(text);
    let mut last = 1;
    for (index, line) in text.lines().enumerate() {
        last = index + 1;
        let mut line = LineLexer::new(line);
        if !line.is_empty() {
            reader.statement(&mut line).map_err(|reason| TextError { line: last, reason })?;
        }
    }
    reader.builder.finish().map_err(|error| {
        let declared = match &error {
            Error::UnboundSymbol { symbol, .. } => text.lines().position(|line| declares(line, symbol)),
            _ => None,
        };
        TextError { line: declared.map_or(last, |index| index + 1), reason: error.to_string() }
    })
}

/// Whether a line declares this symbol.
fn declares(line: &str, symbol: &str) -> bool {
    let mut line = LineLexer::new(line);
    line.name() == Some("symbol") && line.name() == Some(symbol)
}

struct GraphParser<'a> {
    text: &'a str,
    builder: GraphBuilder,
    nodes: HashMap<String, NodeId>,
    /// The second output of an op, by the first.
    seconds: HashMap<NodeId, NodeId>,
    symbols: HashMap<String, Dim>,
    constant_bytes: usize,
    is_named: bool,
}

impl<'a> GraphParser<'a> {
    fn new(text: &'a str) -> GraphParser<'a> {
        let (nodes, seconds, symbols) = (HashMap::new(), HashMap::new(), HashMap::new());
        GraphParser {
            text,
            builder: Graph::builder("graph"),
            nodes,
            seconds,
            symbols,
            constant_bytes: 0,
            is_named: false,
        }
    }

    /// Parses one line. The words that begin statements are also valid names of nodes: `output =
    /// relu(x)` defines one.
    fn statement(&mut self, line: &mut LineLexer<'_>) -> Result<(), String> {
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

    fn graph(&mut self, line: &mut LineLexer<'_>) -> Result<(), String> {
        let name = expect_name(line)?;
        if self.is_named || !self.nodes.is_empty() || !self.symbols.is_empty() {
            return Err("expected `graph` once, before everything else".to_owned());
        }
        self.is_named = true;
        self.builder = Graph::builder(name);
        Ok(())
    }

    /// `name dtype [dims]`.
    fn declaration<'l>(&mut self, line: &mut LineLexer<'l>) -> Result<(&'l str, DType, Vec<Dim>), String> {
        let name = expect_name(line)?;
        let word = line.name().unwrap_or_default();
        let dtype = dtype_named(word).ok_or_else(|| {
            format!("expected an element type ({}) after the name, got `{}`", dtype_names(), clipped(word))
        })?;
        Ok((name, dtype, self.dims(line)?))
    }

    fn constant(&mut self, line: &mut LineLexer<'_>) -> Result<(), String> {
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
    fn assignment(&mut self, name: &str, line: &mut LineLexer<'_>) -> Result<(), String> {
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
            ("row_map", _, None) => self.row_map(&operands, &mut arguments, line),
            ("part", [x], None) if arguments.size("port")? == Some(1) => {
                self.seconds.get(x).copied().ok_or_else(|| "expected an op with two outputs".to_owned())
            }
            ("part", ..) => return Err("expected `part(x, port=1)`".to_owned()),
            (_, _, Some(_)) => return Err(format!("`{op}` has no argument `to` that is a shape")),
            _ => match table::build(&mut self.builder, op, &operands, &mut arguments) {
                Some(made) => made.map(|(first, second)| {
                    second.map(|second| self.seconds.insert(first, second));
                    first
                }),
                None => build(&mut self.builder, op, &operands, &mut arguments),
            },
        };
        let node = node.map_err(|reason| in_the_file(reason, name, op))?;
        if let Some(unknown) = arguments.0.keys().next() {
            return Err(format!("`{op}` has no argument `{}`", clipped(unknown)));
        }
        self.builder.rename(node, name).map_err(|error| error.to_string())?;
        self.nodes.insert(name.to_owned(), node);
        Ok(())
    }

    /// Names, then arguments, up to the closing parenthesis. A shape is an argument of its own
    /// kind.
    #[allow(clippy::type_complexity)] // Three lists, named where they are used.
    fn operands(&mut self, line: &mut LineLexer<'_>) -> Result<(Vec<NodeId>, Arguments, Option<Vec<Dim>>), String> {
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

    /// `map(x, …) { … }`: an expression of the operands.
    fn map(&mut self, operands: &[NodeId], line: &mut LineLexer<'_>) -> Result<NodeId, String> {
        let expression = expression::read(line)?;
        let made = self.builder.op(operands, |t| Map::new(expression, &t.iter().collect::<Vec<_>>()));
        made.map_err(|error| error.to_string())
    }

    /// `row_map(x, …, inputs=1, by=softmax) { before } { after }`: a function of the rows of
    /// `before`, which takes the first operands, and `after` of its result and the other operands.
    fn row_map(&mut self, operands: &[NodeId], a: &mut Arguments, line: &mut LineLexer<'_>) -> Result<NodeId, String> {
        let inputs = a.size("inputs")?.unwrap_or(operands.len());
        if inputs > operands.len() {
            return Err(format!("expected `inputs=` at most {}, as there are operands, got {inputs}", operands.len()));
        }
        let function: RowFunction = needed("by", a)?;
        let (before, after) = (expression::read(line)?, expression::read(line)?);
        let made = self.builder.op(operands, |t| {
            let t: Vec<_> = t.iter().collect();
            let (inputs, more) = t.split_at(inputs);
            RowMap::new(before, inputs, function).after(after, more)
        });
        made.map_err(|error| error.to_string())
    }

    fn node(&self, name: &str) -> Result<NodeId, String> {
        if let Some(node) = self.nodes.get(name) {
            return Ok(*node);
        }
        let defines = |line: &str| {
            let mut line = LineLexer::new(line);
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
    fn dims(&self, line: &mut LineLexer<'_>) -> Result<Vec<Dim>, String> {
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

/// Replaces the builder's name of a node, which is only a number, by the file's names of the node
/// and of its op.
fn in_the_file(reason: String, name: &str, op: &str) -> String {
    let numbered = reason.strip_prefix('n').map(|rest| rest.trim_start_matches(|letter: char| letter.is_ascii_digit()));
    match numbered.and_then(|rest| rest.strip_prefix(" = ")).and_then(|rest| rest.split_once('(')) {
        Some((_, rest)) => format!("{name} = {op}({rest}"),
        None => reason,
    }
}

fn expect_name<'l>(line: &mut LineLexer<'l>) -> Result<&'l str, String> {
    line.name().ok_or_else(|| format!("expected a name, got {}", line.rest()))
}

/// A number, a list of numbers, or a word.
fn argument(line: &mut LineLexer<'_>) -> Result<Argument, String> {
    if line.takes("[") {
        let mut numbers = Vec::new();
        while !line.takes("]") {
            numbers.push(line.numeral().ok_or_else(|| format!("expected a number or `]`, got {}", line.rest()))?);
            line.takes(",");
            if numbers.len() > LIST_NUMBERS_MAX {
                return Err(format!("expected at most {LIST_NUMBERS_MAX} numbers, got more"));
            }
        }
        return Ok(Argument::List(numbers));
    }
    match line.numeral() {
        Some(number) => Ok(Argument::Number(number)),
        None => Ok(Argument::Word(expect_name(line)?.to_owned())),
    }
}
