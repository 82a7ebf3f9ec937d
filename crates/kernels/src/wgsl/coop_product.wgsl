// Products of f16 on a device's matrix units, summed up in f32: `activation(alpha * A B + beta * C + bias)`.
//
// Four subgroups of 32 invocations make a tile of 128 x 128 outputs, a quarter each, as four by four matrices that live in the registers
// of a subgroup. Tiles of both operands, 32 steps of the inner dimension deep, go through workgroup memory in the arrangement that they
// have in memory; while one is multiplied the next is on its way into registers. If there is an epilogue, or a tile is not
// whole, the sums go through workgroup memory once more, and from there one by one. (Indices of the matrices' own loads and stores are named
// first: naga 30 does not compile expressions inside of them.)
enable f16;
enable wgpu_cooperative_matrix;

alias T = f32;
struct Eight { low: vec4<f16>, high: vec4<f16> }
//# include product_params.wgsl
//# if VECTOR_OUT
@group(1) @binding(next) var<storage, read_write> out: array<vec4<T>>;
//# else
@group(1) @binding(next) var<storage, read_write> out: array<T>;
//# end
@group(1) @binding(next) var<storage, read> a: array<Eight>;
@group(1) @binding(next) var<storage, read> b: array<Eight>;
//# if WITH_C
@group(1) @binding(next) var<storage, read> c: array<$ADDEND_WORD>;
//# end
//# if BIAS is PerColumn or PerRow
@group(1) @binding(next) var<storage, read> bias: array<$ADDEND_WORD>;
//# end
//# include finish.wgsl

const DEPTH = 32u;
// Vectors of four from one line of a tile to the next: two more than a line has, so that banks of memory take turns.
const LINE_A = $LINE_Au;
const LINE_B = $LINE_Bu;
// Eights in a line of a tile, and lines between two eights of one invocation.
const EIGHTS_A = $EIGHTS_Au;
const EIGHTS_B = $EIGHTS_Bu;
const APART_A = 128u / EIGHTS_A;
const APART_B = 128u / EIGHTS_B;

var<workgroup> tile_a: array<vec4<f16>, $TILE_A>;
var<workgroup> tile_b: array<vec4<f16>, $TILE_B>;
//# if not DIRECT
var<workgroup> sums: array<f32, 4096>;
//# end

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let group = wid.y * nwg.x + wid.x;
  let lid = subgroup * 32u + lane;
  let per_batch = p.tiles_m * p.tiles_n;
  if (group >= per_batch * p.batches) { return; }
  let batch = group / per_batch;
  let tile = group % per_batch;
  // Workgroups walk the output in bands of eight tiles.
  let band_width = 8u * p.tiles_n;
  let band_first = tile / band_width * 8u;
  let band_rows = min(p.tiles_m - band_first, 8u);
  let m0 = (band_first + tile % band_width % band_rows) * 128u;
  let n0 = (tile % band_width / band_rows) * 128u;
  let rows = subgroup / 2u * 64u;
  let columns = subgroup % 2u * 64u;
//# include batches.wgsl
//# for I in 4
//# for J in 4
  var c${I}_$J = coop_mat16x16<f32, C>();
//# end
//# end
  // Which eights of each operand's tile this invocation fetches, and where it puts them: the first one's place along m or n, along k,
  // and in the tile.
//# include coop_place.wgsl with N=a ORIGIN=m0 LOAD=$LOAD_A U=A
//# include coop_place.wgsl with N=b ORIGIN=n0 LOAD=$LOAD_B U=B
  var kf = 0u;
//# include coop_fetch.wgsl with N=a LIMIT=m OUTER=ars INNER=acs LOAD=$LOAD_A U=A
//# include coop_fetch.wgsl with N=b LIMIT=n OUTER=bcs INNER=brs LOAD=$LOAD_B U=B
  for (var k0 = 0u; k0 < p.k; k0 = k0 + DEPTH) {
//# for F in 4
    tile_a[a_slot + $Fu * APART_A * LINE_A] = a_next$F.low;
    tile_a[a_slot + $Fu * APART_A * LINE_A + 1u] = a_next$F.high;
//# end
//# for F in 4
    tile_b[b_slot + $Fu * APART_B * LINE_B] = b_next$F.low;
    tile_b[b_slot + $Fu * APART_B * LINE_B + 1u] = b_next$F.high;
//# end
    workgroupBarrier();
//# if WHOLE
    // Behind the last tile it is fetched once more, which is not used.
    kf = min(k0 + DEPTH, p.k - DEPTH);
//# else
    kf = k0 + DEPTH;
//# end
//# include coop_fetch.wgsl with N=a LIMIT=m OUTER=ars INNER=acs LOAD=$LOAD_A U=A
//# include coop_fetch.wgsl with N=b LIMIT=n OUTER=bcs INNER=brs LOAD=$LOAD_B U=B
//# for S in 2
    {
      // The subgroup's matrices of sixteen inner steps. Rows lie one after the other where A is contiguous along k, and B along n.
//# for I in 4
//# if LOAD_A is AlongInner
      let a_at$I = (rows + 16u * $Iu) * LINE_A + 4u * $Su;
      let a$I = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[a_at$I], LINE_A);
//# else
      let a_at$I = 16u * $Su * LINE_A + (rows + 16u * $Iu) / 4u;
      let a$I = coopLoad<coop_mat16x16<f16, A>>(&tile_a[a_at$I], LINE_A);
//# end
//# end
//# for I in 4
//# if LOAD_B is AlongInner
      let b_at$I = (columns + 16u * $Iu) * LINE_B + 4u * $Su;
      let b$I = coopLoad<coop_mat16x16<f16, B>>(&tile_b[b_at$I], LINE_B);
//# else
      let b_at$I = 16u * $Su * LINE_B + (columns + 16u * $Iu) / 4u;
      let b$I = coopLoadT<coop_mat16x16<f16, B>>(&tile_b[b_at$I], LINE_B);
//# end
//# end
//# for I in 4
//# for J in 4
      c${I}_$J = coopMultiplyAdd(a$I, b$J, c${I}_$J);
//# end
//# end
    }
//# end
    workgroupBarrier();
  }
//# for I in 4
//# if DIRECT
//# for J in 4
  let o${I}_$J = (batch * p.m + m0 + rows + 16u * $Iu) * p.n + n0 + columns + 16u * $Ju;
  let w${I}_$J = p.n;
  coopStoreT(c${I}_$J, &out[o${I}_$J], w${I}_$J);
//# end
//# else
//# for J in 4
  let s${I}_$J = subgroup * 1024u + 16u * $Ju;
  coopStoreT(c${I}_$J, &sums[s${I}_$J], 64u);
//# end
  workgroupBarrier();
  for (var t = lane; t < 256u; t = t + 32u) {
    let at = subgroup * 1024u + t * 4u;
//# include tile_store.wgsl with SUM=vec4<f32>(sums[at],sums[at+1u],sums[at+2u],sums[at+3u]) KERNEL=Product COOP=1
  }
  workgroupBarrier();
//# end
//# end
}
