//! Encodes what a caller inserts into what is stored: checks, conversion to the storage type, row
//! lengths and scales, and the entries that hold ids and metadata. Encoding runs on the caller's
//! thread, so that it does not occupy the writer.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::hash::BuildHasher;

use half::{bf16, f16};
use hashbrown::{DefaultHashBuilder, HashTable};
use panoply_core::op::compute::Metric;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::schema::{ID_BYTES_MAX, METADATA_BYTES_MAX, Schema, Storage};

/// Maximum nesting depth of metadata. Reading it back stops at about twice this depth.
const METADATA_DEPTH_MAX: usize = 64;
/// The longest vector: products and squared distances of two vectors of this length fit `f32`.
pub const LENGTH_MAX: f64 = (1_u64 << 60) as f64;
/// The shortest vector with a cosine: products of shorter ones would underflow in `f32`.
pub const LENGTH_MIN: f64 = 1.0 / LENGTH_MAX;
/// The largest magnitude of an eight-bit component.
const I8_MAX: f32 = 127.0;
/// Bytes in front of an id: its length and the length of the metadata.
pub(crate) const ENTRY_HEAD_BYTES: usize = 8;

/// A batch, ready to be stored.
#[derive(Default)]
pub(crate) struct EncodedBatch {
    pub(crate) count: usize,
    /// Rows in the storage type.
    pub(crate) rows: Vec<u8>,
    /// The divisors of the cosine; empty if the schema has none.
    pub(crate) norms: Vec<f32>,
    /// The factors of eight-bit components.
    pub(crate) scales: Vec<f32>,
    /// Ids and metadata, concatenated entries.
    pub(crate) entries: Vec<u8>,
    /// Offset of each entry.
    pub(crate) offsets: Vec<u64>,
    pub(crate) hashes: Vec<u64>,
    /// Metadata fields of the batch.
    pub(crate) fields: BTreeSet<String>,
}

impl Schema {
    /// Whether each row has a length that searches divide by. With the dot metric, eight-bit rows
    /// store their length divided by their scale: the cosine arithmetic then gives the dot product
    /// of the scaled row.
    pub(crate) fn has_norms(&self) -> bool {
        self.metric == Metric::Cosine || (self.metric == Metric::Dot && self.storage == Storage::I8)
    }

    /// Whether each row has a scale.
    pub(crate) fn has_scales(&self) -> bool {
        self.storage == Storage::I8
    }

    /// Whether rows are searched by scale. A distance can only be computed between rows of the same
    /// scale, so scales are powers of two, and a collection has few distinct ones.
    pub(crate) fn searches_by_scale(&self) -> bool {
        self.storage == Storage::I8 && self.metric == Metric::Euclidean
    }

    /// Checks that vectors have the right number of components, and returns the number of vectors.
    pub(crate) fn count_vectors(&self, components: usize) -> Result<usize> {
        if !components.is_multiple_of(self.dimension) {
            return Err(Error::DimensionMismatch { expected: self.dimension, got: components });
        }
        Ok(components / self.dimension)
    }

    /// Scales queries so that their products fit `f32`. With cosine the length of a query does not
    /// matter, so very long and very short ones are scaled. With other metrics the length was
    /// already checked.
    pub(crate) fn in_range<'a>(&self, queries: &'a [f32]) -> Cow<'a, [f32]> {
        if self.metric == Metric::Cosine { self.of_moderate_length(queries) } else { Cow::Borrowed(queries) }
    }

    /// Queries of the same directions, whose products with each other and with rows fit `f32`.
    pub(crate) fn of_moderate_length<'a>(&self, queries: &'a [f32]) -> Cow<'a, [f32]> {
        let factor = |query: &[f32]| {
            let length = square_sum(query).sqrt();
            if length == 0.0 || (LENGTH_MIN..=LENGTH_MAX).contains(&length) { 1.0 } else { length.recip() }
        };
        let all = || queries.chunks_exact(self.dimension);
        if all().all(|query| factor(query) == 1.0) {
            return Cow::Borrowed(queries);
        }
        let scaled = |query: &'a [f32]| {
            let factor = factor(query);
            query.iter().map(move |value| (f64::from(*value) * factor) as f32)
        };
        Cow::Owned(all().flat_map(scaled).collect())
    }

    /// Checks that a query can be scored.
    pub(crate) fn check_query(&self, query: &[f32]) -> Result<()> {
        check_finite("query", query, Storage::F32)?;
        if self.metric == Metric::Cosine {
            // A query of any non-zero length is scaled.
            let zero = query.iter().all(|value| *value == 0.0);
            return if zero { Err(Error::ZeroVector { id: "query".to_owned() }) } else { Ok(()) };
        }
        check_length("query", 0.0, square_sum(query))
    }
}

/// Encodes a batch: one id and one vector per record, and either no metadata or one entry per
/// record.
pub(crate) fn encode<I: AsRef<str>>(
    schema: &Schema,
    hasher: &DefaultHashBuilder,
    ids: &[I],
    vectors: &[f32],
    metadata: &[Value],
) -> Result<EncodedBatch> {
    if vectors.len() != ids.len().saturating_mul(schema.dimension) {
        let one_wrong = ids.len() == 1 || !vectors.len().is_multiple_of(schema.dimension);
        if one_wrong {
            let got = if ids.is_empty() { vectors.len() } else { vectors.len() / ids.len() };
            return Err(Error::DimensionMismatch { expected: schema.dimension, got });
        }
        return Err(Error::invalid("vectors", format!("{} of them", ids.len()), vectors.len() / schema.dimension));
    }
    if !metadata.is_empty() && metadata.len() != ids.len() {
        return Err(Error::invalid("metadata", format!("none, or {} of them", ids.len()), metadata.len()));
    }
    if ids.len() >= u32::MAX as usize {
        return Err(Error::invalid("records in a batch", format!("fewer than {}", u32::MAX), ids.len()));
    }
    let mut encoded = encode_without_rows(hasher, ids, metadata)?;
    encoded.rows.reserve_exact(vectors.len() * schema.storage.size_bytes());
    for (id, vector) in ids.iter().zip(vectors.chunks_exact(schema.dimension)) {
        encode_row(schema, &mut encoded, id.as_ref(), vector)?;
    }
    Ok(encoded)
}

/// Encodes the ids and the metadata of a batch. The caller adds the rows afterwards.
pub(crate) fn encode_without_rows<I: AsRef<str>>(
    hasher: &DefaultHashBuilder,
    ids: &[I],
    metadata: &[Value],
) -> Result<EncodedBatch> {
    let mut encoded = EncodedBatch { count: ids.len(), ..EncodedBatch::default() };
    encode_ids(&mut encoded, hasher, ids, metadata)?;
    Ok(encoded)
}

/// Checks and encodes one row.
fn encode_row(schema: &Schema, encoded: &mut EncodedBatch, id: &str, vector: &[f32]) -> Result<()> {
    check_finite(id, vector, schema.storage)?;
    let length_min = if schema.metric == Metric::Cosine { LENGTH_MIN } else { 0.0 };
    let given = square_sum(vector);
    if given > 0.0 {
        check_length(id, length_min, given)?;
    }
    // The square of the row's length, in stored units.
    let square = match schema.storage {
        Storage::F32 => {
            encoded.rows.extend_from_slice(bytemuck::cast_slice(vector));
            given
        }
        Storage::F16 => {
            let round = |value| (f16::from_f32(value).to_ne_bytes(), f16::from_f32(value).to_f32());
            halve(schema, id, vector, &mut encoded.rows, round)?
        }
        Storage::Bf16 => {
            let round = |value| (bf16::from_f32(value).to_ne_bytes(), bf16::from_f32(value).to_f32());
            halve(schema, id, vector, &mut encoded.rows, round)?
        }
        Storage::I8 => {
            let scale = if schema.searches_by_scale() { round_scale_of(vector) } else { scale_of(vector) };
            encoded.scales.push(scale);
            quantise(vector, scale, &mut encoded.rows)
        }
    };
    if schema.metric == Metric::Cosine {
        if square == 0.0 {
            return Err(Error::ZeroVector { id: id.to_owned() });
        }
        encoded.norms.push(square.sqrt() as f32);
    } else if schema.has_norms() {
        encoded.norms.push(encoded.scales.last().map_or(1.0, |scale| 1.0 / scale));
    }
    Ok(())
}

/// Checks a vector's length, given the square of the length.
fn check_length(id: &str, length_min: f64, square: f64) -> Result<()> {
    let (length, length_max) = (square.sqrt(), LENGTH_MAX);
    match (length_min..=length_max).contains(&length) {
        true => Ok(()),
        false => Err(Error::LengthOutOfRange { id: id.to_owned(), length, length_min, length_max }),
    }
}

/// Appends the components in a two-byte type and returns the sum of their squares. `round` returns
/// a component's bytes and the value that they represent.
fn halve(
    schema: &Schema,
    id: &str,
    vector: &[f32],
    rows: &mut Vec<u8>,
    round: impl Fn(f32) -> ([u8; 2], f32),
) -> Result<f64> {
    let mut square = 0.0_f64;
    for (index, value) in vector.iter().enumerate() {
        let (bytes, rounded) = round(*value);
        if !rounded.is_finite() {
            return Err(Error::NotFinite { id: id.to_owned(), index, value: *value, storage: schema.storage.name() });
        }
        square += f64::from(rounded).powi(2);
        rows.extend_from_slice(&bytes);
    }
    Ok(square)
}

/// The smallest scale with which all components fit eight bits.
pub(crate) fn scale_of(vector: &[f32]) -> f32 {
    let largest = vector.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    if largest == 0.0 { 1.0 } else { (largest / I8_MAX).max(f32::MIN_POSITIVE) }
}

/// The smallest power of two with which all components fit eight bits: at most twice `scale_of`.
/// Scaling by a power of two is exact, and decoded components give the same scale again.
pub(crate) fn round_scale_of(vector: &[f32]) -> f32 {
    const MANTISSA: u32 = 0x007f_ffff;
    let bits = scale_of(vector).to_bits();
    f32::from_bits(if bits & MANTISSA == 0 { bits } else { (bits & !MANTISSA) + MANTISSA + 1 })
}

/// Appends the components as eight-bit numbers and returns the sum of their squares.
pub(crate) fn quantise(vector: &[f32], scale: f32, rows: &mut Vec<u8>) -> f64 {
    let mut square = 0_i64;
    rows.extend(vector.iter().map(|value| {
        let small = (value / scale).round_ties_even().clamp(-I8_MAX, I8_MAX) as i8;
        square += i64::from(small) * i64::from(small);
        small as u8
    }));
    square as f64
}

pub(crate) fn square_sum(vector: &[f32]) -> f64 {
    // Four independent sums: a single sum would be one long dependency chain.
    let mut sums = [0.0_f64; 4];
    for chunk in vector.chunks(4) {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    sums.iter().sum()
}

fn check_finite(id: &str, vector: &[f32], storage: Storage) -> Result<()> {
    const EXPONENT: u32 = 0x7f80_0000;
    let bad = vector.iter().fold(false, |bad, value| bad | (value.to_bits() & EXPONENT == EXPONENT));
    if !bad {
        return Ok(());
    }
    let index = vector.iter().position(|value| !value.is_finite()).unwrap_or_default();
    let value = vector.get(index).copied().unwrap_or_default();
    Err(Error::NotFinite { id: id.to_owned(), index, value, storage: storage.name() })
}

fn encode_ids<I: AsRef<str>>(
    encoded: &mut EncodedBatch,
    hasher: &DefaultHashBuilder,
    ids: &[I],
    metadata: &[Value],
) -> Result<()> {
    let mut seen: HashTable<u32> = HashTable::with_capacity(ids.len());
    encoded.offsets.reserve_exact(ids.len());
    encoded.hashes.reserve_exact(ids.len());
    encoded.entries.reserve(ids.iter().map(|id| id.as_ref().len() + ENTRY_HEAD_BYTES).sum());
    for (index, id) in ids.iter().enumerate() {
        let id = id.as_ref();
        if id.is_empty() || id.len() > ID_BYTES_MAX {
            return Err(Error::invalid("id", format!("1 to {ID_BYTES_MAX} bytes"), format!("{} bytes", id.len())));
        }
        let hash = hasher.hash_one(id.as_bytes());
        let hashes = &encoded.hashes;
        let same = |other: &u32| ids[*other as usize].as_ref() == id;
        if seen.find(hash, same).is_some() {
            return Err(Error::DuplicateId { id: id.to_owned() });
        }
        let of = |other: &u32| hashes.get(*other as usize).copied().unwrap_or(hash);
        seen.insert_unique(hash, index as u32, of);
        encoded.hashes.push(hash);
        encode_entry(encoded, id, metadata.get(index).unwrap_or(&Value::Null))?;
    }
    Ok(())
}

impl EncodedBatch {
    /// Adds an entry: an id, and a text that `write` appends. Returns the result of `write` and the
    /// length of the text.
    pub(crate) fn push_entry<T>(&mut self, id: &str, write: impl FnOnce(&mut Vec<u8>) -> T) -> (T, usize) {
        let start = self.entries.len();
        self.offsets.push(start as u64);
        self.entries.extend_from_slice(&(id.len() as u32).to_le_bytes());
        self.entries.extend_from_slice(&[0; 4]);
        self.entries.extend_from_slice(id.as_bytes());
        let text_start = self.entries.len();
        let written = write(&mut self.entries);
        let text_bytes = self.entries.len() - text_start;
        self.entries[start + 4..start + ENTRY_HEAD_BYTES].copy_from_slice(&(text_bytes as u32).to_le_bytes());
        (written, text_bytes)
    }
}

/// Checks metadata and adds its entry. After an error the batch must not be used.
fn encode_entry(encoded: &mut EncodedBatch, id: &str, metadata: &Value) -> Result<()> {
    match metadata {
        Value::Null => {}
        Value::Object(fields) => {
            if !is_shallow(metadata, METADATA_DEPTH_MAX) {
                return Err(Error::invalid("metadata", format!("at most {METADATA_DEPTH_MAX} levels"), id));
            }
            for field in fields.keys() {
                if !encoded.fields.contains(field) {
                    encoded.fields.insert(field.clone());
                }
            }
        }
        other => return Err(Error::invalid("metadata", "an object or null", other)),
    }
    let (written, text_bytes) = encoded.push_entry(id, |entries| match metadata {
        Value::Null => Ok(()),
        _ => serde_json::to_writer(entries, metadata),
    });
    written.map_err(|error| Error::invalid("metadata", "JSON", error))?;
    if text_bytes > METADATA_BYTES_MAX {
        return Err(Error::invalid("metadata", format!("at most {METADATA_BYTES_MAX} bytes"), text_bytes));
    }
    Ok(())
}

/// Refuses metadata that is nested too deeply. Such a value is dropped iteratively, since a
/// recursive drop would overflow the stack.
pub(crate) fn expect_shallow(id: &str, metadata: Value) -> Result<Value> {
    if is_shallow(&metadata, METADATA_DEPTH_MAX) {
        return Ok(metadata);
    }
    let mut waiting = vec![metadata];
    while let Some(value) = waiting.pop() {
        match value {
            Value::Array(values) => waiting.extend(values),
            Value::Object(fields) => waiting.extend(fields.into_values()),
            _ => {}
        }
    }
    Err(Error::invalid("metadata", format!("at most {METADATA_DEPTH_MAX} levels"), id))
}

fn is_shallow(value: &Value, depth_left: usize) -> bool {
    match value {
        Value::Object(fields) => depth_left > 0 && fields.values().all(|value| is_shallow(value, depth_left - 1)),
        Value::Array(values) => depth_left > 0 && values.iter().all(|value| is_shallow(value, depth_left - 1)),
        _ => true,
    }
}

/// Reads native-endian `f32` values from bytes of any alignment.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_ne_bytes([four[0], four[1], four[2], four[3]])).collect()
}

/// The components of a stored row.
pub(crate) fn decode(storage: Storage, row: &[u8], scale: f32) -> Vec<f32> {
    match storage {
        Storage::F32 => floats(row),
        Storage::F16 => row.chunks_exact(2).map(|two| f16::from_ne_bytes([two[0], two[1]]).to_f32()).collect(),
        Storage::Bf16 => row.chunks_exact(2).map(|two| bf16::from_ne_bytes([two[0], two[1]]).to_f32()).collect(),
        Storage::I8 => row.iter().map(|byte| f32::from(*byte as i8) * scale).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn one(schema: &Schema, vector: &[f32]) -> Result<EncodedBatch> {
        encode(schema, &DefaultHashBuilder::default(), &["a"], vector, &[])
    }

    #[test]
    fn bad_vectors_are_refused_by_kind() {
        let schema = Schema::new("c", 3, Metric::Cosine);
        assert!(matches!(one(&schema, &[1.0, 2.0]), Err(Error::DimensionMismatch { expected: 3, got: 2 })));
        let bad = one(&schema, &[1.0, f32::NAN, 0.0]);
        assert!(matches!(bad, Err(Error::NotFinite { index: 1, .. })));
        assert!(matches!(one(&schema, &[0.0; 3]), Err(Error::ZeroVector { .. })));
        for (vector, metric, accepted) in [
            ([1.0e-19, 0.0, 0.0], Metric::Cosine, false),
            ([1.0e-17, 0.0, 0.0], Metric::Cosine, true),
            ([1.0e-30, 0.0, 0.0], Metric::Euclidean, true),
            ([1.0e18, 0.0, 0.0], Metric::Dot, true),
            ([1.0e18, 1.0e18, 0.0], Metric::Dot, false),
            ([1.0e38, 0.0, 0.0], Metric::Euclidean, false),
            ([1.0e38, 0.0, 0.0], Metric::Cosine, false),
        ] {
            let row = one(&Schema::new("c", 3, metric), &vector);
            assert!(matches!(row, Ok(_) | Err(Error::LengthOutOfRange { .. })));
            assert_eq!(row.is_ok(), accepted, "{vector:?} {metric:?}");
        }
        let half = schema.clone().storage(Storage::F16);
        assert!(matches!(one(&half, &[1.0, 70_000.0, 0.0]), Err(Error::NotFinite { index: 1, storage: "f16", .. })));
        assert!(matches!(one(&half, &[1.0e-10, 0.0, 0.0]), Err(Error::ZeroVector { .. })));
        assert!(one(&Schema::new("c", 3, Metric::Dot), &[0.0; 3]).is_ok());
    }

    #[test]
    fn bad_batches_are_refused_by_kind() {
        let schema = Schema::new("c", 1, Metric::Dot);
        let hasher = DefaultHashBuilder::default();
        let twice = encode(&schema, &hasher, &["a", "b", "a"], &[1.0; 3], &[]);
        assert!(matches!(twice, Err(Error::DuplicateId { id }) if id == "a"));
        assert!(matches!(encode(&schema, &hasher, &[""], &[1.0], &[]), Err(Error::InvalidArgument { what: "id", .. })));
        let text = encode(&schema, &hasher, &["a"], &[1.0], &[json!("text")]);
        assert!(matches!(text, Err(Error::InvalidArgument { what: "metadata", .. })));
        let mut deep = json!(1);
        for _ in 0..80 {
            deep = json!({ "a": deep });
        }
        let deep = encode(&schema, &hasher, &["a"], &[1.0], &[deep]);
        assert!(matches!(deep, Err(Error::InvalidArgument { what: "metadata", .. })));
        let counts = encode(&schema, &hasher, &["a", "b"], &[1.0; 2], &[json!({})]);
        assert!(matches!(counts, Err(Error::InvalidArgument { what: "metadata", .. })));
    }

    #[test]
    fn round_scales_are_powers_of_two_and_are_found_again() {
        let schema = Schema::new("c", 3, Metric::Euclidean).storage(Storage::I8);
        for largest in [0.0_f32, 1.0e-38, 3.0e-5, 0.99, 1.0, 126.9, 127.0, 127.1, 254.0, 1.0e18] {
            let encoded = one(&schema, &[largest, -largest / 3.0, largest / 200.0]).unwrap();
            let scale = encoded.scales[0];
            assert_eq!(scale.to_bits() & 0x007f_ffff, 0, "{scale}");
            assert!(
                largest <= 127.0 * scale && (largest < 1.0e-37 || scale < 2.0 * largest / 127.0),
                "{largest} {scale}"
            );
            let again = one(&schema, &decode(Storage::I8, &encoded.rows, scale)).unwrap();
            assert_eq!((&again.rows, &again.scales), (&encoded.rows, &encoded.scales), "{largest}");
        }
    }

    #[test]
    fn eight_bits_keep_the_largest_component_and_round_the_rest() {
        let schema = Schema::new("c", 3, Metric::Dot).storage(Storage::I8);
        let encoded = one(&schema, &[2.54, -1.27, 0.0]).unwrap();
        assert_eq!(encoded.rows, [127, (-64_i8) as u8, 0]);
        let back = decode(Storage::I8, &encoded.rows, encoded.scales[0]);
        assert!((back[0] - 2.54).abs() < 1.0e-6 && (back[1] + 1.27).abs() < 0.02 && back[2] == 0.0);
        assert!((encoded.norms[0] * encoded.scales[0] - 1.0).abs() < 1.0e-6);
    }
}
