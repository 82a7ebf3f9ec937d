// The frame of a tiled matrix product. Other files supply its operands and its epilogue.
//
// A workgroup of 16 x 16 invocations makes a tile of `64 ROWS` x `64 COLUMNS` outputs; an invocation holds blocks of 4 x 4 of them in
// registers, a vector for each row of a block. Tiles of both operands, sixteen steps of the inner dimension deep, go through workgroup
// memory; while one is multiplied the next is on its way into registers. Workgroups walk the output in bands of eight tiles, so that
// neighbours in time share operands in the cache.

const DEPTH = 16u;
// Vectors of four along a tile's rows and columns.
const WIDE_M = 16u * $ROWSu;
const WIDE_N = 16u * $COLUMNSu;
// Invocations that fetch each operand.
const FETCH_A = 64u * $ROWSu;
const FETCH_B = 64u * $COLUMNSu;

var<workgroup> tile_a: array<vec4<T>, $TILE_A>;
var<workgroup> tile_b: array<vec4<T>, $TILE_B>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let per_batch = p.tiles_m * p.tiles_n;
  if (group >= per_batch * p.batches) { return; }
  let batch = group / per_batch;
  let t = group % per_batch;
  let band_width = 8u * p.tiles_n;
  let band_first = t / band_width * 8u;
  let band_rows = min(p.tiles_m - band_first, 8u);
  let m0 = (band_first + t % band_width % band_rows) * (64u * $ROWSu);
  let n0 = (t % band_width / band_rows) * (64u * $COLUMNSu);
  let tx = lid % 16u;
  let ty = lid / 16u;
  // Four, as far as compilers know any number: a loop to it stays a loop.
  let four = 4u + (p.m >> 31u);
//# if KERNEL is Conv
  let g = i32(batch);
//# if UNROLLED
//# for L in 4
  var y$L = 0;
  var x$L = 0;
  var base$L = 0;
//# end
//# end
//# else
//# include batches.wgsl
//# end
  // Four inner steps of what this invocation fetches.
  var g0 = vec4<T>();
  var g1 = g0;
  var g2 = g0;
  var g3 = g0;
//# for I in ROWS
//# for J in COLUMNS
  var c${I}x_$J = vec4<T>();
//# end
//# for J in COLUMNS
  var c${I}y_$J = vec4<T>();
//# end
//# for J in COLUMNS
  var c${I}z_$J = vec4<T>();
//# end
//# for J in COLUMNS
  var c${I}w_$J = vec4<T>();
//# end
//# end
  // Which operand an invocation fetches, and which quads of it, is fixed. Four invocations that fetch along the inner dimension would
  // write to the same banks of memory: the places of each quad of steps are mixed in another way.
  let loads_a = lid < FETCH_A;
  let loads_b = lid >= FETCH_A && lid < FETCH_A + FETCH_B;
  var slot = 0u;
  var outer = 0u;
  var inner = 0u;
  if (loads_a) {
//# if ORDER_A is AlongInner
    let outer_quad = lid / 4u;
    let inner_quad = lid % 4u;
    slot = inner_quad * 4u * WIDE_M + (outer_quad ^ (inner_quad * 2u));
//# else
    let outer_quad = lid % WIDE_M;
    let inner_quad = lid / WIDE_M;
    slot = inner_quad * 4u * WIDE_M + outer_quad;
//# end
    outer = m0 + outer_quad * 4u;
    inner = inner_quad * 4u;
  }
  if (loads_b) {
    let l = lid - FETCH_A;
//# if ORDER_B is AlongInner
    let outer_quad = l / 4u;
    let inner_quad = l % 4u;
    slot = inner_quad * 4u * WIDE_N + (outer_quad ^ (inner_quad * 2u));
//# else
    let outer_quad = l % WIDE_N;
    let inner_quad = l / WIDE_N;
    slot = inner_quad * 4u * WIDE_N + outer_quad;
//# end
    outer = n0 + outer_quad * 4u;
    inner = inner_quad * 4u;
  }
//# if UNROLLED
  {
    let kf = inner;
//# include tile_fetch.wgsl
  }
//# end
  var stage = 0u;
  for (var k0 = 0u; k0 < p.k; k0 = k0 + DEPTH) {
//# if not UNROLLED
    // Without the next tile on its way, the text that fetches stands only once.
    {
      let kf = k0 + inner;
//# include tile_fetch.wgsl
    }
//# end
    if (loads_a) {
//# for S in 4
      tile_a[${STAGE_A}slot + $Su * WIDE_M] = g$S;
//# end
    }
    if (loads_b) {
//# for S in 4
      tile_b[${STAGE_B}slot + $Su * WIDE_N] = g$S;
//# end
    }
    workgroupBarrier();
//# if UNROLLED
    if (k0 + DEPTH < p.k) {
      let kf = k0 + DEPTH + inner;
//# include tile_fetch.wgsl
    }
//# for S in 16
    {
      const step = $Su;
//# include tile_step.wgsl
    }
//# end
//# else
    let depth = min(DEPTH, p.k - k0);
    for (var step = 0u; step < depth; step = step + 1u) {
//# include tile_step.wgsl
    }
//# end
//# if DOUBLE
    stage = 1u - stage;
//# else
    workgroupBarrier();
//# end
  }
//# if UNROLLED
//# for I in ROWS
//# for J in COLUMNS
//# include tile_store.wgsl with ROW=0 SUM=c${I}x_$J
//# end
//# for J in COLUMNS
//# include tile_store.wgsl with ROW=1 SUM=c${I}y_$J
//# end
//# for J in COLUMNS
//# include tile_store.wgsl with ROW=2 SUM=c${I}z_$J
//# end
//# for J in COLUMNS
//# include tile_store.wgsl with ROW=3 SUM=c${I}w_$J
//# end
//# end
//# else
//# for J in COLUMNS
  var sums$J = array<vec4<T>, 4 * $ROWS>();
//# for I in ROWS
  sums$J[4u * $Iu] = c${I}x_$J;
  sums$J[4u * $Iu + 1u] = c${I}y_$J;
  sums$J[4u * $Iu + 2u] = c${I}z_$J;
  sums$J[4u * $Iu + 3u] = c${I}w_$J;
//# end
  for (var line = 0u; line < $ROWSu * four; line = line + 1u) {
//# include tile_store.wgsl with SUM=sums$J[line]
  }
//# end
//# end
}
