  // Where this batch's matrices begin: a batch has six dimensions, the last one is counted first.
  var a_base = p.ao;
  var b_base = p.bo;
  var c_base = p.co;
  {
    var r = batch;
    var c = r % p.d5; r = r / p.d5; a_base += c * p.as5; b_base += c * p.bs5; c_base += c * p.cs5;
    c = r % p.d4; r = r / p.d4; a_base += c * p.as4; b_base += c * p.bs4; c_base += c * p.cs4;
    c = r % p.d3; r = r / p.d3; a_base += c * p.as3; b_base += c * p.bs3; c_base += c * p.cs3;
    c = r % p.d2; r = r / p.d2; a_base += c * p.as2; b_base += c * p.bs2; c_base += c * p.cs2;
    c = r % p.d1; r = r / p.d1; a_base += c * p.as1; b_base += c * p.bs1; c_base += c * p.cs1;
    a_base += r * p.as0; b_base += r * p.bs0; c_base += r * p.cs0;
  }
