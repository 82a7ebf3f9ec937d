//! Dimensions that may be known only when a graph runs: a number times symbols such as `batch`.

use std::fmt;
use std::ops::Mul;

/// The most symbols that one graph may have.
pub const SYMBOLS_MAX: usize = 4;

/// A dimension of a symbolic tensor: a number times powers of the graph's symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    factor: usize,
    powers: [u8; SYMBOLS_MAX],
}

impl Dim {
    /// A fixed number.
    pub const fn fixed(size: usize) -> Dim {
        Dim { factor: size, powers: [0; SYMBOLS_MAX] }
    }

    /// The symbol with this index.
    pub(super) fn symbol(index: usize) -> Dim {
        let mut powers = [0; SYMBOLS_MAX];
        powers[index % SYMBOLS_MAX] = 1;
        Dim { factor: 1, powers }
    }

    /// The number, if the dimension contains no symbol.
    pub fn as_fixed(&self) -> Option<usize> {
        (self.powers == [0; SYMBOLS_MAX]).then_some(self.factor)
    }

    /// The index of the symbol, if the dimension is a single symbol.
    pub fn as_symbol(&self) -> Option<usize> {
        let one = self.powers.iter().position(|power| *power == 1)?;
        (*self == Dim::symbol(one)).then_some(one)
    }

    /// The numeric factor.
    pub fn factor(&self) -> usize {
        self.factor
    }

    /// The power of each symbol.
    pub fn powers(&self) -> &[u8; SYMBOLS_MAX] {
        &self.powers
    }

    /// The size for these sizes of the symbols. `None` if it overflows.
    pub fn value(&self, sizes: &SymbolSizes) -> Option<usize> {
        let mut value = self.factor;
        for (size, power) in sizes.0.iter().zip(self.powers) {
            for _ in 0..power {
                value = value.checked_mul(*size)?;
            }
        }
        Some(value)
    }

    /// Infers the dimension from its sizes at [`SymbolSizes::SAMPLES`]: each symbol occurs as often
    /// as its prime divides both sizes. A plain number may be divisible by a prime of one set, such
    /// as 1009. It is not mistaken for a symbol, since the prime of the other set does not divide
    /// it.
    pub(super) fn of_samples([mut first, mut second]: [usize; 2]) -> Dim {
        if first == second || first == 0 {
            return Dim::fixed(first);
        }
        let [primes, others] = &SymbolSizes::SAMPLES;
        let mut powers = [0; SYMBOLS_MAX];
        for (power, (prime, other)) in powers.iter_mut().zip(primes.0.into_iter().zip(others.0)) {
            while first.is_multiple_of(prime) && second.is_multiple_of(other) && second > 0 {
                (first, second) = (first / prime, second / other);
                *power += 1;
            }
        }
        Dim { factor: first, powers }
    }

    /// The dimension as text, with these names of the symbols: `batch`, `784`, `2*batch`.
    pub fn text<'a>(&'a self, symbols: &'a [String]) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| {
            let mut separator = "";
            if self.factor != 1 || self.as_fixed().is_some() {
                write!(f, "{}", self.factor)?;
                separator = "*";
            }
            for (symbol, power) in self.powers.iter().enumerate() {
                for _ in 0..*power {
                    write!(f, "{separator}{}", symbols.get(symbol).map_or("?", String::as_str))?;
                    separator = "*";
                }
            }
            Ok(())
        })
    }
}

impl From<usize> for Dim {
    fn from(size: usize) -> Dim {
        Dim::fixed(size)
    }
}

/// The product. An overflow becomes the largest number, which no shape accepts.
impl<D: Into<Dim>> Mul<D> for Dim {
    type Output = Dim;

    fn mul(self, other: D) -> Dim {
        let other = other.into();
        let factor = self.factor.saturating_mul(other.factor);
        let powers = std::array::from_fn(|symbol| self.powers[symbol].saturating_add(other.powers[symbol]));
        if factor == 0 { Dim::fixed(0) } else { Dim { factor, powers } }
    }
}

/// A size for each symbol of a graph. Unused symbols count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SymbolSizes(pub [usize; SYMBOLS_MAX]);

impl SymbolSizes {
    /// Two sets of sizes at which an op is asked for its outputs, to learn how these depend on the
    /// symbols. Primes, so that a product reveals its symbols. Two sets, so that a coincidence in
    /// one set shows in the other.
    pub(super) const SAMPLES: [SymbolSizes; 2] =
        [SymbolSizes([1009, 1013, 1019, 1021]), SymbolSizes([2003, 2011, 2017, 2027])];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_told_apart_by_their_samples() {
        let (batch, seq) = (Dim::symbol(0), Dim::symbol(1));
        let dim = batch * seq * 12;
        // A number may be divisible by a prime of the samples, or by one of each set.
        for dim in [dim, Dim::fixed(1009), Dim::fixed(2 * 2003), Dim::fixed(1009 * 2003), batch * 1009, seq * 2003 * 3]
        {
            let sizes = SymbolSizes::SAMPLES.map(|sample| dim.value(&sample).unwrap());
            assert_eq!(Dim::of_samples(sizes), dim);
        }
        let names = ["batch".to_owned(), "seq".to_owned()];
        assert_eq!(dim.text(&names).to_string(), "12*batch*seq");
        assert_eq!(batch.text(&names).to_string(), "batch");
        assert_eq!(Dim::fixed(1).text(&names).to_string(), "1");
        assert_eq!((batch.as_symbol(), (batch * 2).as_symbol(), Dim::fixed(7).as_fixed()), (Some(0), None, Some(7)));
        let none = 0;
        assert_eq!(batch * none, Dim::fixed(0));
        assert_eq!((batch * usize::MAX * 2).value(&SymbolSizes([2; 4])), None);
    }
}
