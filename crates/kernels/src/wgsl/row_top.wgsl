// The largest of a line that is kept in registers, `x0` and on, in every invocation.
  var top = -inf_value();
//# for C in CHUNKS
  if (x$C.x > top) { top = x$C.x; }
  if (x$C.y > top) { top = x$C.y; }
  if (x$C.z > top) { top = x$C.z; }
  if (x$C.w > top) { top = x$C.w; }
//# end
  top = total_max(top, lid);
