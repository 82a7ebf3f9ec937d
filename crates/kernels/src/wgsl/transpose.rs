//! Matrices turned over by tiles of 32 × 32 in workgroup memory, so that reads and writes both run along memory.
//!
//! Parameters: matrices, rows, columns, tiles along rows and columns, the offset. Elements have four bytes.

use super::prelude::{ENTRY, buffers, params};

/// The last two axes of contiguous elements of four bytes, exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransposeKernel;

impl TransposeKernel {
    pub(super) fn source(&self) -> String {
        let mut text = params(&["count", "rows", "columns", "tiles_r", "tiles_c", "o"]);
        text.push_str(&buffers(&[("out", "u32")], &[("source", "u32")]));
        text.push_str("var<workgroup> tile: array<u32, 1056>;\n");
        text.push_str(ENTRY);
        text.push_str(BODY);
        text
    }
}

const BODY: &str = "
  let per_matrix = p.tiles_r * p.tiles_c;
  if (group >= p.count * per_matrix) { return; }
  let matrix = group / per_matrix;
  let r0 = group % per_matrix / p.tiles_c * 32u;
  let c0 = group % per_matrix % p.tiles_c * 32u;
  let base = matrix * p.rows * p.columns;
  let x = lid % 32u;
  let y = lid / 32u;
  for (var s = y; s < 32u; s = s + 8u) {
    if (r0 + s < p.rows && c0 + x < p.columns) { tile[s * 33u + x] = source[p.o + base + (r0 + s) * p.columns + c0 + x]; }
  }
  workgroupBarrier();
  for (var s = y; s < 32u; s = s + 8u) {
    if (c0 + s < p.columns && r0 + x < p.rows) { out[base + (c0 + s) * p.rows + r0 + x] = tile[x * 33u + s]; }
  }
}
";
