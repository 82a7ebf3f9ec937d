  {
    // Four outputs of one row.
//# if COOP
    let row = m0 + rows + 16u * $Iu + t / 16u;
    let col = n0 + columns + t % 16u * 4u;
//# else
//# if UNROLLED
    let row = m0 + $Iu * 64u + $ROWu + ty * 4u;
//# else
    let row = m0 + line / 4u * 64u + ty * 4u + line % 4u;
//# end
    let col = n0 + $Ju * 64u + tx * 4u;
//# end
    let v = $SUM;
//# if KERNEL is Product
//# if VECTOR_STORE
    if (row < p.m && col < p.n) {
      out[((batch * p.m + row) * p.n + col) / 4u] = vec4<T>(finish(v.x, batch, row, col, c_base),
        finish(v.y, batch, row, col + 1u, c_base), finish(v.z, batch, row, col + 2u, c_base), finish(v.w, batch, row, col + 3u, c_base));
    }
//# else
    if (row < p.m) {
      let at = (batch * p.m + row) * p.n + col;
      if (col < p.n) { out[at] = finish(v.x, batch, row, col, c_base); }
      if (col + 1u < p.n) { out[at + 1u] = finish(v.y, batch, row, col + 1u, c_base); }
      if (col + 2u < p.n) { out[at + 2u] = finish(v.z, batch, row, col + 2u, c_base); }
      if (col + 3u < p.n) { out[at + 3u] = finish(v.w, batch, row, col + 3u, c_base); }
    }
//# end
//# end
//# if KERNEL is Lists
    if (row < p.m) { list_four(v, row, col); }
//# end
//# if KERNEL is Conv
    if (row < p.m) {
    let r = i32(row);
    if (col + 0u < p.n) {
      let cc = i32(col + 0u);
//# if PASS is Forward
      let at = (cc / (p.oh * p.ow) * p.filters + g * p.gf + r) * (p.oh * p.ow) + cc % (p.oh * p.ow);
//# end
//# if PASS is BackwardInput
      let at = (cc / (p.ih * p.iw) * p.channels + g * p.gc + r) * (p.ih * p.iw) + cc % (p.ih * p.iw);
//# end
//# if PASS is BackwardWeight
      let at = (g * p.gf + r) * i32(p.n) + cc;
//# end
      out[u32(at)] = finish(v.x, batch, row, col + 0u, 0u);
    }
    if (col + 1u < p.n) {
      let cc = i32(col + 1u);
//# if PASS is Forward
      let at = (cc / (p.oh * p.ow) * p.filters + g * p.gf + r) * (p.oh * p.ow) + cc % (p.oh * p.ow);
//# end
//# if PASS is BackwardInput
      let at = (cc / (p.ih * p.iw) * p.channels + g * p.gc + r) * (p.ih * p.iw) + cc % (p.ih * p.iw);
//# end
//# if PASS is BackwardWeight
      let at = (g * p.gf + r) * i32(p.n) + cc;
//# end
      out[u32(at)] = finish(v.y, batch, row, col + 1u, 0u);
    }
    if (col + 2u < p.n) {
      let cc = i32(col + 2u);
//# if PASS is Forward
      let at = (cc / (p.oh * p.ow) * p.filters + g * p.gf + r) * (p.oh * p.ow) + cc % (p.oh * p.ow);
//# end
//# if PASS is BackwardInput
      let at = (cc / (p.ih * p.iw) * p.channels + g * p.gc + r) * (p.ih * p.iw) + cc % (p.ih * p.iw);
//# end
//# if PASS is BackwardWeight
      let at = (g * p.gf + r) * i32(p.n) + cc;
//# end
      out[u32(at)] = finish(v.z, batch, row, col + 2u, 0u);
    }
    if (col + 3u < p.n) {
      let cc = i32(col + 3u);
//# if PASS is Forward
      let at = (cc / (p.oh * p.ow) * p.filters + g * p.gf + r) * (p.oh * p.ow) + cc % (p.oh * p.ow);
//# end
//# if PASS is BackwardInput
      let at = (cc / (p.ih * p.iw) * p.channels + g * p.gc + r) * (p.ih * p.iw) + cc % (p.ih * p.iw);
//# end
//# if PASS is BackwardWeight
      let at = (g * p.gf + r) * i32(p.n) + cc;
//# end
      out[u32(at)] = finish(v.w, batch, row, col + 3u, 0u);
    }
    }
//# end
  }
