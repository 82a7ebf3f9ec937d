//! Functions of lines of f32 between two expressions, in `row_map.wgsl`: a line is read once and written once.
//!
//! Parameters: the number of lines, a line's length (a multiple of four), epsilon as a float; the constants of both expressions; then
//! for each input its offset and the step from line to line, in elements. Buffers read: the inputs of the first expression, then
//! those of the second from 1 on. [`RowForm::Cached`] and [`RowForm::Subgroup`] spread the work.

use panoply_core::DType;

use super::map::{inputs_read, more_functions};
use super::map_body::MapBody;
use super::prelude::{BITS, MATH, buffers, params};
use super::rows::RowForm;
use super::template::Template;

/// The most vectors of four in each invocation.
pub const ROW_MAP_CHUNKS_MAX: usize = 8;

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowMapFunction {
    /// One number, the sum.
    Sum,
    /// One number, the mean.
    Mean,
    /// Exponentials that add up to one.
    Softmax,
    /// Their logarithms.
    LogSoftmax,
    /// Mean zero and variance one.
    Norm,
    /// A mean square of one.
    RmsNorm,
}

/// How an input lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowInput {
    /// Its elements follow each other along a line, from a multiple of four on.
    Line,
    /// One element for a whole line.
    One,
}

/// One kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowMapKernel {
    /// The expression of the elements of a line. All its inputs, and all of the other, are f32.
    pub before: MapBody,
    /// What becomes of a line.
    pub function: RowMapFunction,
    /// The expression of the result, its input 0.
    pub after: MapBody,
    /// How the inputs lie: those of the first expression, then those of the second from 1 on.
    pub inputs: Vec<RowInput>,
    /// How many are of the first.
    pub first: usize,
    /// How the work is spread: cached, or by subgroups.
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

    /// The expressions, and what applies them to four elements of a line: `first`, and `last` or `last_one`.
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
        // Input 0 is the result; the others come behind those of the first expression.
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
