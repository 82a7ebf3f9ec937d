//! Tests the fields against bitwise integer arithmetic, and points against AWS-LC.

use aws_lc_rs::agreement::{ECDH_P256, PrivateKey};

use super::number::{Modulus, ONE, U256, of_little_endian};
use super::p256::{ORDER, of_big_endian, to_big_endian};
use super::table::{LANES, loaded};
use super::{P256Lanes, P256SignLanes, ed25519, field_p256, field25519, p256_sign};
use crate::hash::hash_parts;
use crate::signature::PublicKey;
use panoply_core::op::crypto::{HashAlgorithm, SignatureAlgorithm};

/// Whether the CPU has the lanes; prints a line if not.
fn there() -> bool {
    if !super::detected() {
        println!("skipped: no lanes for curves on this CPU");
    }
    super::detected()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn number(&mut self) -> U256 {
        std::array::from_fn(|_| self.next())
    }
}

/// Numbers modulo a modulus above 2^252, computed only by adding and comparing.
struct Plain(U256);

impl Plain {
    fn reduced(&self, mut number: U256) -> U256 {
        while number.iter().rev().ge(self.0.iter().rev()) {
            let mut borrow = false;
            for (word, other) in number.iter_mut().zip(&self.0) {
                let (less, first) = word.overflowing_sub(*other);
                let (less, second) = less.overflowing_sub(u64::from(borrow));
                (*word, borrow) = (less, first || second);
            }
        }
        number
    }

    fn negated(&self, number: &U256) -> U256 {
        let (mut out, mut borrow) = ([0; 4], 0_i128);
        for place in 0..4 {
            borrow += i128::from(self.0[place]) - i128::from(number[place]);
            out[place] = borrow as u64;
            borrow >>= 64;
        }
        self.reduced(out)
    }

    fn sum(&self, a: &U256, b: &U256) -> U256 {
        // a - (m - b), or m more.
        let other = self.negated(b);
        if other == [0; 4] {
            return self.reduced(*a);
        }
        let (mut out, mut borrow) = ([0; 4], 0_i128);
        for place in 0..4 {
            borrow += i128::from(a[place]) - i128::from(other[place]);
            out[place] = borrow as u64;
            borrow >>= 64;
        }
        if borrow < 0 {
            let mut carry = 0_u128;
            for (word, other) in out.iter_mut().zip(&self.0) {
                carry += u128::from(*word) + u128::from(*other);
                *word = carry as u64;
                carry >>= 64;
            }
        }
        out
    }

    fn product(&self, a: &U256, b: &U256) -> U256 {
        let (a, b) = (self.reduced(*a), self.reduced(*b));
        let mut sum = [0; 4];
        for bit in (0..256).rev() {
            sum = self.sum(&sum, &sum);
            if a[bit / 64] >> (bit % 64) & 1 == 1 {
                sum = self.sum(&sum, &b);
            }
        }
        sum
    }

    /// The number represented by signed limbs.
    fn of_limbs(&self, limbs: &[i64], bits: impl Fn(usize) -> usize) -> U256 {
        let mut sum = [0; 4];
        for (place, limb) in limbs.iter().enumerate().rev() {
            for _ in 0..bits(place) {
                sum = self.sum(&sum, &sum);
            }
            let size = [limb.unsigned_abs(), 0, 0, 0];
            sum = self.sum(&sum, &if *limb < 0 { self.negated(&size) } else { size });
        }
        sum
    }
}

/// Edge cases for words, limbs and the modulus.
fn extremes(modulus: &U256) -> Vec<U256> {
    let plain = Plain(*modulus);
    let mut numbers = vec![[0; 4], ONE, [2, 0, 0, 0], [19, 0, 0, 0], [u64::MAX; 4]];
    numbers.extend([1, 2, 3, 19, 38].map(|less| plain.negated(&[less, 0, 0, 0])));
    numbers.extend([0, 1, 2, 3].map(|word| std::array::from_fn(|place| if place == word { u64::MAX } else { 0 })));
    numbers.extend((0..256).step_by(13).map(|bit| {
        let mut number = [0; 4];
        number[bit / 64] = 1 << (bit % 64);
        number
    }));
    let mut random = Random(7);
    numbers.extend((0..40).map(|_| random.number()));
    numbers
}

#[test]
fn one_number_at_a_time_is_that_of_integers() {
    for modulus in [field_p256::MODULUS.modulus, ORDER.modulus, ed25519::FIELD.modulus, ed25519::ORDER.modulus] {
        let (own, plain) = (Modulus::new(modulus), Plain(modulus));
        let numbers = extremes(&modulus);
        for (place, a) in numbers.iter().enumerate() {
            let b = plain.reduced(numbers[(place * 7 + 3) % numbers.len()]);
            assert_eq!(own.left(&own.entered(a)), plain.reduced(*a));
            assert_eq!(own.product(&own.entered(a), &b), plain.product(a, &b), "{a:x?} {b:x?}");
            let below = plain.reduced(*a);
            assert_eq!(own.sum(&below, &b), plain.sum(&below, &b));
            assert_eq!(own.sum(&own.difference(&below, &b), &b), below);
            // 2^256, added `b` times.
            let high = plain.product(&plain.sum(&plain.reduced([u64::MAX; 4]), &ONE), &b);
            assert_eq!(own.of_wide(a, &b), plain.sum(&below, &high));
        }
        let mut inverses: Vec<U256> = numbers.iter().map(|number| own.entered(number)).collect();
        inverses.retain(|number| *number != [0; 4]);
        let before = inverses.clone();
        own.invert(&mut inverses);
        for (number, inverse) in before.iter().zip(&inverses) {
            assert_eq!(own.left(&own.product(number, inverse)), ONE);
        }
    }
}

/// Eight numbers from a list, from an index on.
fn eight(numbers: &[U256], first: usize) -> [U256; LANES] {
    std::array::from_fn(|lane| numbers[(first + lane * 5) % numbers.len()])
}

#[test]
fn the_field_of_ed25519_is_that_of_integers() {
    if there() {
        // SAFETY: the CPU's features were checked.
        unsafe { check_25519() };
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn check_25519() {
    use field25519::{difference, entered, inverse, left, product, square, sum};
    let plain = Plain(ed25519::FIELD.modulus);
    let numbers = extremes(&plain.0);
    for first in 0..numbers.len() {
        let (a, b) = (eight(&numbers, first), eight(&numbers, 3 * first + 1));
        let (f, g) = (entered(&a), entered(&b));
        let results = [left(&f), left(&product(&f, &g)), left(&square(&f)), left(&product(&inverse(&f), &f))];
        let twice = left(&product(&sum(&f, &g), &difference(&f, &g)));
        for lane in 0..LANES {
            let own = plain.reduced(a[lane]);
            assert_eq!(results[0][lane], own);
            assert_eq!(results[1][lane], plain.product(&a[lane], &b[lane]));
            assert_eq!(results[2][lane], plain.product(&a[lane], &a[lane]));
            assert_eq!(results[3][lane], if own == [0; 4] { own } else { ONE });
            let other = plain.reduced(b[lane]);
            let expected = plain.product(&plain.sum(&own, &other), &plain.sum(&own, &plain.negated(&other)));
            assert_eq!(twice[lane], expected);
        }
    }
    // Limbs as long as the sum of three carried numbers, and a little more, with all signs.
    let mut random = Random(8);
    let bits = |limb: usize| 26 - limb % 2;
    for _ in 0..200 {
        let mut limbs = || -> [[i64; LANES]; 10] {
            std::array::from_fn(|limb| {
                std::array::from_fn(|_| {
                    let most = (3 << (bits(limb) - 1)) + (1 << 16);
                    if random.next().is_multiple_of(2) { most } else { -most }
                })
            })
        };
        let (a, b) = (limbs(), limbs());
        let found = left(&product(&loaded(&a), &loaded(&b)));
        for lane in 0..LANES {
            let [a, b] = [&a, &b].map(|limbs| plain.of_limbs(&limbs.map(|limb| limb[lane]), bits));
            assert_eq!(found[lane], plain.product(&a, &b));
        }
    }
}

#[test]
fn the_field_of_p256_is_that_of_integers() {
    if there() {
        // SAFETY: the CPU's features were checked.
        unsafe { check_p256() };
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn check_p256() {
    use field_p256::{MODULUS, are_zero, difference, difference_of_products, entered, from_entered, left};
    use field_p256::{inverse, product, square};
    let plain = Plain(MODULUS.modulus);
    let numbers = extremes(&plain.0);
    for first in 0..numbers.len() {
        let (a, b) = (eight(&numbers, first), eight(&numbers, 3 * first + 1));
        let (f, g) = (entered(&a), entered(&b));
        let results = [left(&f), left(&product(&f, &g)), left(&square(&f)), left(&product(&inverse(&f), &f))];
        let both = left(&difference_of_products(&f, &g, &difference(&f, &g), &difference(&g, &f)));
        assert_eq!(left(&from_entered(&a.map(|number| MODULUS.entered(&number)))), results[0]);
        let zeros = are_zero(&difference(&product(&f, &g), &product(&g, &entered(&a))));
        assert_eq!(zeros, 0xff);
        for lane in 0..LANES {
            let (own, other) = (plain.reduced(a[lane]), plain.reduced(b[lane]));
            assert_eq!(results[0][lane], own);
            assert_eq!(results[1][lane], plain.product(&own, &other));
            assert_eq!(results[2][lane], plain.product(&own, &own));
            assert_eq!(results[3][lane], if own == [0; 4] { own } else { ONE });
            let apart = plain.sum(&own, &plain.negated(&other));
            let expected = plain.sum(&plain.product(&own, &other), &plain.product(&apart, &apart));
            assert_eq!(both[lane], expected);
            assert_eq!(are_zero(&difference(&f, &g)) >> lane & 1 == 1, own == other);
        }
    }
    // The longest limbs, with all signs. Montgomery form is the number times 2^261.
    let mut random = Random(9);
    let over = plain.product(&[0, 0, 0, 1 << 63], &[1 << 6, 0, 0, 0]);
    for _ in 0..200 {
        let mut limbs = || -> [[i64; LANES]; 9] {
            std::array::from_fn(|limb| {
                let most = if limb == 8 { 1 << 27 } else { (1 << 29) - 1 };
                std::array::from_fn(|_| if random.next().is_multiple_of(2) { most } else { -most })
            })
        };
        let (a, b) = (limbs(), limbs());
        let found = left(&product(&loaded(&a), &loaded(&b)));
        let both = left(&difference_of_products(&loaded(&a), &loaded(&b), &loaded(&b), &loaded(&b)));
        for lane in 0..LANES {
            let [a, b] = [&a, &b].map(|limbs| plain.of_limbs(&limbs.map(|limb| limb[lane]), |_| 29));
            let entered_twice = plain.product(&plain.product(&found[lane], &over), &over);
            assert_eq!(entered_twice, plain.product(&a, &b));
            let expected = plain.product(&plain.sum(&a, &plain.negated(&b)), &b);
            assert_eq!(plain.product(&plain.product(&both[lane], &over), &over), expected);
        }
    }
}

/// Coordinates of a multiple of the P-256 base point, from AWS-LC.
fn multiple(factor: &U256) -> [u8; 64] {
    let key = PrivateKey::from_private_key(&ECDH_P256, &to_big_endian(factor)).unwrap();
    key.compute_public_key().unwrap().as_ref()[1..].try_into().unwrap()
}

/// Non-zero numbers below the order of P-256, at the ends of windows and of the order's halves.
fn factors() -> Vec<U256> {
    let order = Plain(ORDER.modulus);
    let half = order.product(&order.sum(&ORDER.modulus, &ONE), &ORDER.left(&inverse_of_two()));
    let mut factors: Vec<U256> = [1, 2, 3, 127, 128, 129, 255, 256, 257, 0x8080].map(|low| [low, 0, 0, 0]).to_vec();
    factors.extend([half, order.sum(&half, &ONE), order.negated(&half), order.product(&half, &[3, 0, 0, 0])]);
    factors.extend((0..256).step_by(8).map(|bit| {
        let mut number = [0; 4];
        number[bit / 64] = 0x80 << (bit % 64);
        order.reduced(number)
    }));
    let opposite: Vec<U256> = factors.iter().map(|factor| order.negated(factor)).collect();
    factors.extend(opposite);
    let mut random = Random(10);
    factors.extend((0..40).map(|_| order.reduced(random.number())));
    factors.retain(|factor| *factor != [0; 4]);
    factors
}

fn inverse_of_two() -> U256 {
    let mut two = [ORDER.entered(&[2, 0, 0, 0])];
    ORDER.invert(&mut two);
    two[0]
}

#[test]
fn multiples_by_nonces_are_those_of_the_library() {
    if !there() {
        return;
    }
    let factors = factors();
    for first in (0..factors.len()).step_by(LANES) {
        let nonces = std::array::from_fn(|lane| factors[(first + lane) % factors.len()]);
        // SAFETY: the CPU's features were checked.
        let found = unsafe { p256_sign::xs_of(&nonces) };
        for lane in 0..LANES {
            assert_eq!(to_big_endian(&found[lane]), multiple(&nonces[lane])[..32], "{:x?}", nonces[lane]);
        }
    }
}

/// Signatures for chosen u1 and u2, whose sums add equal points, opposite points, and others.
#[test]
fn sums_of_chosen_multiples_are_verified() {
    if !there() {
        return;
    }
    let (order, mut decided) = (Plain(ORDER.modulus), 0);
    let divided = |a: &U256, b: &U256| {
        let mut over = [ORDER.entered(b)];
        ORDER.invert(&mut over);
        ORDER.product(a, &over[0])
    };
    let mut factors = factors();
    let secrets = [ONE, order.negated(&ONE), [2, 0, 0, 0], factors[factors.len() - 1]];
    factors.insert(0, [0; 4]);
    for secret in secrets {
        let lanes = P256Lanes::new(&multiple(&secret)).unwrap();
        let (mut digests, mut signatures, mut are_sums) = (Vec::new(), Vec::new(), Vec::new());
        for (place, u1) in factors.iter().enumerate() {
            for u2 in [factors[1 + place * 3 % (factors.len() - 1)], *u1, factors[1]] {
                let sum = order.sum(u1, &order.product(&u2, &secret));
                if u2 == [0; 4] {
                    continue;
                }
                // A sum without an x makes every signature invalid, for any r.
                let is_sum = sum != [0; 4];
                let x = if is_sum { of_big_endian(multiple(&sum).first_chunk().unwrap()) } else { [5; 4] };
                let r = order.reduced(x);
                let s = divided(&r, &u2);
                digests.push(to_big_endian(&order.product(u1, &s)));
                let signature: Vec<u8> = [to_big_endian(&r), to_big_endian(&s)].concat();
                signatures.push(Some(signature.try_into().unwrap()));
                are_sums.push(is_sum);
            }
        }
        let mut verdicts = vec![None; digests.len()];
        lanes.verify(&digests, &signatures, &mut verdicts);
        for (verdict, is_sum) in verdicts.iter().zip(&are_sums) {
            assert_ne!(*verdict, Some(!is_sum));
            decided += usize::from(verdict.is_some());
        }
        // With other digests they are invalid.
        digests.iter_mut().for_each(|digest| digest[31] ^= 1);
        lanes.verify(&digests, &signatures, &mut verdicts);
        assert!(verdicts.iter().all(|verdict| *verdict != Some(true)));
    }
    // The lanes leave out few signatures.
    assert!(decided > 1000, "{decided}");
}

#[test]
fn numbers_out_of_their_range_are_left_out() {
    let Some(lanes) = P256Lanes::new(&multiple(&[7, 0, 0, 0])) else { return assert!(!there()) };
    let wide = [[0; 32], to_big_endian(&ORDER.modulus), [0xff; 32]];
    let fine = to_big_endian(&[9; 4]);
    let pair = |r: [u8; 32], s: [u8; 32]| Some([r, s].concat().try_into().unwrap());
    let signatures: Vec<Option<[u8; 64]>> =
        wide.iter().flat_map(|wrong| [pair(*wrong, fine), pair(fine, *wrong)]).chain([None]).collect();
    let mut verdicts = vec![None; signatures.len()];
    lanes.verify(&vec![[1; 32]; signatures.len()], &signatures, &mut verdicts);
    assert_eq!(verdicts, vec![None; signatures.len()]);
}

#[test]
fn signatures_of_all_keys_verify_and_their_nonces_differ() {
    if !there() {
        return;
    }
    let mut random = Random(11);
    for secret in factors().into_iter().step_by(5) {
        let own = P256SignLanes::new(&to_big_endian(&secret)).unwrap();
        let count = 1 + random.next() as usize % 40;
        let mut bytes = || -> [u8; 32] { to_big_endian(&random.number()) };
        let mut digests: Vec<[u8; 32]> = (0..count).map(|_| bytes()).collect();
        // Also with bad randomness.
        let noise: Vec<[u8; 32]> =
            (0..count).map(|_| if count.is_multiple_of(2) { bytes() } else { [0; 32] }).collect();
        let mut signatures = vec![[0; 64]; count];
        own.sign(&digests, &noise, &mut signatures);
        let mut verdicts = vec![None; count];
        let found: Vec<Option<[u8; 64]>> = signatures.iter().map(|signature| Some(*signature)).collect();
        P256Lanes::new(&multiple(&secret)).unwrap().verify(&digests, &found, &mut verdicts);
        assert_eq!(verdicts, vec![Some(true); count]);
        let mut rs: Vec<&[u8]> = signatures.iter().map(|signature| &signature[..32]).collect();
        rs.sort_unstable();
        rs.dedup();
        assert_eq!(rs.len(), count);
        // Changing only the digest changes the nonce.
        digests[0][31] ^= 1;
        let mut again = vec![[0; 64]; count];
        own.sign(&digests, &noise, &mut again);
        assert_ne!(again[0][..32], signatures[0][..32]);
        assert_eq!(again[1..], signatures[1..]);
    }
}

/// A point of the Ed25519 curve: plain x and y.
type Edwards = (U256, U256);

/// The addition law from the curve's definition.
fn edwards_sum(p: &Edwards, q: &Edwards) -> Edwards {
    let field = &ed25519::FIELD;
    let [x1, y1, x2, y2] = [p.0, p.1, q.0, q.1].map(|number| field.entered(&number));
    let (xx, yy) = (field.product(&x1, &x2), field.product(&y1, &y2));
    let cross = field.sum(&field.product(&x1, &y2), &field.product(&x2, &y1));
    let d = field.product(&field.entered(&ed25519::D), &field.product(&xx, &yy));
    let mut over = [field.sum(&field.one, &d), field.difference(&field.one, &d)];
    field.invert(&mut over);
    let y = field.product(&field.sum(&yy, &xx), &over[1]);
    (field.left(&field.product(&cross, &over[0])), field.left(&y))
}

fn edwards_multiple(point: &Edwards, factor: &U256) -> Edwards {
    let mut made = ([0; 4], ONE);
    for bit in (0..256).rev() {
        made = edwards_sum(&made, &made);
        if factor[bit / 64] >> (bit % 64) & 1 == 1 {
            made = edwards_sum(&made, point);
        }
    }
    made
}

fn edwards_encoded((x, y): &Edwards) -> [u8; 32] {
    let mut words = *y;
    words[3] |= x[0] << 63;
    let mut bytes = [0; 32];
    bytes.chunks_exact_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
    bytes
}

/// Keys and R with a component of small order, R of small order, and R with several encodings: the
/// verdict always equals the library's.
#[test]
fn parts_of_small_order_are_judged_as_the_library_does() {
    if !there() {
        return;
    }
    let (order, mut random) = (Plain(ed25519::ORDER.modulus), Random(12));
    let base = ed25519::decoded(&ed25519::BASE).unwrap();
    // A point of order 8, whose y is among those refused in keys.
    let small = [0x4fd8_4d3d_706a_17c7, 0x0f67_100d_760b_3cba, 0xc6cc_392c_fa53_202a, 0x7a03_ac92_77fd_c74e];
    let torsion = ed25519::decoded(&edwards_encoded(&([0; 4], small))).unwrap();
    assert_eq!(edwards_multiple(&torsion, &[8, 0, 0, 0]), ([0; 4], ONE));
    let (mut good, mut bad) = (0, 0);
    for key_part in [0, 1, 2, 4] {
        let secret = order.reduced(random.number());
        let point = edwards_sum(&edwards_multiple(&base, &secret), &edwards_multiple(&torsion, &[key_part, 0, 0, 0]));
        let key = edwards_encoded(&point);
        let (lanes, library) =
            (ed25519::Ed25519Lanes::new(&key).unwrap(), PublicKey::new(SignatureAlgorithm::Ed25519, &key).unwrap());
        let (mut messages, mut signatures) = (Vec::new(), Vec::new());
        for round in 0..96_u64 {
            // R has small order, or full order.
            let nonce = if round % 3 == 0 { [0; 4] } else { order.reduced(random.number()) };
            let r = edwards_sum(&edwards_multiple(&base, &nonce), &edwards_multiple(&torsion, &[round % 8, 0, 0, 0]));
            let mut encoded = edwards_encoded(&r);
            if round % 24 == 0 {
                // One plus the modulus; and a sign bit where zero has none.
                encoded = [0xff; 32];
                (encoded[0], encoded[31]) = (0xee, 0x7f);
            } else if round % 24 == 3 {
                encoded = edwards_encoded(&([1, 0, 0, 0], ONE));
            }
            let message = round.to_le_bytes();
            let mut digest = [0; 64];
            hash_parts(HashAlgorithm::Sha512, &[&encoded, &key, &message], &mut digest);
            let [low, high] = [0, 32].map(|first| of_little_endian(digest[first..first + 32].try_into().unwrap()));
            let h = ed25519::ORDER.of_wide(&low, &high);
            let s = order.sum(&nonce, &order.product(&h, &secret));
            signatures.push([encoded, edwards_encoded(&([0; 4], s))].concat());
            messages.push(message);
        }
        let messages: Vec<&[u8]> = messages.iter().map(<[u8; 8]>::as_slice).collect();
        let signatures: Vec<&[u8]> = signatures.iter().map(Vec::as_slice).collect();
        let mut verdicts = vec![None; messages.len()];
        lanes.verify(&messages, &signatures, &mut verdicts);
        for (place, verdict) in verdicts.iter().enumerate() {
            let expected = library.verify(messages[place], signatures[place]);
            assert_eq!(*verdict, Some(expected), "{key_part} {place}");
            *(if expected { &mut good } else { &mut bad }) += 1;
        }
    }
    assert!(good > 30 && bad > 200, "{good} {bad}");
}
