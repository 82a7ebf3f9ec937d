//# if LOAD is AlongInner
  let ${N}_outer = $ORIGIN + lid / EIGHTS_$U;
  let ${N}_inner = lid % EIGHTS_$U * 8u;
//# else
  let ${N}_outer = $ORIGIN + lid % EIGHTS_$U * 8u;
  let ${N}_inner = lid / EIGHTS_$U;
//# end
  let ${N}_slot = lid / EIGHTS_$U * LINE_$U + lid % EIGHTS_$U * 2u;
//# for F in 4
  var ${N}_next$F = Eight();
//# end
