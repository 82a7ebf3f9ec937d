//! Arguments of ops, in both directions. A [`Field`] is one argument of an op: `say` writes it and
//! `take` reads it, so both directions are in one place. `table` names the fields of each op.

use std::fmt::{self, Write};

use panoply_core::op::compute::{
    ColorFormat, ColorRange, ColorStandard, ImageLayout, ResizeMode, RowFunction, ScanKind,
};

use super::lexer::clipped;
use super::ops::Arguments;

/// The arguments of one op as text, each preceded by a comma.
#[derive(Default)]
pub(super) struct Words(pub(super) String);

impl Words {
    /// Adds `name=value`.
    pub(super) fn say(&mut self, name: &str, value: impl fmt::Display) {
        // Writing into a string does not fail.
        let _ = write!(self.0, ", {name}={value}");
    }

    /// Adds `name=[…]`.
    pub(super) fn say_list<T: fmt::Display>(&mut self, name: &str, values: impl Iterator<Item = T>) {
        let values: Vec<String> = values.map(|value| value.to_string()).collect();
        self.say(name, format_args!("[{}]", values.join(", ")));
    }
}

/// A type of argument. A field that holds several numbers may use several names.
pub(super) trait Field: Sized {
    /// Writes the field under this name.
    fn say(&self, name: &str, words: &mut Words);

    /// Takes the field of this name out of the arguments. `None` if it is absent.
    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<Self>, String>;
}

/// Takes a mandatory field.
pub(super) fn needed<T: Field>(name: &str, arguments: &mut Arguments) -> Result<T, String> {
    T::take(name, arguments)?.ok_or_else(|| format!("expected `{name}=`"))
}

/// Replaces a field if its argument is present.
pub(super) fn read<T: Field>(field: &mut T, name: &str, arguments: &mut Arguments) -> Result<(), String> {
    if let Some(value) = T::take(name, arguments)? {
        *field = value;
    }
    Ok(())
}

/// The message about a word that is not among the expected ones.
pub(super) fn unknown_word<T>(name: &str, expected: &[&str], got: &str) -> Result<T, String> {
    Err(format!("expected `{name}=` {}, got `{}`", expected.join(", "), clipped(got)))
}

impl Field for usize {
    fn say(&self, name: &str, words: &mut Words) {
        words.say(name, self);
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<usize>, String> {
        arguments.size(name)
    }
}

/// A flag, which is written only if it is set.
impl Field for bool {
    fn say(&self, name: &str, words: &mut Words) {
        if *self {
            words.say(name, 1);
        }
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<bool>, String> {
        if arguments.0.contains_key(name) { arguments.flag(name).map(Some) } else { Ok(None) }
    }
}

impl Field for f64 {
    fn say(&self, name: &str, words: &mut Words) {
        words.say(name, self);
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<f64>, String> {
        arguments.number(name)
    }
}

/// Written with all digits of the f64, so that rounding to f32 gives the same number back.
impl Field for f32 {
    fn say(&self, name: &str, words: &mut Words) {
        words.say(name, f64::from(*self));
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<f32>, String> {
        arguments.number(name)?.map(|number| narrow(name, number)).transpose()
    }
}

/// Rounds a number to f32, unless it is out of range.
pub(super) fn narrow(name: &str, number: f64) -> Result<f32, String> {
    let narrow = number as f32;
    match narrow.is_infinite() && number.is_finite() {
        true => Err(format!("expected a number that f32 holds for `{name}`, got {number}")),
        false => Ok(narrow),
    }
}

/// Bits of a register or a polynomial: hexadecimal.
impl Field for u64 {
    fn say(&self, name: &str, words: &mut Words) {
        words.say(name, format_args!("{self:#x}"));
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<u64>, String> {
        arguments.bits(name)
    }
}

impl Field for u16 {
    fn say(&self, name: &str, words: &mut Words) {
        u64::from(*self).say(name, words);
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<u16>, String> {
        let narrow = |bits: u64| {
            u16::try_from(bits).map_err(|_| format!("expected at most {} for `{name}`, got {bits}", u16::MAX))
        };
        arguments.bits(name)?.map(narrow).transpose()
    }
}

impl<const N: usize> Field for [usize; N] {
    fn say(&self, name: &str, words: &mut Words) {
        words.say_list(name, self.iter());
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<[usize; N]>, String> {
        arguments.sizes(name)
    }
}

impl<const N: usize> Field for [u8; N] {
    fn say(&self, name: &str, words: &mut Words) {
        words.say_list(name, self.iter());
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<[u8; N]>, String> {
        let Some(sizes) = arguments.sizes::<N>(name)? else { return Ok(None) };
        let mut bytes = [0; N];
        for (byte, size) in bytes.iter_mut().zip(sizes) {
            *byte = u8::try_from(size).map_err(|_| format!("expected at most 255 in `{name}`, got {size}"))?;
        }
        Ok(Some(bytes))
    }
}

impl Field for Vec<usize> {
    fn say(&self, name: &str, words: &mut Words) {
        words.say_list(name, self.iter());
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<Vec<usize>>, String> {
        arguments.list(name)
    }
}

impl<T: Field> Field for Option<T> {
    fn say(&self, name: &str, words: &mut Words) {
        self.iter().for_each(|value| value.say(name, words));
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<Option<T>>, String> {
        Ok(T::take(name, arguments)?.map(Some))
    }
}

/// Fields that are one word of a list. The list is checked to be complete.
macro_rules! words {
    ($($of:ident { $($variant:ident = $word:literal),* $(,)? })*) => {$(
        impl Field for $of {
            fn say(&self, name: &str, words: &mut Words) {
                words.say(name, match self { $($of::$variant => $word,)* });
            }

            fn take(name: &str, arguments: &mut Arguments) -> Result<Option<$of>, String> {
                let Some(word) = arguments.word(name)? else { return Ok(None) };
                match word.as_str() {
                    $($word => Ok(Some($of::$variant)),)*
                    _ => unknown_word(name, &[$($word),*], &word),
                }
            }
        }
    )*};
}

/// Fields that consist of a word and its numbers, each under its own name.
macro_rules! tagged {
    ($($of:ident { $($variant:ident = $word:literal { $($field:ident),* }),* $(,)? })*) => {$(
        impl Field for $of {
            fn say(&self, name: &str, words: &mut Words) {
                match self {
                    $($of::$variant { $($field),* } => {
                        words.say(name, $word);
                        $($field.say(stringify!($field), words);)*
                    })*
                }
            }

            fn take(name: &str, arguments: &mut Arguments) -> Result<Option<$of>, String> {
                let Some(word) = arguments.word(name)? else { return Ok(None) };
                match word.as_str() {
                    $($word => Ok(Some($of::$variant { $($field: needed(stringify!($field), arguments)?),* })),)*
                    _ => unknown_word(name, &[$($word),*], &word),
                }
            }
        }
    )*};
}

pub(super) use {tagged, words};

words! {
    ColorFormat { Rgb = "rgb", Bgr = "bgr", Gray = "gray", I420 = "i420", Nv12 = "nv12" }
    ColorStandard { Bt601 = "bt601", Bt709 = "bt709" }
    ColorRange { Limited = "limited", Full = "full" }
    ImageLayout { Nchw = "nchw", Nhwc = "nhwc" }
    ResizeMode { Nearest = "nearest", Bilinear = "bilinear", Area = "area" }
    ScanKind { Sum = "sum", Product = "product", Max = "max", Min = "min" }
}

/// The row functions except the norms, which have an `epsilon=`.
const ROW_FUNCTIONS: [RowFunction; 6] = [
    RowFunction::Sum,
    RowFunction::Mean,
    RowFunction::Max,
    RowFunction::Min,
    RowFunction::Softmax,
    RowFunction::LogSoftmax,
];

impl Field for RowFunction {
    fn say(&self, name: &str, words: &mut Words) {
        words.say(name, RowFunction::name(*self));
        if let RowFunction::Norm { epsilon, .. } = self {
            epsilon.say("epsilon", words);
        }
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<RowFunction>, String> {
        let Some(word) = arguments.word(name)? else { return Ok(None) };
        let norms = [false, true].map(|is_rms| RowFunction::Norm { epsilon: 0.0, is_rms });
        match ROW_FUNCTIONS.iter().chain(&norms).find(|known| RowFunction::name(**known) == word) {
            Some(RowFunction::Norm { is_rms, .. }) => {
                Ok(Some(RowFunction::Norm { epsilon: needed("epsilon", arguments)?, is_rms: *is_rms }))
            }
            Some(known) => Ok(Some(*known)),
            None => {
                let names: Vec<&str> = ROW_FUNCTIONS.iter().chain(&norms).map(|known| known.name()).collect();
                unknown_word(name, &names, &word)
            }
        }
    }
}
