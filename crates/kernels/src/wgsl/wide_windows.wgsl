    // This invocation's eights of the windows, each of one tap and eight channels, then on to the next tile's; zeros outside of the images.
//# for F in FETCHES_B
    b_next$F = Eight();
    {
      let y = b_y$F + tap_y * p.dh;
      let x = b_x$F + tap_x * p.dw;
      if (tap_y < p.kh && y >= 0 && y < p.ih && x >= 0 && x < p.iw) {
        b_next$F = b[(b_image$F + u32(y * p.iw + x) * p.cp + channel) / 8u];
      }
    }
//# end
    channel = channel + DEPTH;
    while (channel >= p.cp) {
      channel = channel - p.cp;
      tap_x = tap_x + 1;
      if (tap_x == p.kw) { tap_x = 0; tap_y = tap_y + 1; }
    }
