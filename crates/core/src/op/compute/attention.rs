//! Attention as one op: values weighted by the softmax of scaled products of queries and keys.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, CostClass, Describe};
use crate::shape::{Shape, Strides};
use crate::tensor::Tensor;

/// `softmax(scale · Q·Kᵀ + mask) · V`, for f32, f16 and bf16. Memory grows with the length of the
/// sequence, not with its square.
///
/// Queries are `… × heads × n_q × d`, keys `… × kv_heads × n_k × d`, values
/// `… × kv_heads × n_k × d_v`. The dimensions before these are a batch and must be the same in all
/// three. If there are fewer heads of keys than of queries, each head of keys serves
/// `heads / kv_heads` neighbouring heads of queries. The output is `… × heads × n_q × d_v`, of the
/// queries' element type. Views with a contiguous last dimension are read in place, such as the
/// three parts of a packed `batch × n × 3 × heads × d`.
///
/// Sums and the softmax are kept in f32, and the largest score is subtracted first, so that nothing
/// overflows. An engine may round the weights, which lie between 0 and 1, to the element type of
/// the values before multiplying, and may add in any order. Products of f32 are exact to at least
/// 21 bits.
///
/// A query without keys gives zeros: if there are no keys, if [`Attention::causal`] hides all of
/// them, or if every score is -∞. A row with a NaN or +∞ score gives NaN. An infinite value makes
/// its column infinite or NaN. The effect of a NaN or infinite value whose key has weight zero is
/// unspecified.
#[derive(Clone, Debug)]
pub struct Attention {
    /// The queries, `… × heads × n_q × d`.
    pub q: Tensor,
    /// The keys, `… × kv_heads × n_k × d`.
    pub k: Tensor,
    /// The values, `… × kv_heads × n_k × d_v`.
    pub v: Tensor,
    /// Added to the scaled scores. Its type is f32 or the queries' type, and it broadcasts to
    /// `… × heads × n_q × n_k`. A score of -∞ hides a key.
    pub mask: Option<Tensor>,
    /// Whether the mask is causal, aligned at the end: the last query sees all keys, and query `i`
    /// sees key `j` if `j ≤ i + n_k - n_q`.
    pub is_causal: bool,
    /// The factor of the products. `None`: `1 / √d`.
    pub scale: Option<f32>,
}

/// The sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// The dimensions before the heads.
    pub batch: Shape,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and of values.
    pub kv_heads: usize,
    /// Queries of a head.
    pub n_q: usize,
    /// Keys of a head.
    pub n_k: usize,
    /// Elements of a query and of a key.
    pub d: usize,
    /// Elements of a value.
    pub d_v: usize,
}

impl AttentionShape {
    /// Number of heads of queries that share one head of keys.
    pub fn group(&self) -> usize {
        self.heads.checked_div(self.kv_heads).unwrap_or(1)
    }

    /// Number of heads of queries in the whole batch.
    pub fn lines(&self) -> usize {
        self.batch.elements() * self.heads
    }

    /// Number of keys that query `row` sees under a causal mask: the keys before this index.
    pub fn seen_by(&self, row: usize) -> usize {
        (row + 1 + self.n_k).saturating_sub(self.n_q).min(self.n_k)
    }
}

impl Attention {
    /// Attention without a mask, scaled by `1 / √d`.
    pub fn new(q: &Tensor, k: &Tensor, v: &Tensor) -> Attention {
        Attention { q: q.clone(), k: k.clone(), v: v.clone(), mask: None, is_causal: false, scale: None }
    }

    /// Adds a mask to the scaled scores.
    pub fn mask(mut self, mask: &Tensor) -> Attention {
        self.mask = Some(mask.clone());
        self
    }

    /// Makes the mask causal: no query sees keys after its own. The last query's own key is the
    /// last key.
    pub fn causal(mut self) -> Attention {
        self.is_causal = true;
        self
    }

    /// Scales the products by this factor instead of `1 / √d`.
    pub fn scale(mut self, scale: f32) -> Attention {
        self.scale = Some(scale);
        self
    }

    /// The factor of the products. It is 1 if `d` is zero, since then there is nothing to scale.
    pub fn scale_or_default(&self) -> f32 {
        let d = self.q.shape().last().copied().unwrap_or(0);
        self.scale.unwrap_or(if d == 0 { 1.0 } else { (1.0 / (d as f64).sqrt()) as f32 })
    }

    /// Checks and returns the sizes.
    pub fn attention_shape(&self) -> Result<AttentionShape> {
        for (what, tensor) in [("attention q", &self.q), ("attention k", &self.k), ("attention v", &self.v)] {
            if tensor.shape().rank() < 3 {
                let expected = "at least 3: heads, rows and columns".into();
                return Err(Error::RankMismatch { what, expected, got: tensor.shape().rank() });
            }
        }
        let (batch, own) = self.q.shape().split_at(self.q.shape().rank() - 3);
        let (k_batch, keys) = self.k.shape().split_at(self.k.shape().rank() - 3);
        let (heads, n_q, d) = (own[0], own[1], own[2]);
        let (kv_heads, n_k) = (keys[0], keys[1]);
        let d_v = self.v.shape()[self.v.shape().rank() - 1];
        let whole = |dims: [usize; 3]| [batch, &dims].concat();
        if k_batch != batch || keys[2] != d {
            let (expected, got) = (whole([kv_heads, n_k, d]), self.k.shape().to_vec());
            return Err(Error::ShapeMismatch { what: "attention k", expected, got });
        }
        let (v_batch, values) = self.v.shape().split_at(self.v.shape().rank() - 3);
        if v_batch != batch || values != [kv_heads, n_k, d_v] {
            let (expected, got) = (whole([kv_heads, n_k, d_v]), self.v.shape().to_vec());
            return Err(Error::ShapeMismatch { what: "attention v", expected, got });
        }
        let divides = if kv_heads == 0 { heads == 0 } else { heads.is_multiple_of(kv_heads) };
        if !divides {
            let expected = format!("heads of keys that divide the {heads} of queries");
            return Err(Error::invalid("attention heads", expected, kv_heads));
        }
        Ok(AttentionShape { batch: Shape::new(batch)?, heads, kv_heads, n_q, n_k, d, d_v })
    }

    /// The output's shape: that of the queries, with the last dimension of the values.
    pub fn output_shape(&self) -> Result<Shape> {
        let shape = self.attention_shape()?;
        shape.batch.joined(&[shape.heads, shape.n_q, shape.d_v])
    }

    /// The mask as a view in the shape of all scores.
    pub fn whole_mask(&self) -> Result<Option<Tensor>> {
        let Some(mask) = &self.mask else { return Ok(None) };
        let shape = self.attention_shape()?;
        let expected = shape.batch.joined(&[shape.heads, shape.n_q, shape.n_k])?;
        let mismatch = |_| {
            let (expected, got) = (expected.to_vec(), mask.shape().to_vec());
            Error::ShapeMismatch { what: "attention mask", expected, got }
        };
        mask.broadcast_to(expected).map(Some).map_err(mismatch)
    }

    /// If each head has a single query, makes the heads that share keys into queries of one head,
    /// so that keys and values are read once for all of them. The output has the same elements in
    /// the same order. `None` if there is nothing to fold.
    pub fn folded(&self) -> Result<Option<Attention>> {
        let shape = self.attention_shape()?;
        if shape.n_q != 1 || shape.group() < 2 || shape.kv_heads == 0 {
            return Ok(None);
        }
        let fold = |tensor: &Tensor| {
            let heads = tensor.shape().rank() - 3;
            let (mut dims, mut steps) = (tensor.shape().to_vec(), tensor.strides().to_vec());
            (dims[heads], dims[heads + 1]) = (shape.kv_heads, shape.group());
            (steps[heads], steps[heads + 1]) = (steps[heads].saturating_mul(shape.group() as isize), steps[heads]);
            let (dims, steps) = (Shape::new(dims)?, Strides::new(steps)?);
            Tensor::from_parts(tensor.dtype(), dims, steps, tensor.offset(), tensor.buffer().clone())
        };
        let mask = self.whole_mask()?.map(|mask| fold(&mask)).transpose()?;
        // A single query sees every key.
        let op = Attention { q: fold(&self.q)?, mask, is_causal: false, ..self.clone() };
        Ok(Some(Attention { scale: Some(self.scale_or_default()), ..op }))
    }

    fn check_dtypes(&self) -> Result<()> {
        let dtype = self.q.dtype();
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(Error::DTypeUnsupported { what: "attention", expected: "f32, f16 or bf16", got: dtype });
        }
        for (what, tensor) in [("attention k", &self.k), ("attention v", &self.v)] {
            if tensor.dtype() != dtype {
                return Err(Error::DTypeMismatch { what, expected: dtype, got: tensor.dtype() });
            }
        }
        match &self.mask {
            Some(mask) if mask.dtype() != dtype && mask.dtype() != DType::F32 => {
                Err(Error::DTypeMismatch { what: "attention mask", expected: dtype, got: mask.dtype() })
            }
            _ => Ok(()),
        }
    }
}

impl Describe for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn validate(&self) -> Result<()> {
        self.check_dtypes()?;
        self.output_shape()?;
        self.whole_mask()?;
        match self.scale {
            Some(scale) if !scale.is_finite() => Err(Error::invalid("attention scale", "a finite number", scale)),
            _ => Ok(()),
        }
    }

    crate::parts!(q, k, v, mask);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.q.dtype(), self.output_shape()?))
    }

    /// Number of multiplications.
    fn work(&self) -> u64 {
        let Ok(shape) = self.attention_shape() else { return 0 };
        let pairs = if self.is_causal && shape.n_q > 0 {
            // The number of visible keys grows by one from query to query, starting at the first
            // query that sees any.
            let (first, last) = (shape.seen_by(0) as u64, shape.n_k as u64);
            let rows = (shape.n_q as u64).min(last);
            rows.saturating_mul(first.max(1) + last) / 2
        } else {
            (shape.n_q as u64).saturating_mul(shape.n_k as u64)
        };
        pairs.saturating_mul((shape.d + shape.d_v) as u64).saturating_mul(shape.lines() as u64)
    }

    /// One query per head is limited by reading keys and values, many queries by multiplications.
    fn cost_class(&self) -> CostClass {
        let rows = self.q.shape().iter().rev().nth(1).copied().unwrap_or(0);
        if rows <= 1 { CostClass::labelled("one-query") } else { CostClass::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeros(dtype: DType, dims: &[usize]) -> Tensor {
        Tensor::zeros(dtype, dims).unwrap()
    }

    fn f32s(dims: &[usize]) -> Tensor {
        zeros(DType::F32, dims)
    }

    fn op(q: &[usize], k: &[usize], v: &[usize]) -> Attention {
        Attention::new(&f32s(q), &f32s(k), &f32s(v))
    }

    #[test]
    fn output_shapes_follow_queries_and_values() {
        let shape = |op: Attention| op.output_shape().unwrap().to_vec();
        assert_eq!(shape(op(&[2, 6, 5, 8], &[2, 3, 7, 8], &[2, 3, 7, 4])), [2, 6, 5, 4]);
        assert_eq!(shape(op(&[1, 5, 0], &[1, 7, 0], &[1, 7, 3])), [1, 5, 3]);
        assert_eq!(shape(op(&[4, 5, 8], &[4, 0, 8], &[4, 0, 2])), [4, 5, 2]);
        assert_eq!(shape(op(&[0, 5, 8], &[0, 7, 8], &[0, 7, 8])), [0, 5, 8]);
        assert_eq!(op(&[6, 5, 8], &[3, 7, 8], &[3, 7, 4]).attention_shape().unwrap().group(), 2);
    }

    #[test]
    fn bad_shapes_are_refused_with_what_was_expected() {
        let refused = |op: Attention| op.validate().unwrap_err();
        let good = [2, 4, 5, 8];
        assert!(matches!(refused(op(&[5, 8], &good, &good)), Error::RankMismatch { what: "attention q", got: 2, .. }));
        let error = refused(op(&good, &[2, 4, 7, 6], &[2, 4, 7, 6]));
        let (expected, got) = (vec![2, 4, 7, 8], vec![2, 4, 7, 6]);
        assert_eq!(error, Error::ShapeMismatch { what: "attention k", expected, got });
        let error = refused(op(&good, &[3, 4, 7, 8], &[3, 4, 7, 8]));
        assert!(matches!(error, Error::ShapeMismatch { what: "attention k", .. }));
        let error = refused(op(&good, &[2, 4, 7, 8], &[2, 4, 6, 8]));
        assert!(matches!(error, Error::ShapeMismatch { what: "attention v", .. }));
        for kv_heads in [3, 8, 0] {
            let error = refused(op(&good, &[2, kv_heads, 7, 8], &[2, kv_heads, 7, 8]));
            assert!(matches!(error, Error::InvalidArgument { .. }), "{kv_heads}");
        }
        let masked = op(&good, &good, &good).mask(&f32s(&[4, 5, 6]));
        assert!(matches!(refused(masked), Error::ShapeMismatch { what: "attention mask", .. }));
        assert!(op(&good, &good, &good).mask(&f32s(&[2, 1, 5, 5])).validate().is_ok());
    }

    #[test]
    fn bad_types_and_scales_are_refused() {
        let half = zeros(DType::F16, &[1, 2, 4]);
        let plain = || Attention::new(&half, &half, &half);
        let mixed = Attention::new(&half, &f32s(&[1, 2, 4]), &half).validate();
        assert!(matches!(mixed, Err(Error::DTypeMismatch { what: "attention k", .. })));
        let double = zeros(DType::F64, &[1, 2, 4]);
        let refused = Attention::new(&double, &double, &double).validate();
        assert!(matches!(refused, Err(Error::DTypeUnsupported { .. })));
        assert!(plain().mask(&f32s(&[2, 2])).validate().is_ok());
        assert!(plain().mask(&zeros(DType::F16, &[2])).validate().is_ok());
        let masked = plain().mask(&zeros(DType::BF16, &[2])).validate();
        assert!(matches!(masked, Err(Error::DTypeMismatch { what: "attention mask", .. })));
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(matches!(plain().scale(bad).validate(), Err(Error::InvalidArgument { .. })));
        }
        assert_eq!((plain().scale_or_default(), plain().scale(-2.0).scale_or_default()), (0.5, -2.0));
    }

    #[test]
    fn the_last_query_sees_the_last_key() {
        let seen = |n_q: usize, n_k: usize| -> Vec<usize> {
            let shape = op(&[1, n_q, 1], &[1, n_k, 1], &[1, n_k, 1]).attention_shape().unwrap();
            (0..n_q).map(|row| shape.seen_by(row)).collect()
        };
        assert_eq!(seen(3, 3), [1, 2, 3]);
        assert_eq!(seen(2, 5), [4, 5]);
        assert_eq!(seen(5, 2), [0, 0, 0, 1, 2]);
        assert_eq!(seen(2, 0), [0, 0]);
    }

    #[test]
    fn heads_of_one_query_become_queries_of_one_head() {
        let plain = op(&[2, 6, 1, 8], &[2, 3, 7, 8], &[2, 3, 7, 4]).mask(&f32s(&[6, 1, 7])).causal();
        let folded = plain.folded().unwrap().unwrap();
        assert_eq!((folded.q.shape().dims(), folded.q.strides().to_vec()), (&[2, 3, 2, 8][..], vec![48, 16, 8, 1]));
        let mask = folded.mask.as_ref().unwrap();
        assert_eq!((mask.shape().dims(), mask.strides().to_vec()), (&[2, 3, 2, 7][..], vec![0, 14, 7, 1]));
        assert!(folded.validate().is_ok() && !folded.is_causal && folded.output_shape().unwrap().elements() == 48);
        assert!(op(&[3, 1, 8], &[3, 7, 8], &[3, 7, 4]).folded().unwrap().is_none());
        assert!(op(&[6, 2, 8], &[3, 7, 8], &[3, 7, 4]).folded().unwrap().is_none());
    }

    #[test]
    fn work_counts_what_is_seen() {
        let plain = op(&[2, 3, 4, 8], &[2, 3, 6, 8], &[2, 3, 6, 2]);
        assert_eq!(plain.work(), 6 * 4 * 6 * 10);
        assert_eq!(plain.causal().work(), 6 * (3 + 4 + 5 + 6) * 10);
        assert_eq!(op(&[1, 5, 8], &[1, 2, 8], &[1, 2, 8]).causal().work(), (1 + 2) * 16);
    }
}
