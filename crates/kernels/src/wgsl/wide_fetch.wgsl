    // This invocation's eights of an operand, from the inner step `kf` on; zeros behind the edges.
//# for F in FETCHES
//# if WHOLE
//# if LOAD is AlongInner
    ${N}_next$F = $N[(${N}_base + (${N}_outer + $Fu * APART_$U) * p.$OUTER + kf + ${N}_inner) / 8u];
//# else
    ${N}_next$F = $N[(${N}_base + ${N}_outer + (kf + ${N}_inner + $Fu * APART_$U) * p.$INNER) / 8u];
//# end
//# else
    ${N}_next$F = Eight();
//# if LOAD is AlongInner
    if (${N}_outer + $Fu * APART_$U < p.$LIMIT && kf + ${N}_inner < p.k) {
      ${N}_next$F = $N[(${N}_base + (${N}_outer + $Fu * APART_$U) * p.$OUTER + kf + ${N}_inner) / 8u];
    }
//# else
    if (${N}_outer < p.$LIMIT && kf + ${N}_inner + $Fu * APART_$U < p.k) {
      ${N}_next$F = $N[(${N}_base + ${N}_outer + (kf + ${N}_inner + $Fu * APART_$U) * p.$INNER) / 8u];
    }
//# end
//# end
//# end
