//# include wide_fetch.wgsl with N=a LIMIT=m OUTER=ars INNER=acs LOAD=$LOAD_A U=A FETCHES=$FETCHES_A
//# if LOAD_B is Windows
//# include wide_windows.wgsl
//# else
//# include wide_fetch.wgsl with N=b LIMIT=n OUTER=bcs INNER=brs LOAD=$LOAD_B U=B FETCHES=$FETCHES_B
//# end
