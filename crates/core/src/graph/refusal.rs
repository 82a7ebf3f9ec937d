//! Errors of ops that were asked at sample sizes ([`super::infer`]), with symbols in place of the
//! samples.

use super::dim::{Dim, SymbolSizes};
use crate::dtype::DType;
use crate::error::Error;

/// The letter that ops use in errors for a dimension of any size.
const FREE: &str = "n";
/// Other letters for it in a graph with a symbol of this name.
const FREE_OTHERS: [&str; 5] = ["m", "k", "p", "q", "r"];

/// An error as it is at both sets of sample sizes, with the names of symbols in place of their
/// samples. An error that does not depend on the symbols is returned unchanged.
pub(super) fn in_symbols(first: Error, second: &Error, symbols: &[String]) -> Error {
    let dims = |first: &[usize], second: &[usize]| text(&format!("{first:?}"), &format!("{second:?}"), symbols);
    match (&first, second) {
        (
            Error::ShapeMismatch { what, expected, got },
            Error::ShapeMismatch { expected: other_expected, got: other_got, .. },
        ) if first != *second => {
            let expected = format!("shape {}", dims(expected, other_expected));
            Error::invalid(what, expected, dims(got, other_got))
        }
        (
            Error::InvalidArgument { what, expected, got },
            Error::InvalidArgument { expected: other_expected, got: other_got, .. },
        ) => Error::invalid(what, text(expected, other_expected, symbols), text(got, other_got, symbols)),
        _ => first,
    }
}

/// An error as it is at the first sample sizes, with the names of symbols in place of the sizes of
/// the operands that have these types. A size that one operand has as a number stays.
pub(super) fn in_symbols_of(cause: Error, types: &[(DType, &[Dim])], symbols: &[String]) -> Error {
    let dims: Vec<&Dim> = types.iter().flat_map(|(_, dims)| dims.iter()).collect();
    let symbol = |size: usize| {
        let mut alike = dims.iter().filter(|dim| dim.value(&SymbolSizes::SAMPLES[0]) == Some(size));
        let first = alike.next().filter(|first| first.as_fixed().is_none())?;
        alike.all(|dim| dim == first).then(|| first.text(symbols).to_string())
    };
    let shown = |text: &str| -> String {
        let shown = |token: &str| match token.parse::<usize>().ok().and_then(&symbol) {
            Some(symbol) => symbol,
            None if token == FREE => free(symbols).to_owned(),
            None => token.to_owned(),
        };
        tokens(text).into_iter().map(shown).collect()
    };
    match cause {
        Error::ShapeMismatch { what, expected, got } => {
            let texts = [format!("{expected:?}"), format!("{got:?}")];
            let [expected_text, got_text] = texts.each_ref().map(|text| shown(text));
            match texts == [expected_text.as_str(), got_text.as_str()] {
                true => Error::ShapeMismatch { what, expected, got },
                false => Error::invalid(what, format!("shape {expected_text}"), got_text),
            }
        }
        Error::InvalidArgument { what, expected, got } => Error::invalid(what, shown(&expected), shown(&got)),
        cause => cause,
    }
}

/// The letter for a dimension of any size in a graph with these symbols.
fn free(symbols: &[String]) -> &'static str {
    let is_free = |letter: &&str| symbols.iter().all(|symbol| symbol != letter);
    [FREE].into_iter().chain(FREE_OTHERS).find(is_free).unwrap_or(FREE)
}

/// A text with symbols in place of the numbers in which it differs from the other.
fn text(first: &str, second: &str, symbols: &[String]) -> String {
    let (tokens, others) = (tokens(first), tokens(second));
    let symbolic = |(first, second): (&&str, &&str)| {
        if first == second {
            let kept: &str = if *first == FREE { free(symbols) } else { first };
            return Some(kept.to_owned());
        }
        let (sample, other) = (first.parse().ok()?, second.parse().ok()?);
        let dim = Dim::of_samples([sample, other]);
        let is_exact = dim.value(&SymbolSizes::SAMPLES[1]) == Some(other);
        is_exact.then(|| dim.text(symbols).to_string())
    };
    let symbolic: Option<String> = match tokens.len() == others.len() {
        true => tokens.iter().zip(&others).map(symbolic).collect(),
        false => None,
    };
    symbolic.unwrap_or_else(|| first.to_owned())
}

/// Numbers, words, and the text between them.
fn tokens(text: &str) -> Vec<&str> {
    let kind = |character: char| match character {
        '0'..='9' => 0,
        'a'..='z' | 'A'..='Z' | '_' => 1,
        _ => 2,
    };
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|character| kind(character) != kind(first)).unwrap_or(rest.len());
        let (token, after) = rest.split_at(end);
        tokens.push(token);
        rest = after;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_samples_become_symbols() {
        let symbols = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let named = symbols(&["batch", "len"]);
        assert_eq!(text("[1009, 4, 1013]", "[2003, 4, 2011]", &named), "[batch, 4, len]");
        assert_eq!(text("shape [3027, n]", "shape [6009, n]", &named), "shape [3*batch, n]");
        assert_eq!(text("shape [1009, n]", "shape [2003, n]", &symbols(&["n", "m"])), "shape [n, k]");
        // A number that is no product of symbols stays, and so do texts that differ otherwise.
        assert_eq!(text("at most 1008", "at most 2002", &named), "at most 1008");
        assert_eq!(text("one of 1009", "none", &named), "one of 1009");
        assert_eq!(text("0.05 of 1009", "0.05 of 2003", &named), "0.05 of batch");
        let (first, second) = (Error::invalid("a", "1009", "1"), Error::invalid("a", "2003", "1"));
        assert_eq!(in_symbols(first, &second, &named), Error::invalid("a", "batch", "1"));
        let shape = |got: usize| Error::ShapeMismatch { what: "b", expected: vec![4], got: vec![got] };
        assert_eq!(in_symbols(shape(5), &shape(5), &named), shape(5));
        assert_eq!(in_symbols(shape(1009), &shape(2003), &named), Error::invalid("b", "shape [4]", "[batch]"));
    }

    #[test]
    fn sizes_of_operands_become_symbols() {
        let named = ["batch".to_owned(), "len".to_owned()];
        let shown = |dims: &[Dim], cause| in_symbols_of(cause, &[(DType::F32, dims)], &named);
        let (batch, four) = (Dim::symbol(0), Dim::fixed(4));
        let cause = || Error::invalid("b", "shape [1009, n] of 0.04", "[4, 1013]");
        assert_eq!(shown(&[batch, four], cause()), Error::invalid("b", "shape [batch, n] of 0.04", "[4, 1013]"));
        assert_eq!(shown(&[batch, Dim::fixed(1009)], cause()), cause(), "it may be the number");
        let shape = |got: usize| Error::ShapeMismatch { what: "b", expected: vec![4], got: vec![got] };
        assert_eq!(shown(&[batch, four], shape(5)), shape(5));
        assert_eq!(shown(&[batch * 2], shape(2018)), Error::invalid("b", "shape [4]", "[2*batch]"));
    }
}
