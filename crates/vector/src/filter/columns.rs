//! Metadata fields of many rows, laid out so that a filter reads them quickly.
//!
//! A column holds one code per row: the index of the row's value among the column's distinct
//! values. A condition is evaluated once per distinct value; each row then costs one table look-up.
//! Columns are made when a filter first asks for them, for rows that no longer change.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::path::Path;
use super::{Filter, Node};

/// Bits in a word of a mask.
const WORD_BITS: usize = u32::BITS as usize;

/// The columns of a fixed number of rows.
#[derive(Debug, Default)]
pub struct Columns {
    rows: usize,
    columns: BTreeMap<Path, Column>,
}

/// One field of every row.
#[derive(Debug)]
struct Column {
    /// For each row, the index of its value in `distinct`.
    codes: Vec<u32>,
    /// The distinct values. The first is `null`, which also stands for a missing field.
    distinct: Vec<Value>,
}

/// Receives the metadata of one row in [`Columns::build`].
pub struct RowSink<'a> {
    row: usize,
    builders: &'a mut [(Path, Builder)],
}

struct Builder {
    codes: Vec<u32>,
    distinct: Vec<Value>,
    /// Maps a value's JSON to its index.
    known: HashMap<String, u32>,
}

impl Columns {
    /// Starts with `rows` rows and no columns.
    pub fn new(rows: usize) -> Columns {
        Columns { rows, columns: BTreeMap::new() }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Whether every field that the filter asks for has a column.
    pub fn has(&self, filter: &Filter) -> bool {
        let mut all = true;
        filter.for_each_path(&mut |path| all &= self.columns.contains_key(path));
        all
    }

    /// Makes the missing columns that the filter asks for. `tell` is called once for each row and
    /// passes its metadata to the sink. A row for which it passes nothing has no metadata.
    pub fn build(&mut self, filter: &Filter, mut tell: impl FnMut(usize, &mut RowSink<'_>)) {
        let mut builders: Vec<(Path, Builder)> = Vec::new();
        filter.for_each_path(&mut |path| {
            if !self.columns.contains_key(path) && builders.iter().all(|(other, _)| other != path) {
                builders.push((path.clone(), Builder::new(self.rows)));
            }
        });
        if builders.is_empty() {
            return;
        }
        for row in 0..self.rows {
            tell(row, &mut RowSink { row, builders: &mut builders });
        }
        let columns = builders
            .into_iter()
            .map(|(path, builder)| (path, Column { codes: builder.codes, distinct: builder.distinct }));
        self.columns.extend(columns);
    }

    /// Approximate size of the columns in bytes, for the accounting of a cache.
    pub fn size_bytes(&self) -> usize {
        let column = |column: &Column| {
            let text = |value: &Value| value.as_str().map_or(0, str::len);
            column.codes.len() * size_of::<u32>()
                + column.distinct.iter().map(|value| size_of::<Value>() + text(value)).sum::<usize>()
        };
        self.columns.values().map(column).sum()
    }

    /// The rows that pass, as a bit mask.
    pub(super) fn select(&self, filter: &Filter) -> Vec<u32> {
        match &filter.node {
            Node::And(all) => self.combined(all, u32::MAX, |mask, other| *mask &= other),
            Node::Or(any) => self.combined(any, 0, |mask, other| *mask |= other),
            Node::Not(filter) => {
                let mut mask = self.select(filter);
                mask.iter_mut().for_each(|word| *word = !*word);
                self.cut(mask)
            }
            Node::Equals(path, _) | Node::In(path, _) | Node::Range(path, _) => match self.columns.get(path) {
                Some(column) => column.select(filter),
                None if filter.passes(&Value::Null) => self.all_or_none(u32::MAX),
                None => self.all_or_none(0),
            },
        }
    }

    fn combined(&self, filters: &[Filter], neutral: u32, join: impl Fn(&mut u32, u32)) -> Vec<u32> {
        let mut masks = filters.iter().map(|filter| self.select(filter));
        let Some(mut mask) = masks.next() else { return self.all_or_none(neutral) };
        for other in masks {
            mask.iter_mut().zip(other).for_each(|(word, other)| join(word, other));
        }
        mask
    }

    fn all_or_none(&self, word: u32) -> Vec<u32> {
        self.cut(vec![word; self.rows.div_ceil(WORD_BITS)])
    }

    /// Clears the bits after the last row.
    fn cut(&self, mut mask: Vec<u32>) -> Vec<u32> {
        let used = self.rows % WORD_BITS;
        if used > 0
            && let Some(last) = mask.last_mut()
        {
            *last &= (1 << used) - 1;
        }
        mask
    }
}

impl Column {
    fn select(&self, filter: &Filter) -> Vec<u32> {
        let passes: Vec<u32> = self.distinct.iter().map(|value| u32::from(filter.passes(value))).collect();
        let word = |codes: &[u32]| {
            codes.iter().enumerate().fold(0, |word, (bit, &code)| word | (passes[code as usize] << bit))
        };
        self.codes.chunks(WORD_BITS).map(word).collect()
    }
}

impl Builder {
    fn new(rows: usize) -> Builder {
        Builder { codes: vec![0; rows], distinct: vec![Value::Null], known: HashMap::new() }
    }

    fn set(&mut self, row: usize, value: Option<&Value>) {
        // No object equals any value, so one empty object can stand for all objects.
        let object = Value::Object(Default::default());
        let value = match value {
            None | Some(Value::Null) => return,
            Some(Value::Object(_)) => &object,
            Some(value) => value,
        };
        let key = value.to_string();
        let code = match self.known.get(&key) {
            Some(code) => *code,
            None => {
                let code = self.distinct.len() as u32;
                self.distinct.push(value.clone());
                self.known.insert(key, code);
                code
            }
        };
        if let Some(slot) = self.codes.get_mut(row) {
            *slot = code;
        }
    }
}

impl RowSink<'_> {
    /// The row's metadata as a value.
    pub fn value(&mut self, metadata: &Value) {
        for (path, builder) in self.builders.iter_mut() {
            builder.set(self.row, path.find(metadata));
        }
    }

    /// The row's metadata as JSON text, of which only the requested fields are read. Text that is
    /// not a JSON object counts as a row without metadata.
    pub fn text(&mut self, metadata: &str) {
        let mut reader = serde_json::Deserializer::from_str(metadata);
        // Fields read before a JSON error are kept: the text was written and checked by a
        // collection.
        let _ = FieldSeed(self).deserialize(&mut reader);
    }
}

/// Reads an object and passes on the fields that have a column.
struct FieldSeed<'a, 'b>(&'a mut RowSink<'b>);

impl<'de> DeserializeSeed<'de> for FieldSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if self.0.builders.iter().any(|(path, _)| path.field() == key) {
                let value: Value = map.next_value()?;
                for (path, builder) in self.0.builders.iter_mut().filter(|(path, _)| path.field() == key) {
                    builder.set(self.0.row, path.find_below(&value));
                }
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}
