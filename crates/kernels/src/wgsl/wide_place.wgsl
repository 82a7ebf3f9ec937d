//# if LOAD is AlongInner or Windows
  let ${N}_outer = $ORIGIN + lid / EIGHTS_$U;
  let ${N}_inner = lid % EIGHTS_$U * 8u;
//# else
  let ${N}_outer = $ORIGIN + lid % EIGHTS_$U * 8u;
  let ${N}_inner = lid / EIGHTS_$U;
//# end
  let ${N}_slot = FIRST_$U + lid / EIGHTS_$U * LINE_$U + lid % EIGHTS_$U;
//# for F in FETCHES
  var ${N}_next$F = Eight();
//# end
