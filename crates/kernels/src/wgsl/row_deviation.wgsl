// The mean of a line that is kept in registers, `x0` and on, unless it is left alone, and the deviation from it.
  var mean = 0.0;
//# if not RMS
//# for C in CHUNKS
  mean = mean + ((x$C.x + x$C.y) + (x$C.z + x$C.w));
//# end
  mean = total_sum(mean, lid) / f32(p.axis);
//# end
  var squares = 0.0;
//# for C in CHUNKS
  if (in$C) { let d = x$C - mean; squares = squares + dot(d, d); }
//# end
  squares = total_sum(squares, lid);
  let deviation = sqrt(squares / f32(p.axis) + p.epsilon);
