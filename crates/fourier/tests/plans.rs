//! Plans are for the length that was asked for.

use panoply_fourier::{forward, forward_real, inverse, inverse_real};

#[test]
fn plans_have_the_length_that_was_asked_for() {
    assert_eq!((forward(12).len(), inverse(7).len()), (12, 7));
    assert_eq!((forward_real(10).len(), inverse_real(9).len()), (10, 9));
}
