//! Arrays: columns of a record batch in their memory layout. Offsets are untrusted and are checked
//! where they are used.

use std::collections::VecDeque;
use std::ops::Range;

use half::f16;
use polars_arrow_format::ipc::Precision;
use serde_json::{Map, Value};

use super::super::batch::{double_json, float_json};
use super::super::error::{FormatError, Result};
use super::FORMAT;
use super::body::{Body, Buffer};
use super::columns::Kind;

/// Lengths and buffers of a record batch that are not yet assigned to an array, in the order of the
/// schema.
#[derive(Default)]
pub struct UnreadBuffers {
    pub lengths: VecDeque<usize>,
    pub buffers: VecDeque<Range<usize>>,
    /// For each view column, the number of data buffers that it refers to.
    pub variadic: VecDeque<usize>,
}

/// An array.
pub struct Array {
    length: usize,
    /// Validity bitmap: a zero bit marks a null. Empty if no value is null.
    validity: Buffer,
    values: Values,
}

enum Values {
    /// All nulls, or not read.
    None,
    Bool(Buffer),
    Int {
        bits: usize,
        signed: bool,
        values: Buffer,
    },
    Float {
        precision: Precision,
        values: Buffer,
    },
    Text {
        large: bool,
        offsets: Buffer,
        bytes: Buffer,
    },
    TextView {
        views: Buffer,
        buffers: Vec<Buffer>,
    },
    List {
        large: bool,
        offsets: Buffer,
        items: Box<Array>,
    },
    FixedList {
        size: usize,
        items: Box<Array>,
    },
    Struct(Vec<(String, Array)>),
}

impl Array {
    /// Takes an array of this kind, including its children, from the layout. Its buffers are read
    /// only if `wanted`.
    pub fn take(kind: &Kind, layout: &mut UnreadBuffers, body: &Body, wanted: bool) -> Result<Array> {
        let length = layout.lengths.pop_front().ok_or_else(|| short("lengths"))?;
        let buffer = |layout: &mut UnreadBuffers| {
            let place = layout.buffers.pop_front().ok_or_else(|| short("buffers"))?;
            if wanted { body.buffer(place) } else { Ok(Buffer::Part(0..0)) }
        };
        let has_validity = !matches!(kind, Kind::Null | Kind::Opaque { .. });
        let validity = if has_validity { buffer(layout)? } else { Buffer::Part(0..0) };
        let values = match kind {
            Kind::Null => Values::None,
            Kind::Bool => Values::Bool(buffer(layout)?),
            Kind::Int { bits, signed } => Values::Int { bits: *bits, signed: *signed, values: buffer(layout)? },
            Kind::Float(precision) => Values::Float { precision: *precision, values: buffer(layout)? },
            Kind::Text { large } => Values::Text { large: *large, offsets: buffer(layout)?, bytes: buffer(layout)? },
            Kind::TextView => {
                let views = buffer(layout)?;
                let count = layout.variadic.pop_front().ok_or_else(|| short("counts of buffers"))?;
                let buffers = (0..count).map(|_| buffer(layout)).collect::<Result<_>>()?;
                Values::TextView { views, buffers }
            }
            Kind::List { large, item } => {
                let offsets = buffer(layout)?;
                let items = Box::new(Array::take(&item.kind, layout, body, wanted)?);
                Values::List { large: *large, offsets, items }
            }
            Kind::FixedList { size, item } => {
                let items = Box::new(Array::take(&item.kind, layout, body, wanted)?);
                Values::FixedList { size: *size, items }
            }
            Kind::Struct(fields) => {
                let field = |field: &super::columns::Column| {
                    Ok((field.name.clone(), Array::take(&field.kind, layout, body, wanted)?))
                };
                Values::Struct(fields.iter().map(field).collect::<Result<_>>()?)
            }
            Kind::Opaque { buffers, views, children } => {
                let behind =
                    if *views { layout.variadic.pop_front().ok_or_else(|| short("counts of buffers"))? } else { 0 };
                for _ in 0..buffers.saturating_add(behind) {
                    buffer(layout)?;
                }
                for child in children {
                    Array::take(&child.kind, layout, body, wanted)?;
                }
                Values::None
            }
        };
        Ok(Array { length, validity, values })
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.length
    }

    /// The value at index `at`.
    pub fn value(&self, body: &Body, at: usize) -> Result<Value> {
        if at >= self.length || self.is_null(body, at)? {
            return Ok(Value::Null);
        }
        Ok(match &self.values {
            Values::None => Value::Null,
            Values::Bool(values) => Value::Bool(bit(body.bytes(values), at)?),
            Values::Int { bits, signed, values } => integer(body.bytes(values), at, *bits, *signed)?,
            Values::Float { precision: Precision::Double, values } => {
                double_json(f64::from_le_bytes(element(body.bytes(values), at)?))
            }
            Values::Float { precision, values } => float_json(float(body.bytes(values), at, *precision)?),
            Values::Text { large, offsets, bytes } => {
                let place = between(body.bytes(offsets), at, *large)?;
                text(body.bytes(bytes).get(place))?
            }
            Values::TextView { views, buffers } => view(body, element(body.bytes(views), at)?, buffers)?,
            Values::List { .. } | Values::FixedList { .. } => {
                let (items, place) = self.items(body, at)?;
                Value::Array(place.map(|at| items.value(body, at)).collect::<Result<_>>()?)
            }
            Values::Struct(fields) => {
                let mut object = Map::new();
                for (name, field) in fields {
                    let value = field.value(body, at)?;
                    if !value.is_null() {
                        object.insert(name.clone(), value);
                    }
                }
                Value::Object(object)
            }
        })
    }

    /// The range of the items that are the components of the vector at index `at`. A null vector is
    /// an error.
    pub fn list(&self, body: &Body, at: usize, row: u64) -> Result<Range<usize>> {
        if self.is_null(body, at)? {
            let reason = "the vector is null".to_owned();
            return Err(FormatError::Record { place: "row", at: row, reason });
        }
        Ok(self.items(body, at)?.1)
    }

    /// Appends the items in the range `place`, which are floats, as single precision.
    pub fn append_floats(&self, body: &Body, place: Range<usize>, row: u64, vectors: &mut Vec<f32>) -> Result<()> {
        let (Values::List { items, .. } | Values::FixedList { items, .. }) = &self.values else { return Ok(()) };
        let Values::Float { precision, values } = &items.values else { return Ok(()) };
        let bytes = body.bytes(values);
        let nulls = !body.bytes(&items.validity).is_empty();
        vectors.reserve(place.len());
        for at in place {
            if nulls && items.is_null(body, at)? {
                let reason = "a component of the vector is null".to_owned();
                return Err(FormatError::Record { place: "row", at: row, reason });
            }
            vectors.push(float(bytes, at, *precision)?);
        }
        Ok(())
    }

    /// The item array of the list at index `at`, and the list's range in it.
    fn items(&self, body: &Body, at: usize) -> Result<(&Array, Range<usize>)> {
        let (items, place) = match &self.values {
            Values::List { large, offsets, items } => (items, between(body.bytes(offsets), at, *large)?),
            Values::FixedList { size, items } => {
                let start = at.checked_mul(*size).ok_or_else(outside)?;
                (items, start..start.checked_add(*size).ok_or_else(outside)?)
            }
            _ => return Err(outside()),
        };
        if place.end > items.length { Err(outside()) } else { Ok((items, place)) }
    }

    fn is_null(&self, body: &Body, at: usize) -> Result<bool> {
        let bits = body.bytes(&self.validity);
        if bits.is_empty() { Ok(false) } else { bit(bits, at).map(|valid| !valid) }
    }
}

fn short(what: &str) -> FormatError {
    FormatError::header(FORMAT, format!("a record batch has fewer {what} than its schema asks for"))
}

fn outside() -> FormatError {
    FormatError::header(FORMAT, "a value lies outside of its column's memory")
}

fn bit(bytes: &[u8], at: usize) -> Result<bool> {
    bytes.get(at / 8).map(|byte| byte >> (at % 8) & 1 == 1).ok_or_else(outside)
}

/// The element at index `at` of an array of `BYTES`-byte elements.
fn element<const BYTES: usize>(bytes: &[u8], at: usize) -> Result<[u8; BYTES]> {
    let start = at.checked_mul(BYTES).ok_or_else(outside)?;
    bytes.get(start..).and_then(|rest| rest.first_chunk()).copied().ok_or_else(outside)
}

/// The range between the offset at index `at` and the next offset.
fn between(offsets: &[u8], at: usize, large: bool) -> Result<Range<usize>> {
    let offset = |at| match large {
        true => usize::try_from(i64::from_le_bytes(element(offsets, at)?)).map_err(|_| outside()),
        false => usize::try_from(i32::from_le_bytes(element(offsets, at)?)).map_err(|_| outside()),
    };
    let (start, end) = (offset(at)?, offset(at + 1)?);
    if start <= end { Ok(start..end) } else { Err(outside()) }
}

fn integer(bytes: &[u8], at: usize, bits: usize, signed: bool) -> Result<Value> {
    Ok(match (bits, signed) {
        (8, true) => i8::from_le_bytes(element(bytes, at)?).into(),
        (8, false) => u8::from_le_bytes(element(bytes, at)?).into(),
        (16, true) => i16::from_le_bytes(element(bytes, at)?).into(),
        (16, false) => u16::from_le_bytes(element(bytes, at)?).into(),
        (32, true) => i32::from_le_bytes(element(bytes, at)?).into(),
        (32, false) => u32::from_le_bytes(element(bytes, at)?).into(),
        (_, true) => i64::from_le_bytes(element(bytes, at)?).into(),
        (_, false) => u64::from_le_bytes(element(bytes, at)?).into(),
    })
}

fn float(bytes: &[u8], at: usize, precision: Precision) -> Result<f32> {
    Ok(match precision {
        Precision::Half => f16::from_le_bytes(element(bytes, at)?).to_f32(),
        Precision::Single => f32::from_le_bytes(element(bytes, at)?),
        Precision::Double => f64::from_le_bytes(element(bytes, at)?) as f32,
    })
}

/// Decodes a view of a text: its length, then the text itself if it fits into twelve bytes. A
/// longer text has its first four bytes here, then the index of its buffer and the offset in it.
fn view(body: &Body, view: [u8; 16], buffers: &[Buffer]) -> Result<Value> {
    let part = |at: usize| u32::from_le_bytes([view[at], view[at + 1], view[at + 2], view[at + 3]]) as usize;
    let length = part(0);
    if length <= 12 {
        return text(view.get(4..4 + length));
    }
    let buffer = buffers.get(part(8)).ok_or_else(outside)?;
    text(body.bytes(buffer).get(part(12)..).and_then(|rest| rest.get(..length)))
}

fn text(bytes: Option<&[u8]>) -> Result<Value> {
    let bytes = bytes.ok_or_else(outside)?;
    let text = str::from_utf8(bytes).map_err(|_| FormatError::header(FORMAT, "a text is not UTF-8"))?;
    Ok(Value::from(text))
}
