//! Search: the exact nearest neighbours of each query.

use crate::buffer::{Buffer, HostBufferMut};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, BatchKey, Describe, Value};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The measure of distance between two vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metric {
    /// The dot product. Larger is nearer.
    Dot,
    /// The cosine of the angle between the vectors. Larger is nearer. A zero vector scores 0 with
    /// every vector.
    Cosine,
    /// The Euclidean distance (the root, not its square). Smaller is nearer.
    Euclidean,
}

impl Metric {
    /// Every metric.
    pub const ALL: [Metric; 3] = [Metric::Dot, Metric::Cosine, Metric::Euclidean];

    /// The name used on the command line and in benchmarks.
    pub const fn name(self) -> &'static str {
        match self {
            Metric::Dot => "dot",
            Metric::Cosine => "cosine",
            Metric::Euclidean => "euclidean",
        }
    }

    /// Whether a smaller score is nearer.
    pub const fn smaller_is_nearer(self) -> bool {
        matches!(self, Metric::Euclidean)
    }

    /// The score of output slots without a row: farther than any number.
    pub const fn missing_score(self) -> f32 {
        if self.smaller_is_nearer() { f32::INFINITY } else { f32::NEG_INFINITY }
    }
}

/// Finds the exact `k` nearest rows of each query.
///
/// Rows are f32, f16, bf16 or i8. Queries have the same element type, or f32. Scores are computed
/// in f32; for i8 rows with i8 queries from exact integer sums. The neighbours of each query are
/// ordered from near to far, and rows of equal score by their ids. A NaN score comes after every
/// number. If fewer than `k` rows may be returned, the remaining slots have the id `u32::MAX` and
/// the score [`Metric::missing_score`]. A `k` of zero gives empty outputs.
#[derive(Clone, Debug)]
pub struct Search {
    /// The rows to search, `[n, d]`. At most `u32::MAX` rows.
    pub rows: Tensor,
    /// The queries, `[q, d]`.
    pub queries: Tensor,
    /// The measure of distance.
    pub metric: Metric,
    /// Number of neighbours for each query.
    pub k: usize,
    /// The rows that may be returned: a u32 tensor `[words]` in which bit `r % 32` of word `r / 32`
    /// stands for row `r`.
    pub filter: Option<Tensor>,
    /// The Euclidean length of each row, f32 `[n]`, which saves computing it for the cosine. The
    /// values are trusted. Other metrics ignore them.
    pub row_norms: Option<Tensor>,
}

impl Search {
    /// Searches all rows for the `k` nearest.
    pub fn new(rows: &Tensor, queries: &Tensor, metric: Metric, k: usize) -> Search {
        Search { rows: rows.clone(), queries: queries.clone(), metric, k, filter: None, row_norms: None }
    }

    /// Searches only the rows whose bit is set.
    pub fn filter(mut self, words: &Tensor) -> Search {
        self.filter = Some(words.clone());
        self
    }

    /// Supplies the length of each row.
    pub fn row_norms(mut self, norms: &Tensor) -> Search {
        self.row_norms = Some(norms.clone());
        self
    }

    /// Joins the queries of all `ops` into one search, for an engine that batches searches of the
    /// same rows. The queries must be on the host and differ only in their number.
    pub fn with_queries_of(&self, ops: &[&Search]) -> Result<Search> {
        expect_rank("search: queries", &self.queries, 2)?;
        let (dtype, dim) = (self.queries.dtype(), self.queries.shape()[1]);
        let mut count = 0;
        for op in ops {
            expect_rank("search: queries", &op.queries, 2)?;
            expect_dtype("search: queries", Some(&op.queries), dtype)?;
            let shape = op.queries.shape();
            if shape[1] != dim {
                let expected = vec![shape[0], dim];
                return Err(Error::ShapeMismatch { what: "search: queries", expected, got: shape.to_vec() });
            }
            count += shape[0];
        }
        let shape = Shape::new([count, dim])?;
        let mut joined = HostBufferMut::zeroed(shape.elements() * dtype.size_bytes())?;
        let mut rest = joined.bytes_mut();
        for op in ops {
            let queries = op.queries.contiguous()?;
            let (own, behind) = rest.split_at_mut(queries.len_bytes());
            own.copy_from_slice(queries.as_bytes()?);
            rest = behind;
        }
        let queries = Tensor::from_host(dtype, shape, joined.freeze())?;
        Ok(Search { queries, ..self.clone() })
    }

    /// The shape of the ids and of the scores, `[q, k]`.
    pub fn output_shape(&self) -> Result<Shape> {
        expect_rank("search: queries", &self.queries, 2)?;
        Shape::new([self.queries.shape()[0], self.k])
    }

    fn check_dtypes(&self) -> Result<()> {
        let (rows, queries) = (self.rows.dtype(), self.queries.dtype());
        if !matches!(rows, DType::F32 | DType::F16 | DType::BF16 | DType::I8) {
            return Err(Error::DTypeUnsupported { what: "search: rows", expected: "f32, f16, bf16 or i8", got: rows });
        }
        if queries != rows && queries != DType::F32 {
            return Err(Error::DTypeMismatch { what: "search: queries", expected: rows, got: queries });
        }
        expect_dtype("search: filter", self.filter.as_ref(), DType::U32)?;
        expect_dtype("search: row norms", self.row_norms.as_ref(), DType::F32)
    }

    fn check_shapes(&self) -> Result<()> {
        expect_rank("search: rows", &self.rows, 2)?;
        expect_rank("search: queries", &self.queries, 2)?;
        let (rows, queries) = (self.rows.shape(), self.queries.shape());
        if rows[1] != queries[1] {
            let expected = vec![queries[0], rows[1]];
            return Err(Error::ShapeMismatch { what: "search: queries", expected, got: queries.to_vec() });
        }
        if u32::try_from(rows[0]).is_err() {
            return Err(Error::OutOfBounds { what: "search: rows", limit: u32::MAX as usize, got: rows[0] });
        }
        if let Some(filter) = &self.filter {
            expect_rank("search: filter", filter, 1)?;
            let words = rows[0].div_ceil(32);
            if filter.elements() < words {
                let expected = format!("at least {words} words");
                return Err(Error::invalid("search: filter", expected, filter.elements()));
            }
        }
        if let Some(norms) = &self.row_norms
            && norms.shape().dims() != [rows[0]]
        {
            let (expected, got) = (vec![rows[0]], norms.shape().to_vec());
            return Err(Error::ShapeMismatch { what: "search: row norms", expected, got });
        }
        self.output_shape().map(drop)
    }
}

impl Describe for Search {
    fn name(&self) -> &'static str {
        "search"
    }

    fn validate(&self) -> Result<()> {
        self.check_dtypes()?;
        self.check_shapes()
    }

    crate::parts!(rows, queries, filter, row_norms);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        let shape = self.output_shape()?;
        Ok(AnswerTypes::Pair([(DType::U32, shape), (DType::F32, shape)]))
    }

    fn can_be_node(&self) -> bool {
        false
    }

    /// Number of elements compared.
    fn work(&self) -> u64 {
        let queries = self.queries.shape().first().copied().unwrap_or(1);
        (self.rows.elements() as u64).saturating_mul(queries as u64)
    }

    /// Searches of the same rows with the same metric and `k` are joined, if they have no filter.
    fn batch_key(&self) -> Option<BatchKey> {
        if self.filter.is_some() {
            return None;
        }
        let rows = match self.rows.buffer() {
            Buffer::Host(buffer) => (None, buffer.bytes().as_ptr() as u64),
            Buffer::Device(buffer) => (Some(buffer.device()), buffer.token()),
        };
        let view = (self.rows.shape(), self.rows.strides(), self.rows.offset(), self.rows.dtype());
        Some(BatchKey::of(("search", rows, view, self.queries.dtype(), self.metric, self.k)))
    }
}

/// The result of a [`Search`]: for each query a row of `k` neighbours, the nearest first.
#[derive(Clone, Debug)]
pub struct Neighbors {
    /// The indices of the rows, u32 `[q, k]`. `u32::MAX` in slots without a row.
    pub ids: Tensor,
    /// The scores of the rows, f32 `[q, k]`.
    pub scores: Tensor,
}

impl Neighbors {
    /// Makes the result from the ids and scores of an engine's answer.
    pub fn from_value(value: Value) -> Result<Neighbors> {
        let (ids, scores) = value.into_pair()?;
        Ok(Neighbors { ids, scores })
    }
}

fn expect_rank(what: &'static str, tensor: &Tensor, rank: usize) -> Result<()> {
    if tensor.shape().rank() != rank {
        return Err(Error::RankMismatch { what, expected: rank.to_string().into(), got: tensor.shape().rank() });
    }
    Ok(())
}

fn expect_dtype(what: &'static str, tensor: Option<&Tensor>, expected: DType) -> Result<()> {
    match tensor {
        Some(tensor) if tensor.dtype() != expected => Err(Error::DTypeMismatch { what, expected, got: tensor.dtype() }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::f16;

    fn zeros<T: crate::Element>(dims: impl AsRef<[usize]>) -> Tensor {
        Tensor::from_vec(vec![T::zeroed(); dims.as_ref().iter().product()], dims).unwrap()
    }

    #[test]
    fn queries_of_several_searches_are_joined_in_order() {
        let rows = zeros::<f32>([4, 2]);
        let of = |values: &[f32]| {
            let queries = Tensor::from_vec(values.to_vec(), [values.len() / 2, 2]).unwrap();
            Search::new(&rows, &queries, Metric::Dot, 1)
        };
        let (first, second) = (of(&[1.0, 2.0]), of(&[3.0, 4.0, 5.0, 6.0]));
        let joined = first.with_queries_of(&[&first, &second]).unwrap();
        assert_eq!(joined.queries.shape().dims(), [3, 2]);
        assert_eq!(joined.queries.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let wider = Search::new(&rows, &zeros::<f32>([1, 3]), Metric::Dot, 1);
        assert!(matches!(first.with_queries_of(&[&first, &wider]), Err(Error::ShapeMismatch { .. })));
        let other = Search::new(&rows, &zeros::<f16>([1, 2]), Metric::Dot, 1);
        assert!(first.with_queries_of(&[&first, &other]).is_err());
    }

    #[test]
    fn shapes_and_their_errors() {
        let (rows, queries) = (zeros::<f32>([40, 8]), zeros::<f32>([3, 8]));
        let search = Search::new(&rows, &queries, Metric::Dot, 100);
        search.validate().unwrap();
        assert_eq!(search.output_shape().unwrap().dims(), [3, 100]);
        let wrong = Search::new(&rows, &zeros::<f32>([3, 7]), Metric::Dot, 1);
        assert!(matches!(wrong.validate(), Err(Error::ShapeMismatch { what: "search: queries", .. })));
        let wrong = Search::new(&zeros::<f32>([8]), &queries, Metric::Dot, 1);
        assert!(matches!(wrong.validate(), Err(Error::RankMismatch { what: "search: rows", .. })));
        let wrong = Search::new(&rows, &queries, Metric::Dot, usize::MAX);
        assert!(matches!(wrong.validate(), Err(Error::SizeOverflow { .. })));
        let wrong = search.clone().filter(&zeros::<u32>([1]));
        assert!(matches!(wrong.validate(), Err(Error::InvalidArgument { what: "search: filter", .. })));
        search.clone().filter(&zeros::<u32>([2])).validate().unwrap();
        let wrong = search.clone().row_norms(&zeros::<f32>([41]));
        assert!(matches!(wrong.validate(), Err(Error::ShapeMismatch { what: "search: row norms", .. })));
        let endless = zeros::<f32>([1, 8]).broadcast_to([1 << 33, 8]).unwrap();
        let wrong = Search::new(&endless, &queries, Metric::Dot, 1);
        assert!(matches!(wrong.validate(), Err(Error::OutOfBounds { what: "search: rows", .. })));
    }

    #[test]
    fn element_types_and_their_errors() {
        let (f32s, f16s, i8s, i32s) =
            (zeros::<f32>([4, 2]), zeros::<f16>([4, 2]), zeros::<i8>([4, 2]), zeros::<i32>([4, 2]));
        for (rows, queries) in [(&f16s, &f32s), (&i8s, &f32s), (&i8s, &i8s), (&f16s, &f16s)] {
            Search::new(rows, queries, Metric::Cosine, 1).validate().unwrap();
        }
        let wrong = Search::new(&f32s, &f16s, Metric::Cosine, 1);
        assert!(matches!(wrong.validate(), Err(Error::DTypeMismatch { what: "search: queries", .. })));
        let wrong = Search::new(&i32s, &i32s, Metric::Cosine, 1);
        assert!(matches!(wrong.validate(), Err(Error::DTypeUnsupported { what: "search: rows", .. })));
        let wrong = Search::new(&f32s, &f32s, Metric::Cosine, 1).filter(&i8s);
        assert!(matches!(wrong.validate(), Err(Error::DTypeMismatch { what: "search: filter", .. })));
    }
}
