      // Four inner steps of an operand, a vector of four along the outer dimension for each; zeros behind the edges.
//# if UNROLLED
//# if OPERAND is b
//# for L in 4
      {
        let col = i32(min(outer + $Lu, p.n - 1u));
//# include conv_column.wgsl
      }
//# end
//# end
//# for S in 4
      g$S = vec4<f32>();
      if (kf + $Su < p.k) {
        let kk = i32(kf + $Su);
//# include conv_inner.wgsl
        if (outer < p.$LIMIT) {
//# include conv_value.wgsl with L=0 SET=g$S.x
        }
        if (outer + 1u < p.$LIMIT) {
//# include conv_value.wgsl with L=1 SET=g$S.y
        }
        if (outer + 2u < p.$LIMIT) {
//# include conv_value.wgsl with L=2 SET=g$S.z
        }
        if (outer + 3u < p.$LIMIT) {
//# include conv_value.wgsl with L=3 SET=g$S.w
        }
      }
//# end
//# else
      var fetched = array<vec4<f32>, 4>();
      for (var step = 0u; step < four; step = step + 1u) {
        if (kf + step < p.k) {
          let kk = i32(kf + step);
//# include conv_inner.wgsl
          for (var place = 0u; place < four; place = place + 1u) {
            if (outer + place < p.$LIMIT) {
//# if OPERAND is b
              let col = i32(outer + place);
              var y_ = 0;
              var x_ = 0;
              var base_ = 0;
              {
//# include conv_column.wgsl with L=_
              }
//# end
//# include conv_value.wgsl with L=_ SET=fetched[step][place]
            }
          }
        }
      }
      g0 = fetched[0];
      g1 = fetched[1];
      g2 = fetched[2];
      g3 = fetched[3];
//# end
