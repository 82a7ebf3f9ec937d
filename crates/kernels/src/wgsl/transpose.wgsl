// Matrices turned over by tiles of 32 x 32 in workgroup memory, so that reads and writes both run along memory.

const TILE = 32u;
// One more than a tile has, so that banks of memory take turns.
const TILE_LINE = 33u;

struct Params {
  count: u32,
  rows: u32,
  columns: u32,
  tiles_r: u32,
  tiles_c: u32,
  o: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<u32>;
@group(1) @binding(next) var<storage, read> source: array<u32>;
var<workgroup> tile: array<u32, 1056>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let per_matrix = p.tiles_r * p.tiles_c;
  if (group >= p.count * per_matrix) { return; }
  let matrix = group / per_matrix;
  let r0 = group % per_matrix / p.tiles_c * TILE;
  let c0 = group % per_matrix % p.tiles_c * TILE;
  let base = matrix * p.rows * p.columns;
  let x = lid % TILE;
  let y = lid / TILE;
  for (var s = y; s < TILE; s = s + 8u) {
    if (r0 + s < p.rows && c0 + x < p.columns) { tile[s * TILE_LINE + x] = source[p.o + base + (r0 + s) * p.columns + c0 + x]; }
  }
  workgroupBarrier();
  for (var s = y; s < TILE; s = s + 8u) {
    if (c0 + s < p.columns && r0 + x < p.rows) { out[base + (c0 + s) * p.rows + r0 + x] = tile[x * TILE_LINE + s]; }
  }
}
