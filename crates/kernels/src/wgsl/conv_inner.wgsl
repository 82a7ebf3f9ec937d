        // The place of an inner step.
//# if OPERAND is a
//# if PASS is BackwardInput
        let fl = kk / (p.kh * p.kw);
        let tp = kk % (p.kh * p.kw);
//# end
//# if PASS is BackwardWeight
        let im = kk / (p.oh * p.ow);
        let px = kk % (p.oh * p.ow);
//# end
//# else
//# if PASS is BackwardWeight
        let img = kk / (p.oh * p.ow);
        let pix = kk % (p.oh * p.ow);
        let dy = pix / p.ow * p.sh;
        let dx = pix % p.ow * p.sw;
//# else
        let ch = kk / (p.kh * p.kw);
        let tap = kk % (p.kh * p.kw);
        let dy = tap / p.kw * p.dh;
        let dx = tap % p.kw * p.dw;
//# end
//# end
