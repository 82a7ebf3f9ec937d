// Products of 16-bit numbers on a device's matrix units, summed up in f32: `activation(alpha * A B + beta * C + bias)`, the windows of a
// convolution as B, or candidates of a search.
//
// Subgroups of 32 invocations stand in a grid; each makes `16 ROWS` x `32 PAIRS` outputs as matrices that live in its registers. Tiles of
// both operands go through workgroup memory in the arrangement that they have in memory; while one is multiplied the next is on its way
// into registers. Sums go through workgroup memory once more, sixteen rows of 32 columns of a subgroup at a time, at a separate place for each subgroup.
//
// Sixteen bytes move at a time, and lines of a tile are sixteen bytes longer than they must be, so that banks of memory take turns. The
// moved words have the type vec4<f32>. The matrices A and B, which are f32 in this text, hold numbers of 16 bits: the driver changes
// their type (`wide` of the driver's `KernelText`), and makes barriers of subgroups cover workgroup memory. WGSL has no matrices whose
// numbers are smaller than those of the memory that they are loaded from. (Indices of the matrices' loads and stores are named first: naga 30 does not compile expressions inside of them.)
enable wgpu_cooperative_matrix;

alias T = f32;
// Eight numbers of 16 bits.
alias Eight = vec4<f32>;
//# if LOAD_B is Windows
//# include wide_window_params.wgsl
//# else
//# include product_params.wgsl
//# end
//# if KERNEL is Lists
@group(1) @binding(next) var<storage, read_write> lists: array<vec2<u32>>;
@group(1) @binding(next) var<storage, read_write> counts: array<atomic<u32>>;
//# else
//# if PACKED
@group(1) @binding(next) var<storage, read_write> out: array<vec2<u32>>;
//# else
@group(1) @binding(next) var<storage, read_write> out: array<f32>;
//# end
//# end
@group(1) @binding(next) var<storage, read> a: array<Eight>;
@group(1) @binding(next) var<storage, read> b: array<Eight>;
//# if KERNEL is Lists
@group(1) @binding(next) var<storage, read> limits: array<vec2<u32>>;
//# if FILTERED
@group(1) @binding(next) var<storage, read> bits: array<u32>;
//# end
//# if METRIC is Cosine
@group(1) @binding(next) var<storage, read> row_norms: array<f32>;
@group(1) @binding(next) var<storage, read> query_norms: array<f32>;
//# end
//# include bits.wgsl
//# include keys.wgsl
//# include score.wgsl
//# include list_four.wgsl

// Below which sums of each row of the tile are not listed.
var<workgroup> least: array<f32, $TILE_M>;

fn least_sum(line: u32) -> f32 {
  // Nothing that is behind the last query.
  if (line >= p.m) { return 3.4e38; }
//# if METRIC is Dot
  // The limit by which list_four goes is a little less than this one. Keys up to that of minus infinity are no limit.
  let limit = limits[line * p.wanted + p.wanted - 1u].x;
  if (limit > 0x0080000fu) { return unkey_f32(limit - 16u); }
//# end
  return unkey_f32(0x007fffffu);
}
//# else
//# if WITH_C
@group(1) @binding(next) var<storage, read> c: array<$ADDEND_WORD>;
//# end
//# if BIAS is PerColumn or PerRow
@group(1) @binding(next) var<storage, read> bias: array<$ADDEND_WORD>;
//# end
//# include finish.wgsl
//# if ACTIVATION is None
//# if TYPE is bf16
//# include bits.wgsl
//# end
//# end
//# end

const DEPTH = $DEPTHu;
// Where each operand's tile begins, and eights from one line of it to the next.
const FIRST_A = 0u;
const FIRST_B = $FIRST_Bu;
const LINE_A = $LINE_Au;
const LINE_B = $LINE_Bu;
// Eights in a line of a tile, and lines between two eights of one invocation.
const EIGHTS_A = $EIGHTS_Au;
const EIGHTS_B = $EIGHTS_Bu;
const APART_A = $INVOCATIONSu / EIGHTS_A;
const APART_B = $INVOCATIONSu / EIGHTS_B;
// Eights of one stage.
const STAGE = $STAGE_EIGHTSu;
// Quads of sums from one row to the next, and in the place of a subgroup.
const SUMS_LINE = 9u;
const SUMS = 144u;

var<workgroup> tile: array<vec4<f32>, $TILE>;

@compute @workgroup_size($INVOCATIONS)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let group = wid.y * nwg.x + wid.x;
  let lid = subgroup * 32u + lane;
  let per_batch = p.tiles_m * p.tiles_n;
  if (group >= per_batch * p.batches) { return; }
  let batch = group / per_batch;
  let at = group % per_batch;
  // Workgroups walk the output in bands of eight tiles.
  let band_width = 8u * p.tiles_n;
  let band_first = at / band_width * 8u;
  let band_rows = min(p.tiles_m - band_first, 8u);
  let m0 = (band_first + at % band_width % band_rows) * $TILE_Mu;
  let n0 = (at % band_width / band_rows) * $TILE_Nu;
  let rows = subgroup / $SUBGROUPS_Nu * (16u * $ROWSu);
  let columns = subgroup % $SUBGROUPS_Nu * (32u * $PAIRSu);
//# if LOAD_B is Windows
  let a_base = p.ao;
  let c_base = 0u;
//# else
//# include batches.wgsl
//# end
//# for I in ROWS
//# for J in PAIRS
//# for H in 2
  var c${I}_${J}_$H = coop_mat16x16<f32, C>();
//# end
//# end
//# end
  // Which eights of each operand's tile this invocation fetches, and where it puts them: the first one's place along m or n, along k,
  // and in the tile.
//# include wide_place.wgsl with N=a ORIGIN=m0 LOAD=$LOAD_A U=A FETCHES=$FETCHES_A
//# include wide_place.wgsl with N=b ORIGIN=n0 LOAD=$LOAD_B U=B FETCHES=$FETCHES_B
//# if LOAD_B is Windows
  // Where the windows of this invocation's places begin, and which tap and channel of them comes next.
//# for F in FETCHES_B
  let b_at$F = b_outer + $Fu * APART_B;
  let b_place$F = i32(b_at$F % p.places);
  let b_image$F = p.bo + b_at$F / p.places * (u32(p.ih * p.iw) * p.cp);
  // Places behind the last one are outside of every image.
  let b_y$F = select(-0x40000000, b_place$F / p.ow * p.sh - p.pt, b_at$F < p.n);
  let b_x$F = b_place$F % p.ow * p.sw - p.pl;
//# end
  var tap_y = 0;
  var tap_x = 0;
  var channel = b_inner;
  while (channel >= p.cp) {
    channel = channel - p.cp;
    tap_x = tap_x + 1;
    if (tap_x == p.kw) { tap_x = 0; tap_y = tap_y + 1; }
  }
//# end
  var kf = 0u;
//# include wide_fetch_both.wgsl
//# if EARLY
  var stage = 0u;
//# include wide_put.wgsl with STAGE=
//# if WHOLE
  kf = min(DEPTH, p.k - DEPTH);
//# else
  kf = DEPTH;
//# end
//# include wide_fetch_both.wgsl
  workgroupBarrier();
  for (var k0 = 0u; k0 < p.k; k0 = k0 + DEPTH) {
    // Words fetched while the previous tile was multiplied are stored while this tile is multiplied, without a barrier in between.
    let other = STAGE - stage;
//# include wide_put.wgsl with STAGE=other+
//# if WHOLE
    // Behind the last tile it is fetched once more, which is not used.
    kf = min(k0 + 2u * DEPTH, p.k - DEPTH);
//# else
    kf = k0 + 2u * DEPTH;
//# end
//# include wide_fetch_both.wgsl
//# include wide_multiply.wgsl with STAGE=stage+
    stage = other;
    workgroupBarrier();
  }
//# else
//# if DOUBLE
  var stage = 0u;
//# include wide_put.wgsl with STAGE=
  workgroupBarrier();
  for (var k0 = 0u; k0 < p.k; k0 = k0 + DEPTH) {
//# if WHOLE
    // Behind the last tile it is fetched once more, which is not used.
    kf = min(k0 + DEPTH, p.k - DEPTH);
//# else
    kf = k0 + DEPTH;
//# end
//# include wide_fetch_both.wgsl
//# include wide_multiply.wgsl with STAGE=stage+
    stage = STAGE - stage;
//# include wide_put.wgsl with STAGE=stage+
    workgroupBarrier();
  }
//# else
  for (var k0 = 0u; k0 < p.k; k0 = k0 + DEPTH) {
//# include wide_put.wgsl with STAGE=
    workgroupBarrier();
//# if WHOLE
    // Behind the last tile it is fetched once more, which is not used.
    kf = min(k0 + DEPTH, p.k - DEPTH);
//# else
    kf = k0 + DEPTH;
//# end
//# include wide_fetch_both.wgsl
//# include wide_multiply.wgsl with STAGE=
    workgroupBarrier();
  }
//# end
//# end
//# if KERNEL is Lists
  for (var i = lid; i < $TILE_Mu; i = i + $INVOCATIONSu) { least[i] = least_sum(m0 + i); }
  workgroupBarrier();
//# end
//# for I in ROWS
//# for J in PAIRS
//# for H in 2
  let s${I}_${J}_$H = subgroup * SUMS + 4u * $Hu;
  coopStoreT(c${I}_${J}_$H, &tile[s${I}_${J}_$H], SUMS_LINE);
//# end
  subgroupBarrier();
  for (var t = lane; t < 128u; t = t + 32u) {
    // Four outputs of one row.
    let v = tile[subgroup * SUMS + t / 8u * SUMS_LINE + t % 8u];
    let in_tile = rows + 16u * $Iu + t / 8u;
    let row = m0 + in_tile;
    let col = n0 + columns + 32u * $Ju + t % 8u * 4u;
//# if KERNEL is Lists
    // Hardly any sum is good enough.
    if (!all(v < vec4<f32>(least[in_tile])) && row < p.m) { list_four(v, row, col); }
//# else
//# if LOAD_B is Windows
    let to = (col / p.places * p.m + row) * p.places + col % p.places;
//# else
    let to = (batch * p.m + row) * p.n + col;
//# end
//# if PACKED
    if (row < p.m && col < p.n) {
      let x = finish(v.x, batch, row, col, c_base);
      let y = finish(v.y, batch, row, col + 1u, c_base);
      let z = finish(v.z, batch, row, col + 2u, c_base);
      let w = finish(v.w, batch, row, col + 3u, c_base);
//# if TYPE is f16
      out[to / 4u] = vec2<u32>(pack2x16float(vec2<f32>(x, y)), pack2x16float(vec2<f32>(z, w)));
//# else
      out[to / 4u] = vec2<u32>(bf16_bits(x) | (bf16_bits(y) << 16u), bf16_bits(z) | (bf16_bits(w) << 16u));
//# end
    }
//# else
    if (row < p.m) {
//# if LOAD_B is Windows
//# for E in 4
      if (col + $Eu < p.n) {
        let place$E = col + $Eu;
        out[(place$E / p.places * p.m + row) * p.places + place$E % p.places] = finish(v[$E], batch, row, place$E, c_base);
      }
//# end
//# else
//# for E in 4
      if (col + $Eu < p.n) { out[to + $Eu] = finish(v[$E], batch, row, col + $Eu, c_base); }
//# end
//# end
    }
//# end
//# end
  }
  subgroupBarrier();
//# end
//# end
}
