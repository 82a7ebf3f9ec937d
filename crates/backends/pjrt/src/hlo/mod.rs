//! StableHLO as text: values with their types, written one op a line in MLIR's generic form, which changes least between versions.
//!
//! * `element`: element types, and constants of them.
//! * `view`: strided views of what lies one element after the other.
//! * `expr`: elementwise expressions.
//!
//! Nothing here knows of Panoply's ops; `crate::ops` does.

mod element;
mod expr;
mod view;

use std::fmt::Write;

pub(crate) use element::Element;
pub(crate) use expr::{carried, carrier, expression, stored};

/// A value of the program: its number, element type and dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    name: String,
    pub(crate) element: Element,
    pub(crate) dims: Vec<usize>,
}

impl Value {
    /// The value's type as MLIR writes it: `tensor<2x3xf32>`.
    fn kind(&self) -> String {
        tensor_type(self.element, &self.dims)
    }

    pub(crate) fn rank(&self) -> usize {
        self.dims.len()
    }

    pub(crate) fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

fn tensor_type(element: Element, dims: &[usize]) -> String {
    let mut text = "tensor<".to_owned();
    for dim in dims {
        let _ = write!(text, "{dim}x"); // Writing into a string does not fail.
    }
    text + element.name() + ">"
}

/// How two numbers compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// A program while it is written: one function, whose arguments are known from the beginning.
pub(crate) struct Writer {
    body: String,
    arguments: Vec<Value>,
    next: usize,
}

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer { body: String::new(), arguments: Vec::new(), next: 0 }
    }

    /// A further argument of the program.
    pub(crate) fn argument(&mut self, element: Element, dims: &[usize]) -> Value {
        let value = Value { name: format!("%a{}", self.arguments.len()), element, dims: dims.to_vec() };
        self.arguments.push(value.clone());
        value
    }

    /// The whole program, which answers with these values.
    pub(crate) fn finish(self, results: &[Value]) -> String {
        let arguments: Vec<String> =
            self.arguments.iter().map(|value| format!("{}: {}", value.name, value.kind())).collect();
        let kinds = results.iter().map(Value::kind).collect::<Vec<_>>().join(", ");
        let names = results.iter().map(|value| value.name.as_str()).collect::<Vec<_>>().join(", ");
        let (arguments, body) = (arguments.join(", "), self.body);
        format!(
            "module @panoply {{\nfunc.func public @main({arguments}) -> ({kinds}) {{\n{body}\"func.return\"({names}) : ({kinds}) -> ()\n}}\n}}\n"
        )
    }

    fn name(&mut self) -> String {
        self.next += 1;
        format!("%{}", self.next - 1)
    }

    /// One op with one result. The attributes are what stands between the braces.
    pub(crate) fn op(
        &mut self,
        op: &str,
        operands: &[&Value],
        attributes: &str,
        element: Element,
        dims: &[usize],
    ) -> Value {
        self.op_with_region(op, operands, "", attributes, element, dims)
    }

    /// As [`Writer::op`], with regions between parentheses.
    fn op_with_region(
        &mut self,
        op: &str,
        operands: &[&Value],
        region: &str,
        attributes: &str,
        element: Element,
        dims: &[usize],
    ) -> Value {
        let value = Value { name: self.name(), element, dims: dims.to_vec() };
        let names = operands.iter().map(|value| value.name.as_str()).collect::<Vec<_>>().join(", ");
        let kinds = operands.iter().map(|value| value.kind()).collect::<Vec<_>>().join(", ");
        let dialect = if op.contains('.') { "" } else { "stablehlo." };
        // Writing into a string does not fail.
        let _ = writeln!(
            self.body,
            "{} = \"{dialect}{op}\"({names}){region} {{{attributes}}} : ({kinds}) -> {}",
            value.name,
            value.kind()
        );
        value
    }

    /// An op whose result is like its first operand.
    pub(crate) fn like(&mut self, op: &str, operands: &[&Value]) -> Value {
        let (element, dims) = (operands[0].element, operands[0].dims.clone());
        self.op(op, operands, "", element, &dims)
    }

    /// `a op b` as booleans.
    pub(crate) fn compare(&mut self, direction: Compare, a: &Value, b: &Value) -> Value {
        let word = match direction {
            Compare::Eq => "EQ",
            Compare::Ne => "NE",
            Compare::Lt => "LT",
            Compare::Le => "LE",
            Compare::Gt => "GT",
            Compare::Ge => "GE",
        };
        let attribute = format!("comparison_direction = #stablehlo<comparison_direction {word}>");
        self.op("compare", &[a, b], &attribute, Element::Bool, &a.dims)
    }

    /// `yes` where the condition holds, else `no`.
    pub(crate) fn select(&mut self, condition: &Value, yes: &Value, no: &Value) -> Value {
        self.op("select", &[condition, yes, no], "", yes.element, &yes.dims)
    }

    /// The larger or the smaller of two numbers; NaN where either is. Compilers may take StableHLO's own op for one that passes over NaN.
    pub(crate) fn extreme(&mut self, direction: Compare, a: &Value, b: &Value) -> Value {
        let beyond = self.compare(direction, a, b);
        let is_nan = self.compare(Compare::Ne, a, a);
        let first = self.op("or", &[&beyond, &is_nan], "", Element::Bool, &a.dims);
        self.select(&first, a, b)
    }

    /// The number in every place of a tensor.
    pub(crate) fn constant(&mut self, value: f64, element: Element, dims: &[usize]) -> Value {
        let attribute = format!("value = dense<{}> : {}", element.literal(value), tensor_type(element, &[]));
        let scalar = self.op("constant", &[], &attribute, element, &[]);
        self.broadcast(&scalar, &[], dims)
    }

    /// A list of numbers.
    pub(crate) fn list(&mut self, values: &[f64], element: Element) -> Value {
        let dims = [values.len()];
        if values.is_empty() {
            return self.constant(0.0, element, &dims);
        }
        let texts: Vec<String> = values.iter().map(|value| element.literal(*value)).collect();
        let attribute = format!("value = dense<[{}]> : {}", texts.join(", "), tensor_type(element, &dims));
        self.op("constant", &[], &attribute, element, &dims)
    }

    /// The numbers 0, 1, … along one axis.
    pub(crate) fn iota(&mut self, axis: usize, element: Element, dims: &[usize]) -> Value {
        self.op("iota", &[], &format!("iota_dimension = {axis} : i64"), element, dims)
    }

    /// The same numbers in another element type, by the plugin's own conversion.
    pub(crate) fn convert(&mut self, value: &Value, element: Element) -> Value {
        if value.element == element {
            return value.clone();
        }
        self.op("convert", &[value], "", element, &value.dims)
    }

    pub(crate) fn reshape(&mut self, value: &Value, dims: &[usize]) -> Value {
        if value.dims == dims {
            return value.clone();
        }
        self.op("reshape", &[value], "", value.element, dims)
    }

    /// The axes in another order: `order[i]` is the old axis that becomes axis `i`.
    pub(crate) fn transpose(&mut self, value: &Value, order: &[usize]) -> Value {
        if order.iter().enumerate().all(|(place, axis)| place == *axis) {
            return value.clone();
        }
        let dims: Vec<usize> = order.iter().map(|axis| value.dims[*axis]).collect();
        self.op("transpose", &[value], &format!("permutation = {}", array(order)), value.element, &dims)
    }

    /// Stretches a value: its axis `i` becomes axis `axes[i]` of the result. The axes rise.
    pub(crate) fn broadcast(&mut self, value: &Value, axes: &[usize], dims: &[usize]) -> Value {
        if value.dims == dims {
            return value.clone();
        }
        let attribute = format!("broadcast_dimensions = {}", array(axes));
        self.op("broadcast_in_dim", &[value], &attribute, value.element, dims)
    }

    /// Stretches a value as numpy does: its last axis is the result's last.
    pub(crate) fn stretch(&mut self, value: &Value, dims: &[usize]) -> Value {
        let added = dims.len() - value.rank();
        let axes: Vec<usize> = (added..dims.len()).collect();
        self.broadcast(value, &axes, dims)
    }

    /// What lies from `start` below `end` along each axis, in steps of one.
    pub(crate) fn slice(&mut self, value: &Value, start: &[usize], end: &[usize]) -> Value {
        let dims: Vec<usize> = start.iter().zip(end).map(|(start, end)| end - start).collect();
        if dims == value.dims {
            return value.clone();
        }
        let ones = vec![1; dims.len()];
        let attribute =
            format!("start_indices = {}, limit_indices = {}, strides = {}", array(start), array(end), array(&ones));
        self.op("slice", &[value], &attribute, value.element, &dims)
    }

    /// As [`Writer::slice`], along one axis.
    pub(crate) fn slice_axis(&mut self, value: &Value, axis: usize, start: usize, end: usize) -> Value {
        let (mut low, mut high) = (vec![0; value.rank()], value.dims.clone());
        (low[axis], high[axis]) = (start, end);
        self.slice(value, &low, &high)
    }

    /// Adds elements around a value: so many before and after, on each axis.
    pub(crate) fn pad(&mut self, value: &Value, with: f64, before: &[usize], after: &[usize]) -> Value {
        let sizes = value.dims.iter().zip(before).zip(after);
        let dims: Vec<usize> = sizes.map(|((dim, before), after)| dim + before + after).collect();
        if dims == value.dims {
            return value.clone();
        }
        let filler = self.constant(with, value.element, &[]);
        let none = vec![0; dims.len()];
        let attribute = format!(
            "edge_padding_low = {}, edge_padding_high = {}, interior_padding = {}",
            array(before),
            array(after),
            array(&none)
        );
        self.op("pad", &[value, &filler], &attribute, value.element, &dims)
    }

    /// Adds elements at both ends of one axis.
    pub(crate) fn pad_axis(&mut self, value: &Value, with: f64, axis: usize, before: usize, after: usize) -> Value {
        let (mut low, mut high) = (vec![0; value.rank()], vec![0; value.rank()]);
        (low[axis], high[axis]) = (before, after);
        self.pad(value, with, &low, &high)
    }

    /// Turns axes round.
    pub(crate) fn reverse(&mut self, value: &Value, axes: &[usize]) -> Value {
        if axes.is_empty() {
            return value.clone();
        }
        self.op("reverse", &[value], &format!("dimensions = {}", array(axes)), value.element, &value.dims)
    }

    pub(crate) fn concatenate(&mut self, values: &[&Value], axis: usize) -> Value {
        let mut dims = values[0].dims.clone();
        dims[axis] = values.iter().map(|value| value.dims[axis]).sum();
        self.op("concatenate", values, &format!("dimension = {axis} : i64"), values[0].element, &dims)
    }

    /// Joins elements along axes with `add`, `maximum`, …; the axes disappear.
    pub(crate) fn reduce(&mut self, op: &str, value: &Value, initial: f64, axes: &[usize]) -> Value {
        if axes.is_empty() {
            return value.clone();
        }
        let kept = (0..value.rank()).filter(|axis| !axes.contains(axis));
        let dims: Vec<usize> = kept.map(|axis| value.dims[axis]).collect();
        let start = self.constant(initial, value.element, &[]);
        let (region, attribute) = (joining(op, value.element), format!("dimensions = {}", array(axes)));
        self.op_with_region("reduce", &[value, &start], &region, &attribute, value.element, &dims)
    }

    /// As [`Writer::reduce`]; the axes stay, stretched to what they were.
    pub(crate) fn reduce_stretched(&mut self, op: &str, value: &Value, initial: f64, axes: &[usize]) -> Value {
        let reduced = self.reduce(op, value, initial, axes);
        let kept: Vec<usize> = (0..value.rank()).filter(|axis| !axes.contains(axis)).collect();
        self.broadcast(&reduced, &kept, &value.dims)
    }

    /// Joins the elements of windows with `add` or `maximum`.
    pub(crate) fn reduce_window(&mut self, op: &str, value: &Value, initial: f64, window: &Window) -> Value {
        let dims: Vec<usize> = (0..value.rank())
            .map(|axis| {
                let [before, after] = window.padding[axis];
                (value.dims[axis] + before + after - window.size[axis]) / window.stride[axis] + 1
            })
            .collect();
        let start = self.constant(initial, value.element, &[]);
        let rows: Vec<String> = window.padding.iter().map(|[before, after]| format!("[{before}, {after}]")).collect();
        let ones = vec![1; value.rank()];
        let attribute = format!(
            "window_dimensions = {}, window_strides = {}, base_dilations = {}, window_dilations = {}, padding = dense<[{}]> : tensor<{}x2xi64>",
            array(&window.size),
            array(&window.stride),
            array(&ones),
            array(&ones),
            rows.join(", "),
            value.rank()
        );
        let region = joining(op, value.element);
        self.op_with_region("reduce_window", &[value, &start], &region, &attribute, value.element, &dims)
    }

    /// Sorts values together along an axis. The order is that of the first: `before` makes the answer of its two elements.
    pub(crate) fn sort(
        &mut self,
        values: &[&Value],
        axis: usize,
        before: impl FnOnce(&mut Writer, &Value, &Value) -> Value,
    ) -> Vec<Value> {
        let mut inner = Writer { body: String::new(), arguments: Vec::new(), next: self.next };
        let mut pairs = Vec::new();
        for value in values {
            for _ in 0..2 {
                pairs.push(Value { name: inner.name(), element: value.element, dims: Vec::new() });
            }
        }
        let answer = before(&mut inner, &pairs[0], &pairs[1]);
        let header: Vec<String> = pairs.iter().map(|value| format!("{}: {}", value.name, value.kind())).collect();
        self.next = inner.next;
        let whole = self.name();
        let names = values.iter().map(|value| value.name.as_str()).collect::<Vec<_>>().join(", ");
        let kinds = values.iter().map(|value| value.kind()).collect::<Vec<_>>().join(", ");
        let (count, header, body) = (values.len(), header.join(", "), inner.body);
        // Writing into a string does not fail.
        let _ = writeln!(
            self.body,
            "{whole}:{count} = \"stablehlo.sort\"({names}) ({{\n^bb0({header}):\n{body}\"stablehlo.return\"({}) : (tensor<i1>) -> ()\n}}) {{dimension = {axis} : i64, is_stable = true}} : ({kinds}) -> ({kinds})",
            answer.name
        );
        let result = |(index, value): (usize, &&Value)| Value { name: format!("{whole}#{index}"), ..(*value).clone() };
        values.iter().enumerate().map(result).collect()
    }

    /// One of two values, of which only that one is computed.
    pub(crate) fn choose(
        &mut self,
        condition: &Value,
        yes: impl FnOnce(&mut Writer) -> Value,
        no: impl FnOnce(&mut Writer) -> Value,
    ) -> Value {
        let (yes, yes_body) = self.inside(yes);
        let (no, no_body) = self.inside(no);
        let end = |value: &Value| format!("\"stablehlo.return\"({}) : ({}) -> ()\n", value.name, value.kind());
        let region = format!(" ({{\n{yes_body}{}}}, {{\n{no_body}{}}})", end(&yes), end(&no));
        self.op_with_region("if", &[condition], &region, "", yes.element, &yes.dims)
    }

    /// What is written into a region, and its text.
    fn inside(&mut self, write: impl FnOnce(&mut Writer) -> Value) -> (Value, String) {
        let outer = std::mem::take(&mut self.body);
        let value = write(self);
        (value, std::mem::replace(&mut self.body, outer))
    }

    /// A product of matrices, or of batches of them. The result has the batch's axes, those of `a` that are left, and those of `b`.
    pub(crate) fn dot(&mut self, a: &Value, b: &Value, axes: &DotAxes, element: Element, precision: &str) -> Value {
        let free = |value: &Value, batch: &[usize], inner: usize| -> Vec<usize> {
            (0..value.rank())
                .filter(|axis| !batch.contains(axis) && *axis != inner)
                .map(|axis| value.dims[axis])
                .collect()
        };
        let batch: Vec<usize> = axes.batch.iter().map(|axis| a.dims[*axis]).collect();
        let dims = [batch, free(a, axes.batch, axes.a), free(b, axes.batch, axes.b)].concat();
        let list = axes.batch.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let attribute = format!(
            "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [{list}], rhs_batching_dimensions = [{list}], lhs_contracting_dimensions = [{}], rhs_contracting_dimensions = [{}]>, precision_config = [#stablehlo<precision {precision}>, #stablehlo<precision {precision}>]",
            axes.a, axes.b
        );
        self.op("dot_general", &[a, b], &attribute, element, &dims)
    }

    /// Picks single elements of a list by their positions, which are in range.
    pub(crate) fn pick(&mut self, list: &Value, positions: &Value) -> Value {
        let attribute = format!(
            "dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {}>, slice_sizes = array<i64: 1>, indices_are_sorted = false",
            positions.rank()
        );
        self.op("gather", &[list, positions], &attribute, list.element, &positions.dims)
    }

    /// Picks whole slices along an axis, by positions that are in range: the axis is replaced by the positions' axes.
    pub(crate) fn take(&mut self, value: &Value, positions: &Value, axis: usize) -> Value {
        let (rank, picked) = (value.rank(), positions.rank());
        // Axes of the result that come from the value: those before the axis, then those after the positions'.
        let offsets: Vec<String> =
            (0..axis).chain(axis + picked..rank - 1 + picked).map(|axis| axis.to_string()).collect();
        let mut sizes = value.dims.clone();
        sizes[axis] = 1;
        let dims = [&value.dims[..axis], &positions.dims, &value.dims[axis + 1..]].concat();
        let attribute = format!(
            "dimension_numbers = #stablehlo.gather<offset_dims = [{}], collapsed_slice_dims = [{axis}], start_index_map = [{axis}], index_vector_dim = {picked}>, slice_sizes = {}, indices_are_sorted = false",
            offsets.join(", "),
            array(&sizes)
        );
        self.op("gather", &[value, positions], &attribute, value.element, &dims)
    }
}

/// Which axes of a product's operands are what: the batch's axes are the same of both.
pub(crate) struct DotAxes<'a> {
    pub(crate) batch: &'a [usize],
    /// The axis of the first operand along which is added.
    pub(crate) a: usize,
    /// That of the second.
    pub(crate) b: usize,
}

/// Windows over every axis.
pub(crate) struct Window {
    pub(crate) size: Vec<usize>,
    pub(crate) stride: Vec<usize>,
    pub(crate) padding: Vec<[usize; 2]>,
}

/// A region that joins two elements.
fn joining(op: &str, element: Element) -> String {
    let kind = tensor_type(element, &[]);
    let is_float = matches!(element, Element::Of(dtype) if dtype.is_float());
    let joined = match (op, is_float) {
        // Compilers may take a plain extreme for one that passes over NaN.
        ("maximum", true) => extreme("GT", &kind),
        ("minimum", true) => extreme("LT", &kind),
        _ => format!("%z = \"stablehlo.{op}\"(%x, %y) : ({kind}, {kind}) -> {kind}\n"),
    };
    format!(" ({{\n^bb0(%x: {kind}, %y: {kind}):\n{joined}\"stablehlo.return\"(%z) : ({kind}) -> ()\n}})")
}

/// The first where it is beyond the second or NaN, else the second.
fn extreme(direction: &str, kind: &str) -> String {
    let compare = |name: &str, direction: &str, b: &str| {
        format!(
            "{name} = \"stablehlo.compare\"(%x, {b}) {{comparison_direction = #stablehlo<comparison_direction {direction}>}} : ({kind}, {kind}) -> tensor<i1>\n"
        )
    };
    let (beyond, nan) = (compare("%p", direction, "%y"), compare("%q", "NE", "%x"));
    format!(
        "{beyond}{nan}%r = \"stablehlo.or\"(%p, %q) : (tensor<i1>, tensor<i1>) -> tensor<i1>\n%z = \"stablehlo.select\"(%r, %x, %y) : (tensor<i1>, {kind}, {kind}) -> {kind}\n"
    )
}

/// A list of numbers as an attribute.
pub(crate) fn array(values: &[usize]) -> String {
    if values.is_empty() {
        return "array<i64>".to_owned();
    }
    let values: Vec<String> = values.iter().map(usize::to_string).collect();
    format!("array<i64: {}>", values.join(", "))
}
