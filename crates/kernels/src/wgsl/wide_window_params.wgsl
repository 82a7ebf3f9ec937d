// The parameters of a convolution on matrix units: filters, places of all images, steps of the inner dimension (taps times channels,
// which are whole eights), tiles along the first two, one; where the weights begin and from one filter to the next, where the images begin,
// where the bias begins and from one to the next; places of one image and of one of its rows; channels; the window and the images; steps between
// windows, within them, and what is before the images.

struct Params {
  m: u32,
  n: u32,
  k: u32,
  tiles_m: u32,
  tiles_n: u32,
  batches: u32,
  ao: u32,
  ars: u32,
  bo: u32,
  bias_o: u32,
  bias_s: u32,
  places: u32,
  ow: i32,
  cp: u32,
  kh: i32,
  kw: i32,
  ih: i32,
  iw: i32,
  sh: i32,
  sw: i32,
  dh: i32,
  dw: i32,
  pt: i32,
  pl: i32,
}
@group(0) @binding(0) var<uniform> p: Params;
