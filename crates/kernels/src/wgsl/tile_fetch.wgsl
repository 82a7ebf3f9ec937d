//# if KERNEL is Conv
    if (loads_a) {
//# include conv_fetch.wgsl with OPERAND=a LIMIT=m
    } else if (loads_b) {
//# include conv_fetch.wgsl with OPERAND=b LIMIT=n
    }
//# else
    if (loads_a) {
//# include product_fetch.wgsl with N=a LIMIT=m OUTER=ars INNER=acs LOAD=$LOAD_A
    } else if (loads_b) {
//# include product_fetch.wgsl with N=b LIMIT=n OUTER=bcs INNER=brs LOAD=$LOAD_B
    }
//# end
