// Images with their channels last: elements of two bytes, only moved, from `image, channel, place` to `image, place, channel`, with zeros
// behind the last channel up to a whole eight. A workgroup moves 32 channels of 64 places through its memory.

struct Params {
  images: u32,
  channels: u32,
  places: u32,
  // Channels of the output.
  cp: u32,
  o: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<vec4<u32>>;
@group(1) @binding(next) var<storage, read> source: array<u32>;

const PLACES = 64u;
const CHANNELS = 32u;
// One more than there are places, so that banks of memory take turns.
const LINE = 65u;
var<workgroup> tile: array<u32, 2080>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let tiles_p = (p.places + PLACES - 1u) / PLACES;
  let tiles_c = (p.cp + CHANNELS - 1u) / CHANNELS;
  if (group >= p.images * tiles_p * tiles_c) { return; }
  let first = group % tiles_p * PLACES;
  let c0 = group / tiles_p % tiles_c * CHANNELS;
  let image = group / tiles_p / tiles_c;
  let place = first + lid % PLACES;
  for (var c = lid / PLACES; c < CHANNELS; c = c + 256u / PLACES) {
    var element = 0u;
    if (c0 + c < p.channels && place < p.places) {
      let i = p.o + (image * p.channels + c0 + c) * p.places + place;
      element = (source[i >> 1u] >> ((i & 1u) * 16u)) & 0xffffu;
    }
    tile[c * LINE + lid % PLACES] = element;
  }
  workgroupBarrier();
  // One eight of channels of one place.
  let to = first + lid / 4u;
  let c = lid % 4u * 8u;
  if (to < p.places && c0 + c < p.cp) {
    let at = c * LINE + lid / 4u;
    var eight = vec4<u32>();
//# for J in 4
    eight[$J] = tile[at + 2u * $Ju * LINE] | (tile[at + (2u * $Ju + 1u) * LINE] << 16u);
//# end
    out[((image * p.places + to) * p.cp + c0 + c) / 8u] = eight;
  }
}
