//! Eight-bit copies of rows.
//!
//! Each row of the copy has its own scale; with euclidean the scale is a power of two, and rows are
//! searched by scale.

use std::sync::{Arc, Mutex, PoisonError};

use panoply_core::Tensor;
use panoply_core::op::compute::Metric;

use super::scales::Scales;
use crate::encode::{quantise, round_scale_of, scale_of};
use crate::error::Result;
use crate::region::out_of_memory;
use crate::schema::{Schema, Storage};
use crate::segment::SegmentView;

/// Rows beyond a segment's copy, as a share of the copy (1/8), before the copy is made again.
const REST_SHARE_MAX: u32 = 8;

/// The eight-bit copy of a segment's rows, made on first use.
#[derive(Default)]
pub(crate) struct CodesCache {
    codes: Mutex<Option<Arc<Codes>>>,
}

/// Eight-bit copies of the first rows of a segment.
pub(crate) struct Codes {
    pub(crate) count: u32,
    pub(crate) rows: Tensor,
    pub(crate) norms: Option<Tensor>,
    /// The scales by which rows are searched, for euclidean.
    pub(crate) scales: Option<Scales>,
}

impl CodesCache {
    /// The copy for a snapshot's rows; `None` if the stored rows have eight bits already.
    pub(crate) fn of(&self, segment: &SegmentView, schema: &Schema) -> Option<Arc<Codes>> {
        if schema.storage == Storage::I8 || segment.count == 0 {
            return None;
        }
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = |codes: &&Arc<Codes>| segment.count.saturating_sub(codes.count) <= codes.count / REST_SHARE_MAX;
        if let Some(codes) = codes.as_ref().filter(enough) {
            return Some(Arc::clone(codes));
        }
        // Without memory for a copy, the stored rows are searched.
        *codes = Codes::new(segment, schema).ok().map(Arc::new);
        codes.clone()
    }
}

impl Codes {
    fn new(segment: &SegmentView, schema: &Schema) -> Result<Codes> {
        let count = segment.count as usize;
        let by_scale = schema.metric == Metric::Euclidean;
        let (mut rows, mut norms, mut scales) = (Vec::new(), Vec::new(), Vec::new());
        let bytes = count.saturating_mul(schema.dimension);
        rows.try_reserve_exact(bytes).map_err(|_| out_of_memory(bytes))?;
        for row in 0..segment.count {
            let vector = segment.vector(row);
            let scale = if by_scale { round_scale_of(&vector) } else { scale_of(&vector) };
            let square = quantise(&vector, scale, &mut rows);
            match schema.metric {
                Metric::Cosine => norms.push(square.sqrt() as f32),
                Metric::Dot => norms.push(1.0 / scale),
                Metric::Euclidean => scales.push(scale),
            }
        }
        let rows = Tensor::from_slice::<i8>(bytemuck::cast_slice(&rows), [count, schema.dimension])?;
        let norms = if by_scale { None } else { Some(Tensor::from_vec(norms, [count])?) };
        let scales = by_scale.then(|| Scales::continued(None, segment.count, |row| scales[row as usize]));
        Ok(Codes { count: segment.count, rows, norms, scales })
    }
}
