      // One step of the inner dimension: a column of A's tile times a row of B's.
//# for I in ROWS
//# if ORDER_A is AlongInner
      let a$I = tile_a[${STAGE_A}step * WIDE_M + $Iu * 16u + (ty ^ (step / 4u * 2u))];
//# else
      let a$I = tile_a[${STAGE_A}step * WIDE_M + $Iu * 16u + ty];
//# end
//# end
//# for J in COLUMNS
//# if ORDER_B is AlongInner
      let b$J = tile_b[${STAGE_B}step * WIDE_N + $Ju * 16u + (tx ^ (step / 4u * 2u))];
//# else
      let b$J = tile_b[${STAGE_B}step * WIDE_N + $Ju * 16u + tx];
//# end
//# end
//# for I in ROWS
//# for J in COLUMNS
//# if ACCUMULATE is SquaredDifference
      { let d = b$J - vec4<f32>(a$I.x); c${I}x_$J = fma(d, d, c${I}x_$J); }
//# else
//# if CARRIER is f32
      c${I}x_$J = fma(vec4<f32>(a$I.x), b$J, c${I}x_$J);
//# else
      c${I}x_$J = c${I}x_$J + a$I.x * b$J;
//# end
//# end
//# end
//# for J in COLUMNS
//# if ACCUMULATE is SquaredDifference
      { let d = b$J - vec4<f32>(a$I.y); c${I}y_$J = fma(d, d, c${I}y_$J); }
//# else
//# if CARRIER is f32
      c${I}y_$J = fma(vec4<f32>(a$I.y), b$J, c${I}y_$J);
//# else
      c${I}y_$J = c${I}y_$J + a$I.y * b$J;
//# end
//# end
//# end
//# for J in COLUMNS
//# if ACCUMULATE is SquaredDifference
      { let d = b$J - vec4<f32>(a$I.z); c${I}z_$J = fma(d, d, c${I}z_$J); }
//# else
//# if CARRIER is f32
      c${I}z_$J = fma(vec4<f32>(a$I.z), b$J, c${I}z_$J);
//# else
      c${I}z_$J = c${I}z_$J + a$I.z * b$J;
//# end
//# end
//# end
//# for J in COLUMNS
//# if ACCUMULATE is SquaredDifference
      { let d = b$J - vec4<f32>(a$I.w); c${I}w_$J = fma(d, d, c${I}w_$J); }
//# else
//# if CARRIER is f32
      c${I}w_$J = fma(vec4<f32>(a$I.w), b$J, c${I}w_$J);
//# else
      c${I}w_$J = c${I}w_$J + a$I.w * b$J;
//# end
//# end
//# end
//# end
