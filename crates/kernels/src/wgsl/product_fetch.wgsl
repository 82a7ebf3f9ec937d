      // Four inner steps of an operand, a vector of four along the outer dimension for each; zeros behind the edges.
//# if LOAD is AlongInner
//# for S in 4
      var q$S = vec4<T>();
      if (outer + $Su < p.$LIMIT && kf < p.k) { q$S = $N[(${N}_base + (outer + $Su) * p.$OUTER + kf) / 4u]; }
//# end
      g0 = vec4<T>(q0.x, q1.x, q2.x, q3.x);
      g1 = vec4<T>(q0.y, q1.y, q2.y, q3.y);
      g2 = vec4<T>(q0.z, q1.z, q2.z, q3.z);
      g3 = vec4<T>(q0.w, q1.w, q2.w, q3.w);
//# end
//# if LOAD is AlongOuter
//# for S in 4
      g$S = vec4<T>();
      if (outer < p.$LIMIT && kf + $Su < p.k) { g$S = $N[(${N}_base + (kf + $Su) * p.$INNER + outer) / 4u]; }
//# end
//# end
//# if LOAD is Single
//# if UNROLLED
//# for S in 4
      g$S = vec4<T>();
      if (kf + $Su < p.k) {
        let line = ${N}_base + (kf + $Su) * p.$INNER;
        if (outer < p.$LIMIT) { g$S.x = ld_$N(line + outer * p.$OUTER); }
        if (outer + 1u < p.$LIMIT) { g$S.y = ld_$N(line + (outer + 1u) * p.$OUTER); }
        if (outer + 2u < p.$LIMIT) { g$S.z = ld_$N(line + (outer + 2u) * p.$OUTER); }
        if (outer + 3u < p.$LIMIT) { g$S.w = ld_$N(line + (outer + 3u) * p.$OUTER); }
      }
//# end
//# else
      var fetched = array<vec4<T>, 4>();
      for (var step = 0u; step < four; step = step + 1u) {
        if (kf + step < p.k) {
          for (var place = 0u; place < four; place = place + 1u) {
            if (outer + place < p.$LIMIT) {
              fetched[step][place] = ld_$N(${N}_base + (kf + step) * p.$INNER + (outer + place) * p.$OUTER);
            }
          }
        }
      }
      g0 = fetched[0];
      g1 = fetched[1];
      g2 = fetched[2];
      g3 = fetched[3];
//# end
//# end
