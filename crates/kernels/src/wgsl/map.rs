//! Map: one kernel for a whole elementwise expression.
//!
//! Parameters: the number of output elements; the expression's constants; for each input that is
//! read its offset in elements; if any input is strided, the output's `rank` dimensions, then
//! `rank` strides for each strided input. Without `vector` an invocation computes one output word,
//! with `vector` [`MapKernel::vectors_at_once`] vectors of four.
//!
//! With `joined` a dispatch computes many maps, all in one buffer. Parameters: the number of output
//! elements of each map; the number of maps; two unused words; the constants, padded to a multiple
//! of four; then for each map the start of its output, and of each input that is read, in vectors
//! of four. An invocation computes one vector.

use std::fmt::Write;

use panoply_core::DType;
use panoply_core::expr::{BinaryOp, Node, Program, TernaryOp, UnaryOp, Value};

use super::map_body::MapBody;
use super::prelude::{
    BITS, CIRCULAR, ENTRY, INTEGERS, MATH, POWER, TABLE, buffers, carrier, elements_per_word, load, load_from, pack,
    params, word,
};

/// The most nodes of an expression that becomes a kernel. Drivers need seconds to compile longer
/// ones.
pub const MAP_NODES_MAX: usize = 1024;

/// With up to this many nodes an invocation computes two vectors of four, otherwise one: long texts
/// take long to compile, and compute long enough to hide the latency of memory.
const TWO_VECTORS_NODES_MAX: usize = 24;

/// The most constants of an expression that are parameters. If there are more, they are literals in
/// the text.
pub const CONSTANTS_MAX: usize = 256;

/// The layout of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputLayout {
    /// Contiguous, in the order of the outputs.
    Dense,
    /// One element for every output.
    Scalar,
    /// Strided.
    Strided,
}

/// An expression with the types and layouts of its inputs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MapKernel {
    /// The expression.
    pub body: MapBody,
    /// The element type and the layout of every input, including inputs that are not read.
    pub inputs: Vec<(DType, InputLayout)>,
    /// Number of dimensions of the output, used if any input is strided.
    pub rank: u8,
    /// Four elements at a time. Requires no strided input, types of four bytes, and offsets of
    /// dense inputs that are multiples of four.
    pub vector: bool,
    /// Whether all inputs lie in one buffer of words, because they exceed the number of bindings of
    /// an adapter.
    pub arena: bool,
    /// Many maps at once, with all inputs and outputs in one buffer, and this many words of
    /// parameters, a multiple of four. Requires `vector`, no `arena`, and dense inputs.
    pub joined: Option<u16>,
}

/// Words of a joined kernel's parameters before those of its first map, without constants.
pub const JOINED_HEADER_WORDS: usize = 4;

/// Whether an expression over these types can be a kernel. The error is the reason.
pub fn map_support(program: &Program, inputs: &[DType]) -> Result<(), String> {
    if program.nodes().len() > MAP_NODES_MAX {
        let nodes = program.nodes().len();
        return Err(format!("an expression of {nodes} nodes; kernels are made of at most {MAP_NODES_MAX}"));
    }
    let types = program.types(inputs).map_err(|error| error.to_string())?;
    let wide = types.values().contains(&Value::Typed(DType::F64));
    if wide { Err("f64 in a map".to_owned()) } else { Ok(()) }
}

impl MapKernel {
    /// Number of vectors of four per invocation of a vector kernel.
    pub fn vectors_at_once(&self) -> usize {
        if self.body.nodes.len() <= TWO_VECTORS_NODES_MAX { 2 } else { 1 }
    }

    /// The indices of the inputs that the expression reads, in ascending order. These inputs are
    /// bound.
    pub fn inputs_read(program: &Program) -> Vec<usize> {
        inputs_read(program.nodes())
    }

    pub(super) fn source(&self) -> String {
        let dtypes: Vec<DType> = self.inputs.iter().map(|(dtype, _)| *dtype).collect();
        let read = inputs_read(&self.body.nodes);
        let output = self.body.output;
        let mut text = self.declarations(&read, output);
        text.push_str(BITS);
        functions(&mut text, &self.body.nodes, "p.n");
        text.push_str(&self.body.text(&read, &dtypes));
        text.push_str(ENTRY);
        let arguments = |lane: &str| read.iter().map(|index| format!("a{index}{lane}")).collect::<Vec<_>>().join(", ");
        if self.joined.is_some() {
            self.joined_vectors(&mut text, &read, output);
            return text;
        }
        if self.vector {
            self.vectors(&mut text, &read, output);
            return text;
        }
        let lanes = elements_per_word(output);
        let _ = writeln!(text, "  let w = group * 256u + lid;\n  if (w * {lanes}u >= p.n) {{ return; }}");
        let mut names = Vec::new();
        for lane in 0..lanes {
            // A word may extend beyond the last element. Its rest repeats that element.
            let _ = writeln!(text, "  let i{lane} = min(w * {lanes}u + {lane}u, p.n - 1u);");
            self.addresses(&mut text, &read, lane);
            let _ = writeln!(text, "  let r{lane} = body({});", arguments(&format!("_{lane}")));
            names.push(format!("r{lane}"));
        }
        let _ = writeln!(text, "  out[w] = {};\n}}", pack(output, &names));
        text
    }

    /// Writes the vectors of an invocation. All are read before any is written, so that their
    /// latencies overlap. Vectors beyond the end read the last one.
    fn vectors(&self, text: &mut String, read: &[usize], output: DType) {
        text.push_str("  if (group * $GROUPu >= (p.n + 3u) / 4u) { return; }\n  let last = (p.n - 1u) / 4u;\n");
        let scalar = |index: &usize| self.inputs[*index].1 == InputLayout::Scalar;
        for index in read.iter().filter(|index| scalar(index)) {
            let _ = writeln!(text, "  let a{index} = in{index}[p.o{index}];");
        }
        for number in 0..self.vectors_at_once() {
            let _ = writeln!(text, "  let i{number} = group * $GROUPu + {}u + lid;", number * 256);
            for index in read.iter().filter(|index| !scalar(index)) {
                let _ = writeln!(text, "  let a{index}_{number} = in{index}[p.o{index} / 4u + min(i{number}, last)];");
            }
        }
        for number in 0..self.vectors_at_once() {
            let lanes = ["x", "y", "z", "w"].map(|lane| {
                let argument = |index: &usize| match scalar(index) {
                    true => format!("a{index}"),
                    false => format!("a{index}_{number}.{lane}"),
                };
                format!("body({})", read.iter().map(argument).collect::<Vec<_>>().join(", "))
            });
            let vector = format!("vec4<{}>({})", carrier(output), lanes.join(", "));
            let _ = writeln!(text, "  if (i{number} <= last) {{ out[i{number}] = {vector}; }}");
        }
        text.push_str("}\n");
        *text = text.replace("$GROUP", &(256 * self.vectors_at_once()).to_string());
    }

    /// Writes the computation of one vector of one of many maps.
    fn joined_vectors(&self, text: &mut String, read: &[usize], output: DType) {
        let words = 1 + read.len();
        text.push_str("  let vectors = (p.n + 3u) / 4u;\n  let id = group * 256u + lid;\n");
        text.push_str("  let map = id / vectors;\n  if (map >= p.maps) { return; }\n  let i = id - map * vectors;\n");
        for (place, index) in read.iter().enumerate() {
            let (word, own) = (place + 1, carrier(self.inputs[*index].0));
            let place = format!("begin(map * {words}u + {word}u) + i");
            let _ = writeln!(text, "  let a{index} = bitcast<vec4<{own}>>(arena[{place}]);");
        }
        let lanes = ["x", "y", "z", "w"].map(|lane| {
            let arguments: Vec<String> = read.iter().map(|index| format!("a{index}.{lane}")).collect();
            format!("body({})", arguments.join(", "))
        });
        let vector = format!("vec4<{}>({})", carrier(output), lanes.join(", "));
        let _ = writeln!(text, "  arena[begin(map * {words}u) + i] = bitcast<vec4<u32>>({vector});\n}}");
    }

    fn declarations(&self, read: &[usize], output: DType) -> String {
        if let Some(words) = self.joined {
            let mut names = ["n", "maps", "unused", "unused_too"].map(str::to_owned).to_vec();
            names.extend(self.body.names());
            let header = names.len().next_multiple_of(4);
            names.extend((names.len()..header).map(|place| format!("filler{place}")));
            names.push(format!("table: {TABLE}{}>", (usize::from(words) - header) / 4));
            let mut text = params(&names.iter().map(String::as_str).collect::<Vec<_>>());
            text.push_str(&buffers(&[("arena", "vec4<u32>")], &[]));
            text.push_str("fn begin(word: u32) -> u32 { return p.table[word >> 2u][word & 3u]; }\n");
            return text;
        }
        let mut names = vec!["n".to_owned()];
        names.extend(self.body.names());
        names.extend(read.iter().map(|index| format!("o{index}")));
        if self.rank > 0 {
            names.extend((0..self.rank).map(|axis| format!("d{axis}")));
            for index in read.iter().filter(|index| self.inputs[**index].1 == InputLayout::Strided) {
                names.extend((0..self.rank).map(|axis| format!("s{index}_{axis}")));
            }
        }
        let mut text = params(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let out_type = if self.vector { format!("vec4<{}>", word(output)) } else { word(output).to_owned() };
        let mut reads: Vec<(String, String)> = Vec::new();
        if self.arena {
            reads.push(("arena".to_owned(), "u32".to_owned()));
        } else {
            for index in read {
                let (dtype, layout) = self.inputs[*index];
                let whole = self.vector && layout == InputLayout::Dense;
                let element = if whole { format!("vec4<{}>", word(dtype)) } else { word(dtype).to_owned() };
                reads.push((format!("in{index}"), element));
            }
        }
        let reads: Vec<(&str, &str)> = reads.iter().map(|(name, element)| (name.as_str(), element.as_str())).collect();
        text.push_str(&buffers(&[("out", &out_type)], &reads));
        for index in read.iter().filter(|_| !self.vector) {
            let (name, dtype) = (format!("in{index}"), self.inputs[*index].0);
            text.push_str(&if self.arena { load_from(&name, "arena", dtype, true) } else { load(&name, dtype) });
        }
        text
    }

    /// Writes the reads of every input's element for one output.
    fn addresses(&self, text: &mut String, read: &[usize], lane: usize) {
        let strided = |index: &&usize| self.inputs[**index].1 == InputLayout::Strided;
        if read.iter().any(|index| strided(&index)) {
            let _ = writeln!(text, "  var t{lane} = i{lane};");
            for axis in (0..self.rank).rev() {
                let _ = writeln!(text, "  let c{lane}_{axis} = t{lane} % p.d{axis}; t{lane} = t{lane} / p.d{axis};");
            }
        }
        for index in read {
            let place = match self.inputs[*index].1 {
                InputLayout::Dense => format!("p.o{index} + i{lane}"),
                InputLayout::Scalar => format!("p.o{index}"),
                InputLayout::Strided => {
                    let steps = (0..self.rank).map(|axis| format!(" + c{lane}_{axis} * p.s{index}_{axis}"));
                    format!("p.o{index}{}", steps.collect::<String>())
                }
            };
            let _ = writeln!(text, "  let a{index}_{lane} = ld_in{index}({place});");
        }
    }
}

/// Appends the functions that the nodes use. `small` is a parameter below 2^31, from which the text
/// derives a zero unknown to the compiler. Unused functions are omitted, because parsing them would
/// dominate the cost of a small kernel.
pub(super) fn functions(text: &mut String, nodes: &[Node], small: &str) {
    let uses = |wanted: fn(&Node) -> bool| nodes.iter().any(wanted);
    if uses(needs_math) {
        text.push_str(MATH);
    }
    more_functions(text, nodes, small);
}

/// Appends the functions other than [`MATH`].
pub(super) fn more_functions(text: &mut String, nodes: &[Node], small: &str) {
    let uses = |wanted: fn(&Node) -> bool| nodes.iter().any(wanted);
    if uses(|node| matches!(node, Node::Unary(UnaryOp::Sin | UnaryOp::Cos, _))) {
        text.push_str(CIRCULAR);
    }
    if uses(|node| matches!(node, Node::Binary(BinaryOp::Rem | BinaryOp::Pow, ..))) {
        let _ = writeln!(text, "fn zero_word() -> u32 {{ return {small} >> 31u; }}");
        text.push_str(POWER);
    }
    text.push_str(INTEGERS);
}

/// Whether a node is a function for which WGSL's built-in one is not accurate enough.
fn needs_math(node: &Node) -> bool {
    match node {
        Node::Unary(op, _) => !matches!(
            op,
            UnaryOp::Neg
                | UnaryOp::Abs
                | UnaryOp::Relu
                | UnaryOp::Floor
                | UnaryOp::Ceil
                | UnaryOp::Round
                | UnaryOp::Not
        ),
        Node::Binary(op, ..) => matches!(op, BinaryOp::Div | BinaryOp::Rem | BinaryOp::Pow),
        _ => false,
    }
}

/// The indices of the inputs that nodes read, in ascending order.
pub(super) fn inputs_read(nodes: &[Node]) -> Vec<usize> {
    let read = nodes.iter().filter_map(|node| match node {
        Node::Input(index) => Some(*index as usize),
        _ => None,
    });
    let mut read: Vec<usize> = read.collect();
    read.sort_unstable();
    read
}

pub(super) fn cast(from: DType, to: DType, x: &str) -> String {
    if from == to {
        return x.to_owned();
    }
    let single = match from {
        DType::I32 | DType::I8 | DType::U32 | DType::U8 => format!("f32({x})"),
        _ => x.to_owned(),
    };
    match to {
        DType::F16 => format!("unpack2x16float(half_bits({single})).x"),
        DType::BF16 => format!("bitcast<f32>(bf16_bits({single}) << 16u)"),
        DType::F32 | DType::F64 => single,
        DType::Complex64 => format!("vec2<f32>({single}, 0.0)"),
        _ if from.is_float() => format!("f32_to_{}({x})", to.name()),
        DType::I32 => format!("i32({x})"),
        DType::U32 => format!("u32({x})"),
        DType::I8 => format!("extractBits(i32({x}), 0u, 8u)"),
        DType::U8 => format!("(u32({x}) & 0xffu)"),
    }
}

/// Wraps 8-bit integers after every operation.
fn wrapped(dtype: DType, value: String) -> String {
    match dtype {
        DType::I8 => format!("extractBits({value}, 0u, 8u)"),
        DType::U8 => format!("(({value}) & 0xffu)"),
        _ => value,
    }
}

fn truth(dtype: DType, condition: &str) -> String {
    match carrier(dtype) {
        "i32" => format!("select(0i, 1i, {condition})"),
        "u32" => format!("select(0u, 1u, {condition})"),
        _ => format!("select(0.0, 1.0, {condition})"),
    }
}

/// Whether a value is zero. Floats are tested by their bits, because devices may flush subnormal
/// numbers in comparisons.
fn is_zero(dtype: DType, x: &str) -> String {
    if carrier(dtype) == "f32" { format!("is_zero({x})") } else { format!("{x} == 0") }
}

pub(super) fn unary(op: UnaryOp, dtype: DType, x: &str) -> String {
    if dtype == DType::Complex64 {
        return match op {
            UnaryOp::Recip => format!("complex_div(vec2<f32>(1.0, 0.0), {x})"),
            _ => format!("(-{x})"),
        };
    }
    let signed = matches!(dtype, DType::I32 | DType::I8);
    if dtype.is_integer() {
        return match op {
            UnaryOp::Neg if signed => wrapped(dtype, format!("(0i - {x})")),
            UnaryOp::Neg => wrapped(dtype, format!("(0u - {x})")),
            UnaryOp::Abs if signed => wrapped(dtype, format!("select({x}, 0i - {x}, {x} < 0i)")),
            UnaryOp::Relu if signed => format!("max({x}, 0i)"),
            UnaryOp::Not if signed => truth(dtype, &format!("{x} == 0i")),
            UnaryOp::Not => truth(dtype, &format!("{x} == 0u")),
            _ => x.to_owned(),
        };
    }
    match op {
        UnaryOp::Neg => format!("neg_({x})"),
        UnaryOp::Abs => format!("abs_({x})"),
        UnaryOp::Relu => format!("relu_({x})"),
        UnaryOp::Floor => format!("floor({x})"),
        UnaryOp::Ceil => format!("ceil({x})"),
        UnaryOp::Round => format!("round({x})"),
        UnaryOp::Not => truth(dtype, &is_zero(dtype, x)),
        other => format!("{}_({x})", other.name()),
    }
}

pub(super) fn binary(op: BinaryOp, dtype: DType, a: &str, b: &str) -> String {
    let is_float = carrier(dtype) == "f32";
    let compared = |operator: &str, function: &str, [a, b]: [&str; 2]| match is_float {
        true => truth(dtype, &format!("{function}_({a}, {b})")),
        false => truth(dtype, &format!("{a} {operator} {b}")),
    };
    if dtype == DType::Complex64 {
        return match op {
            BinaryOp::Add => format!("({a} + {b})"),
            BinaryOp::Sub => format!("({a} - {b})"),
            BinaryOp::Mul => format!("complex_mul({a}, {b})"),
            _ => format!("complex_div({a}, {b})"),
        };
    }
    let name = carrier(dtype);
    match op {
        BinaryOp::Add => wrapped(dtype, format!("({a} + {b})")),
        BinaryOp::Sub => wrapped(dtype, format!("({a} - {b})")),
        BinaryOp::Mul => wrapped(dtype, format!("({a} * {b})")),
        BinaryOp::Div if name == "f32" => format!("div_({a}, {b})"),
        BinaryOp::Rem if name == "f32" => format!("rem_({a}, {b})"),
        BinaryOp::Pow if name == "f32" => format!("pow_({a}, {b})"),
        BinaryOp::Min if name == "f32" => format!("min_({a}, {b})"),
        BinaryOp::Max if name == "f32" => format!("max_({a}, {b})"),
        BinaryOp::Div | BinaryOp::Rem | BinaryOp::Pow => wrapped(dtype, format!("{}_{name}({a}, {b})", op.name())),
        BinaryOp::Min => format!("min({a}, {b})"),
        BinaryOp::Max => format!("max({a}, {b})"),
        BinaryOp::Eq => compared("==", "eq", [a, b]),
        BinaryOp::Ne if is_float => truth(dtype, &format!("!eq_({a}, {b})")),
        BinaryOp::Ne => truth(dtype, &format!("{a} != {b}")),
        BinaryOp::Lt => compared("<", "lt", [a, b]),
        BinaryOp::Le => compared("<=", "le", [a, b]),
        BinaryOp::Gt => compared("<", "lt", [b, a]),
        BinaryOp::Ge => compared("<=", "le", [b, a]),
        BinaryOp::And => truth(dtype, &format!("!({}) && !({})", is_zero(dtype, a), is_zero(dtype, b))),
        BinaryOp::Or => truth(dtype, &format!("!({}) || !({})", is_zero(dtype, a), is_zero(dtype, b))),
    }
}

pub(super) fn ternary(op: TernaryOp, dtype: DType, a: &str, b: &str, c: &str) -> String {
    match op {
        TernaryOp::Select => format!("select({b}, {c}, {})", is_zero(dtype, a)),
        TernaryOp::Clamp => {
            let lower = binary(BinaryOp::Max, dtype, a, b);
            binary(BinaryOp::Min, dtype, &lower, c)
        }
        TernaryOp::MulAdd => {
            let product = binary(BinaryOp::Mul, dtype, a, b);
            binary(BinaryOp::Add, dtype, &product, c)
        }
    }
}
