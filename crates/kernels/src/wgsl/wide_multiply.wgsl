    // The subgroup's matrices of sixteen inner steps at a time. Rows lie one after the other where A is contiguous along k, and B along n.
//# for S in SLICES
    {
//# for I in ROWS
//# if LOAD_A is AlongInner
      let a_at$I = ${STAGE}FIRST_A + (rows + 16u * $Iu) * LINE_A + 2u * $Su;
      let a$I = coopLoadT<coop_mat16x16<f32, A>>(&tile[a_at$I], LINE_A);
//# else
      let a_at$I = ${STAGE}FIRST_A + 16u * $Su * LINE_A + (rows + 16u * $Iu) / 8u;
      let a$I = coopLoad<coop_mat16x16<f32, A>>(&tile[a_at$I], LINE_A);
//# end
//# end
//# for J in PAIRS
//# for H in 2
//# if LOAD_B is AlongInner or Windows
      let b_at${J}_$H = ${STAGE}FIRST_B + (columns + 32u * $Ju + 16u * $Hu) * LINE_B + 2u * $Su;
      let b${J}_$H = coopLoad<coop_mat16x16<f32, B>>(&tile[b_at${J}_$H], LINE_B);
//# else
      let b_at${J}_$H = ${STAGE}FIRST_B + 16u * $Su * LINE_B + (columns + 32u * $Ju + 16u * $Hu) / 8u;
      let b${J}_$H = coopLoadT<coop_mat16x16<f32, B>>(&tile[b_at${J}_$H], LINE_B);
//# end
//# end
//# end
//# for I in ROWS
//# for J in PAIRS
//# for H in 2
      c${I}_${J}_$H = coopMultiplyAdd(a$I, b${J}_$H, c${I}_${J}_$H);
//# end
//# end
//# end
    }
//# end
