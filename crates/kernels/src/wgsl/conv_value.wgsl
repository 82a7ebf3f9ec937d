//# if OPERAND is a
//# if UNROLLED
          let r = i32(outer + $Lu);
//# else
          let r = i32(outer + place);
//# end
//# if PASS is Forward
          $SET = ld_a(p.ao + u32((g * p.gf + r) * i32(p.k) + kk));
//# end
//# if PASS is BackwardInput
          $SET = ld_a(p.ao + u32(((g * p.gf + fl) * p.gc + r) * (p.kh * p.kw) + tp));
//# end
//# if PASS is BackwardWeight
          $SET = ld_a(p.ao + u32((im * p.filters + g * p.gf + r) * (p.oh * p.ow) + px));
//# end
//# else
//# if PASS is BackwardInput
          let y = y$L - dy;
          let x = x$L - dx;
          if (y >= 0 && x >= 0 && y % p.sh == 0 && x % p.sw == 0) {
            let oy = y / p.sh;
            let ox = x / p.sw;
            if (oy < p.oh && ox < p.ow) { $SET = ld_b(p.bo + u32(base$L + (ch * p.oh + oy) * p.ow + ox)); }
          }
//# else
          let y = y$L + dy;
          let x = x$L + dx;
          if (y >= 0 && y < p.ih && x >= 0 && x < p.iw) {
//# if PASS is Forward
            $SET = ld_b(p.bo + u32(base$L + (ch * p.ih + y) * p.iw + x));
//# else
            $SET = ld_b(p.bo + u32(base$L + (img * p.channels * p.ih + y) * p.iw + x));
//# end
          }
//# end
//# end
