//! Writes StableHLO as text: values with their types, one op per line in MLIR's generic form, which
//! changes least between versions.
//!
//! * `element`: element types and their constants.
//! * `view`: strided views of contiguous values.
//! * `expr`: elementwise expressions.
//!
//! This module does not know Panoply's ops. `crate::ops` does.

mod element;
mod expr;
mod view;

use std::fmt::Write;

pub(crate) use element::Element;
pub(crate) use expr::{carried, carrier, expression, stored};

/// A value of the program: its name, element type and dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    name: String,
    pub(crate) element: Element,
    pub(crate) dims: Vec<usize>,
}

impl Value {
    /// The value's type in MLIR, such as `tensor<2x3xf32>`.
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

/// A comparison of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// A program in construction: one function with its arguments and its body.
pub(crate) struct Writer {
    body: String,
    arguments: Vec<Value>,
    next: usize,
}

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer { body: String::new(), arguments: Vec::new(), next: 0 }
    }

    /// Adds an argument to the program.
    pub(crate) fn argument(&mut self, element: Element, dims: &[usize]) -> Value {
        let value = Value { name: format!("%a{}", self.arguments.len()), element, dims: dims.to_vec() };
        self.arguments.push(value.clone());
        value
    }

    /// Returns the whole program, with these results.
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

    /// Writes one op with one result. `attributes` is the text between the braces.
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

    /// As [`Writer::op`], with the text of its regions.
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

    /// Writes an op whose result has the type of its first operand.
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

    /// The larger or the smaller of two numbers. NaN if either is NaN. StableHLO's own op is not
    /// used, because compilers may treat it as one that ignores NaN.
    pub(crate) fn extreme(&mut self, direction: Compare, a: &Value, b: &Value) -> Value {
        let beyond = self.compare(direction, a, b);
        let is_nan = self.compare(Compare::Ne, a, a);
        let first = self.op("or", &[&beyond, &is_nan], "", Element::Bool, &a.dims);
        self.select(&first, a, b)
    }

    /// A tensor filled with one number.
    pub(crate) fn constant(&mut self, value: f64, element: Element, dims: &[usize]) -> Value {
        let attribute = format!("value = dense<{}> : {}", element.literal(value), tensor_type(element, &[]));
        let scalar = self.op("constant", &[], &attribute, element, &[]);
        self.broadcast(&scalar, &[], dims)
    }

    /// A one-dimensional constant.
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

    /// Converts the elements to another type with the plugin's own conversion.
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

    /// Permutes the axes: `order[i]` is the old axis that becomes axis `i`.
    pub(crate) fn transpose(&mut self, value: &Value, order: &[usize]) -> Value {
        if order.iter().enumerate().all(|(place, axis)| place == *axis) {
            return value.clone();
        }
        let dims: Vec<usize> = order.iter().map(|axis| value.dims[*axis]).collect();
        self.op("transpose", &[value], &format!("permutation = {}", array(order)), value.element, &dims)
    }

    /// Broadcasts a value: its axis `i` becomes axis `axes[i]` of the result. `axes` must be
    /// ascending.
    pub(crate) fn broadcast(&mut self, value: &Value, axes: &[usize], dims: &[usize]) -> Value {
        if value.dims == dims {
            return value.clone();
        }
        let attribute = format!("broadcast_dimensions = {}", array(axes));
        self.op("broadcast_in_dim", &[value], &attribute, value.element, dims)
    }

    /// Broadcasts a value as in numpy: its last axis is the result's last.
    pub(crate) fn stretch(&mut self, value: &Value, dims: &[usize]) -> Value {
        let added = dims.len() - value.rank();
        let axes: Vec<usize> = (added..dims.len()).collect();
        self.broadcast(value, &axes, dims)
    }

    /// The elements from `start` up to `end` (exclusive) along each axis, with step one.
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

    /// Pads a value by `before` and `after` elements along each axis.
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

    /// Pads one axis at both ends.
    pub(crate) fn pad_axis(&mut self, value: &Value, with: f64, axis: usize, before: usize, after: usize) -> Value {
        let (mut low, mut high) = (vec![0; value.rank()], vec![0; value.rank()]);
        (low[axis], high[axis]) = (before, after);
        self.pad(value, with, &low, &high)
    }

    /// Reverses the order of the elements along these axes.
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

    /// Reduces elements along axes with `add`, `maximum`, …, and removes the axes.
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

    /// As [`Writer::reduce`], broadcast to the original dimensions.
    pub(crate) fn reduce_stretched(&mut self, op: &str, value: &Value, initial: f64, axes: &[usize]) -> Value {
        let reduced = self.reduce(op, value, initial, axes);
        let kept: Vec<usize> = (0..value.rank()).filter(|axis| !axes.contains(axis)).collect();
        self.broadcast(&reduced, &kept, &value.dims)
    }

    /// Reduces the elements of windows with `add` or `maximum`.
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

    /// Sorts values together along an axis by the first value. `before` writes the comparison of
    /// two of its elements.
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

    /// Writes a conditional. Only one of the two branches is computed at run time.
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

    /// Runs `write` with an empty body, and returns its value and the text that it wrote.
    fn inside(&mut self, write: impl FnOnce(&mut Writer) -> Value) -> (Value, String) {
        let outer = std::mem::take(&mut self.body);
        let value = write(self);
        (value, std::mem::replace(&mut self.body, outer))
    }

    /// A product of matrices, or of batches of matrices. The result has the batch axes, then the
    /// remaining axes of `a`, then those of `b`.
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

    /// Gathers single elements of a list. The positions must be in range.
    pub(crate) fn pick(&mut self, list: &Value, positions: &Value) -> Value {
        let attribute = format!(
            "dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {}>, slice_sizes = array<i64: 1>, indices_are_sorted = false",
            positions.rank()
        );
        self.op("gather", &[list, positions], &attribute, list.element, &positions.dims)
    }

    /// Gathers whole slices along an axis. The positions must be in range. The axis is replaced by
    /// the positions' axes.
    pub(crate) fn take(&mut self, value: &Value, positions: &Value, axis: usize) -> Value {
        let (rank, picked) = (value.rank(), positions.rank());
        // The result's axes that come from the value: those before `axis`, then those after the
        // positions' axes.
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

/// The roles of the operands' axes in a product. The batch axes are the same in both operands.
pub(crate) struct DotAxes<'a> {
    pub(crate) batch: &'a [usize],
    /// The contracted axis of the first operand.
    pub(crate) a: usize,
    /// The contracted axis of the second operand.
    pub(crate) b: usize,
}

/// The size, stride and padding of windows along every axis.
pub(crate) struct Window {
    pub(crate) size: Vec<usize>,
    pub(crate) stride: Vec<usize>,
    pub(crate) padding: Vec<[usize; 2]>,
}

/// The region of a reduction, which combines two elements.
fn joining(op: &str, element: Element) -> String {
    let kind = tensor_type(element, &[]);
    let is_float = matches!(element, Element::Of(dtype) if dtype.is_float());
    let joined = match (op, is_float) {
        // Compilers may treat the plain op as one that ignores NaN.
        ("maximum", true) => extreme("GT", &kind),
        ("minimum", true) => extreme("LT", &kind),
        _ => format!("%z = \"stablehlo.{op}\"(%x, %y) : ({kind}, {kind}) -> {kind}\n"),
    };
    format!(" ({{\n^bb0(%x: {kind}, %y: {kind}):\n{joined}\"stablehlo.return\"(%z) : ({kind}) -> ()\n}})")
}

/// Text that selects `%x` if it is beyond `%y` or NaN, and `%y` otherwise.
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

/// An attribute with a list of numbers.
pub(crate) fn array(values: &[usize]) -> String {
    if values.is_empty() {
        return "array<i64>".to_owned();
    }
    let values: Vec<String> = values.iter().map(usize::to_string).collect();
    format!("array<i64: {}>", values.join(", "))
}
