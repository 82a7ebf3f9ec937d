//! Row functions of f32 between two expressions, in `row_map.wgsl`: a line is read once and written
//! once.
//!
//! Parameters: the number of lines, a line's length (a multiple of four), epsilon as a float; the
//! constants of both expressions; then for each input its offset and the stride between lines, in
//! elements. Buffers read: the inputs of the first expression, followed by those of the second from
//! input 1 on. [`RowForm::Cached`] and [`RowForm::Subgroup`] distribute the work.

use panoply_core::DType;

use super::map::{inputs_read, more_functions};
use super::map_body::MapBody;
use super::prelude::{BITS, MATH, buffers, params};
use super::rows::RowForm;
use super::template::Template;

/// The most vectors of four per invocation.
pub const ROW_MAP_CHUNKS_MAX: usize = 8;

/// The function of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowMapFunction {
    /// The sum, one number.
    Sum,
    /// The mean, one number.
    Mean,
    /// Softmax.
    Softmax,
    /// The logarithm of softmax.
    LogSoftmax,
    /// Normalisation to mean zero and variance one.
    Norm,
    /// Normalisation to a mean square of one.
    RmsNorm,
}

/// The layout of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowInput {
    /// Contiguous along a line, starting at a multiple of four.
    Line,
    /// One element for a whole line.
    One,
}

/// A row function with its expressions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowMapKernel {
    /// The expression before the function. All inputs of both expressions are f32.
    pub before: MapBody,
    /// The function of a line.
    pub function: RowMapFunction,
    /// The expression after the function. Its input 0 is the result.
    pub after: MapBody,
    /// The layouts of the inputs: those of the first expression, followed by those of the second
    /// from input 1 on.
    pub inputs: Vec<RowInput>,
    /// Number of inputs of the first expression.
    pub first: usize,
    /// The distribution of the work: cached, or by subgroups.
    pub form: RowForm,
}

impl RowMapKernel {
    fn reduces(&self) -> bool {
        matches!(self.function, RowMapFunction::Sum | RowMapFunction::Mean)
    }

    pub(super) fn source(&self) -> String {
        let (form, chunks, lanes) = match self.form {
            RowForm::Subgroup { chunks, lanes } => ("Subgroup", chunks, u32::from(lanes)),
            RowForm::Cached { chunks } => ("Cached", chunks, 256),
            RowForm::Serial | RowForm::Cooperative => ("Cached", 1, 256),
        };
        let mut names = vec!["outer".to_owned(), "axis".to_owned(), "epsilon: f32".to_owned()];
        names.extend(self.before.names_as("k").chain(self.after.names_as("j")));
        names.extend((0..self.inputs.len()).flat_map(|index| [format!("o{index}"), format!("r{index}")]));
        let mut text = params(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let vector = "vec4<f32>";
        let reads: Vec<(String, &str)> = self
            .inputs
            .iter()
            .enumerate()
            .map(|(index, input)| (format!("in{index}"), if *input == RowInput::Line { vector } else { "f32" }))
            .collect();
        let reads: Vec<(&str, &str)> = reads.iter().map(|(name, element)| (name.as_str(), *element)).collect();
        text.push_str(&buffers(&[("out", if self.reduces() { "f32" } else { vector })], &reads));
        text.push_str(BITS);
        text.push_str(MATH);
        more_functions(&mut text, &[&*self.before.nodes, &*self.after.nodes].concat(), "p.outer");
        self.bodies(&mut text);
        let template = Template::new(include_str!("row_map.wgsl")).set("FORM", form).set("CHUNKS", chunks);
        let template = template.set("LANES", lanes).set("ROWS", 256 / lanes);
        let template = template.flag("RMS", self.function == RowMapFunction::RmsNorm);
        text.push_str(&template.set("FUNCTION", format!("{:?}", self.function)).text());
        text
    }

    /// Appends the expressions, and the functions that apply them to four elements of a line:
    /// `first`, and `last` or `last_one`.
    fn bodies(&self, text: &mut String) {
        let count = self.inputs.len();
        let dtypes = vec![DType::F32; count + 1];
        let read = inputs_read(&self.before.nodes);
        text.push_str(&self.before.text_as("before", "k", &read, &dtypes));
        let lanes = ["x", "y", "z", "w"];
        let loads = |inputs: &mut dyn Iterator<Item = usize>| -> String {
            let load = |index: usize| match self.inputs[index] {
                RowInput::Line => format!("  let a{index} = in{index}[(p.o{index} + line * p.r{index}) / 4u + k];\n"),
                RowInput::One => format!("  let a{index} = in{index}[p.o{index} + line * p.r{index}];\n"),
            };
            inputs.map(load).collect()
        };
        let element = |index: usize, lane: &str| match self.inputs[index] {
            RowInput::Line => format!("a{index}.{lane}"),
            RowInput::One => format!("a{index}"),
        };
        let calls = lanes.map(|lane| {
            let arguments: Vec<String> = read.iter().map(|index| element(*index, lane)).collect();
            format!("before({})", arguments.join(", "))
        });
        text.push_str("fn first(line: u32, k: u32) -> vec4<f32> {\n");
        text.push_str(&loads(&mut read.iter().copied()));
        text.push_str(&format!("  return vec4<f32>({});\n}}\n", calls.join(", ")));
        let read = inputs_read(&self.after.nodes);
        text.push_str(&self.after.text_as("after", "j", &read, &dtypes));
        // Input 0 is the result. The other inputs are bound after those of the first expression.
        let own = |index: &usize| self.first + index - 1;
        let further = loads(&mut read.iter().filter(|index| **index > 0).map(own));
        let call = |lane: &str, value: &str| {
            let argument = |index: &usize| if *index == 0 { value.to_owned() } else { element(own(index), lane) };
            format!("after({})", read.iter().map(argument).collect::<Vec<_>>().join(", "))
        };
        if self.reduces() {
            text.push_str("fn last_one(line: u32, y: f32) -> f32 {\n");
            text.push_str(&further);
            text.push_str(&format!("  return {};\n}}\n", call("x", "y")));
            return;
        }
        let calls = lanes.map(|lane| call(lane, &format!("y.{lane}")));
        text.push_str("fn last(line: u32, k: u32, y: vec4<f32>) -> vec4<f32> {\n");
        text.push_str(&further);
        text.push_str(&format!("  return vec4<f32>({});\n}}\n", calls.join(", ")));
    }
}
