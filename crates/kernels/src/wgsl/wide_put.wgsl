//# for F in FETCHES_A
    tile[${STAGE}a_slot + $Fu * APART_A * LINE_A] = a_next$F;
//# end
//# for F in FETCHES_B
    tile[${STAGE}b_slot + $Fu * APART_B * LINE_B] = b_next$F;
//# end
