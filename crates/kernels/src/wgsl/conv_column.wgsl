        // The place of a column among the images.
//# if PASS is Forward
        let img = col / (p.oh * p.ow);
        let pix = col % (p.oh * p.ow);
        y$L = pix / p.ow * p.sh - p.pt;
        x$L = pix % p.ow * p.sw - p.pl;
        base$L = (img * p.channels + g * p.gc) * p.ih * p.iw;
//# end
//# if PASS is BackwardInput
        let img = col / (p.ih * p.iw);
        let pix = col % (p.ih * p.iw);
        y$L = pix / p.iw + p.pt;
        x$L = pix % p.iw + p.pl;
        base$L = (img * p.filters + g * p.gf) * p.oh * p.ow;
//# end
//# if PASS is BackwardWeight
        let ch = col / (p.kh * p.kw);
        let tap = col % (p.kh * p.kw);
        y$L = tap / p.kw * p.dh - p.pt;
        x$L = tap % p.kw * p.dw - p.pl;
        base$L = (g * p.gc + ch) * p.ih * p.iw;
//# end
