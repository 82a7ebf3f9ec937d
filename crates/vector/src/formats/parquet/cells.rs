//! The values of one column: read with their levels, and assembled into one value per row.
//!
//! A definition level counts how many of the optional parts on the path to a value exist; a
//! repetition level of 0 begins a new row. See the Parquet format's description of nested encoding.

use half::f16;
use parquet::basic::ConvertedType;
use parquet::column::reader::ColumnReader;
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::ColumnDescPtr;
use serde_json::Value;

use super::super::batch::{double_json, float_json};

/// The levels and values read from a column.
pub struct Leaf {
    pub rows: usize,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    values: Values,
}

/// The non-null values, in order.
enum Values {
    Bool(Vec<bool>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bytes(Vec<ByteArray>),
    Fixed(Vec<FixedLenByteArray>),
}

/// Reads `rows` rows, or fewer at the end of the column.
pub fn read_leaf(column: &mut ColumnReader, rows: usize) -> Result<Leaf> {
    let (mut definitions, mut repetitions) = (Vec::new(), Vec::new());
    macro_rules! read {
        ($reader:expr, $kind:ident) => {{
            let mut values = Vec::new();
            let read = $reader.read_records(rows, Some(&mut definitions), Some(&mut repetitions), &mut values)?;
            (read.0, Values::$kind(values))
        }};
    }
    let (rows, values) = match column {
        ColumnReader::BoolColumnReader(reader) => read!(reader, Bool),
        ColumnReader::Int32ColumnReader(reader) => read!(reader, I32),
        ColumnReader::Int64ColumnReader(reader) => read!(reader, I64),
        ColumnReader::FloatColumnReader(reader) => read!(reader, F32),
        ColumnReader::DoubleColumnReader(reader) => read!(reader, F64),
        ColumnReader::ByteArrayColumnReader(reader) => read!(reader, Bytes),
        ColumnReader::FixedLenByteArrayColumnReader(reader) => read!(reader, Fixed),
        ColumnReader::Int96ColumnReader(_) => {
            return Err(ParquetError::NYI("96-bit integers".to_owned()));
        }
    };
    Ok(Leaf { rows, definitions, repetitions, values })
}

impl Leaf {
    /// Whether the levels are consistent: they begin `rows` rows and mark as many values as exist.
    pub fn adds_up(&self, descriptor: &ColumnDescPtr) -> bool {
        let present = descriptor.max_def_level();
        let rows = match descriptor.max_rep_level() {
            0 => self.rows,
            _ if self.repetitions.first().is_some_and(|first| *first != 0) => return false,
            _ => self.repetitions.iter().filter(|repetition| **repetition == 0).count(),
        };
        let levels = if descriptor.max_rep_level() > 0 { self.repetitions.len() } else { self.rows };
        let values = match present {
            0 => levels,
            _ if self.definitions.len() != levels => return false,
            _ => self.definitions.iter().filter(|definition| **definition == present).count(),
        };
        rows == self.rows && values == self.values.len()
    }

    /// The number of components of each row's list; 0 for a null list. The error is the row of a
    /// null component.
    pub fn lengths(&self, descriptor: &ColumnDescPtr) -> Result<Vec<usize>, usize> {
        let present = descriptor.max_def_level();
        let entry = descriptor.repeated_ancestor_def_level();
        let mut lengths = Vec::with_capacity(self.rows);
        for (index, repetition) in self.repetitions.iter().enumerate() {
            if *repetition == 0 {
                lengths.push(0);
            }
            let definition = self.definitions.get(index).copied().unwrap_or(present);
            let row = lengths.len().saturating_sub(1);
            if definition >= entry && definition < present {
                return Err(row);
            }
            if definition == present
                && let Some(length) = lengths.last_mut()
            {
                *length += 1;
            }
        }
        Ok(lengths)
    }

    /// Converts the values to single precision.
    pub fn into_floats(self) -> Vec<f32> {
        match self.values {
            Values::F32(values) => values,
            Values::F64(values) => values.into_iter().map(|value| value as f32).collect(),
            Values::Fixed(values) => values.iter().map(half).collect(),
            Values::Bool(_) | Values::I32(_) | Values::I64(_) | Values::Bytes(_) => Vec::new(),
        }
    }

    /// One value for each row: a scalar, or a list if the column repeats.
    pub fn cells(self, descriptor: &ColumnDescPtr) -> Vec<Value> {
        let (present, entry) = (descriptor.max_def_level(), descriptor.repeated_ancestor_def_level());
        let repeats = descriptor.max_rep_level() > 0;
        let levels = if repeats { self.repetitions.len() } else { self.rows };
        let mut values = self.values.into_json(descriptor).into_iter();
        let mut cells: Vec<Value> = Vec::with_capacity(self.rows);
        for index in 0..levels {
            let definition = self.definitions.get(index).copied().unwrap_or(present);
            let value = if definition == present { values.next().unwrap_or(Value::Null) } else { Value::Null };
            if !repeats {
                cells.push(value);
                continue;
            }
            if self.repetitions[index] == 0 {
                // A definition level one below an entry is an empty list; a lower level is a null
                // list.
                cells.push(if definition + 1 >= entry { Value::Array(Vec::new()) } else { Value::Null });
            }
            if definition >= entry
                && let Some(Value::Array(list)) = cells.last_mut()
            {
                list.push(value);
            }
        }
        cells
    }
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Values::Bool(values) => values.len(),
            Values::I32(values) => values.len(),
            Values::I64(values) => values.len(),
            Values::F32(values) => values.len(),
            Values::F64(values) => values.len(),
            Values::Bytes(values) => values.len(),
            Values::Fixed(values) => values.len(),
        }
    }

    fn into_json(self, descriptor: &ColumnDescPtr) -> Vec<Value> {
        match self {
            Values::Bool(values) => values.into_iter().map(Value::from).collect(),
            Values::I32(values) => {
                let unsigned = matches!(
                    descriptor.converted_type(),
                    ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32
                );
                let number = |value: i32| if unsigned { Value::from(value as u32) } else { Value::from(value) };
                values.into_iter().map(number).collect()
            }
            Values::I64(values) => {
                let unsigned = descriptor.converted_type() == ConvertedType::UINT_64;
                let number = |value: i64| if unsigned { Value::from(value as u64) } else { Value::from(value) };
                values.into_iter().map(number).collect()
            }
            Values::F32(values) => values.into_iter().map(float_json).collect(),
            Values::F64(values) => values.into_iter().map(double_json).collect(),
            Values::Fixed(values) => values.iter().map(|bytes| float_json(half(bytes))).collect(),
            Values::Bytes(values) => {
                values.iter().map(|bytes| Value::from(String::from_utf8_lossy(bytes.data()).into_owned())).collect()
            }
        }
    }
}

fn half(bytes: &FixedLenByteArray) -> f32 {
    bytes.data().first_chunk().map_or(f32::NAN, |bytes| f16::from_le_bytes(*bytes).to_f32())
}
