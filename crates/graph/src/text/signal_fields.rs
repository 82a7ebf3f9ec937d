//! The arguments of signal ops that are not plain numbers: codes, constellations, waves and loops.

use panoply_core::Complex64;
use panoply_core::op::signal::{
    AdaptTarget, BaseGraph, Biquad, Constellation, DctKind, Decision, Ending, Extent, Interleaver, Ldpc, PowerScale,
    Puncture, SampleFormat, Scrambler, TelemetryRate, TimingDetector, Tracker, Wave,
};

use super::fields::{Field, Words, narrow, needed, tagged, unknown_word, words};
use super::ops::{Argument, Arguments};

words! {
    DctKind { One = "one", Two = "two", Three = "three", Four = "four" }
    Ending { Terminated = "terminated", Open = "open", TailBiting = "tail_biting" }
    Extent { Full = "full", Same = "same", Valid = "valid" }
    PowerScale { Density = "density", Spectrum = "spectrum" }
    SampleFormat { U8 = "u8", I8 = "i8", I16 = "i16", I16Be = "i16be", I24 = "i24", I32 = "i32", F32 = "f32" }
    TimingDetector { Gardner = "gardner", MuellerMuller = "mueller_muller" }
}

tagged! {
    Scrambler {
        Additive = "additive" { polynomial, seed },
        SelfSynchronizing = "self_synchronizing" { polynomial, seed },
    }
    Tracker {
        Gain = "gain" { target, rate, gain_max },
        Carrier = "carrier" { phases, bandwidth },
        Timing = "timing" { detector, samples, bandwidth },
    }
    Wave {
        Fsk = "fsk" { bits, samples, spacing },
        Am = "am" { depth },
        Fm = "fm" { deviation },
        Ofdm = "ofdm" { carriers, prefix },
    }
}

/// A code's name, with `lifting=` for mobile radio codes and `data=` for telemetry codes.
impl Field for Ldpc {
    fn say(&self, name: &str, words: &mut Words) {
        words.say(name, Ldpc::name(self));
        match self {
            Ldpc::Nr { lifting, .. } => lifting.say("lifting", words),
            Ldpc::Telemetry { data, .. } => data.say("data", words),
        }
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<Ldpc>, String> {
        let Some(word) = arguments.word(name)? else { return Ok(None) };
        let nr = [BaseGraph::One, BaseGraph::Two].map(|graph| Ldpc::Nr { graph, lifting: 0 });
        let rates = [TelemetryRate::Half, TelemetryRate::TwoThirds, TelemetryRate::FourFifths];
        let telemetry = rates.map(|rate| Ldpc::Telemetry { data: 0, rate });
        let known = || nr.iter().chain(&telemetry);
        match known().find(|code| code.name() == word) {
            Some(Ldpc::Nr { graph, .. }) => {
                Ok(Some(Ldpc::Nr { graph: *graph, lifting: needed("lifting", arguments)? }))
            }
            Some(Ldpc::Telemetry { rate, .. }) => {
                Ok(Some(Ldpc::Telemetry { data: needed("data", arguments)?, rate: *rate }))
            }
            None => unknown_word(name, &known().map(Ldpc::name).collect::<Vec<_>>(), &word),
        }
    }
}

/// A constellation's name, or its points: real and imaginary parts alternating.
impl Field for Constellation {
    fn say(&self, name: &str, words: &mut Words) {
        match self {
            Constellation::Custom(points) => {
                let parts = points.iter().flat_map(|point| [point.re, point.im]);
                words.say_list(name, parts.map(f64::from));
            }
            named => words.say(name, Constellation::name(named)),
        }
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<Constellation>, String> {
        if let Some(Argument::List(_)) = arguments.0.get(name) {
            let numbers = arguments.numbers(name)?.unwrap_or_default();
            if !numbers.len().is_multiple_of(2) {
                return Err(format!("expected pairs of numbers for `{name}`, got {} numbers", numbers.len()));
            }
            let point = |pair: &[f64]| Ok(Complex64::new(narrow(name, pair[0])?, narrow(name, pair[1])?));
            let points: Vec<Complex64> = numbers.chunks_exact(2).map(point).collect::<Result<_, String>>()?;
            return Ok(Some(Constellation::Custom(points.into())));
        }
        let Some(word) = arguments.word(name)? else { return Ok(None) };
        match Constellation::ALL.into_iter().find(|known| known.name() == word) {
            Some(known) => Ok(Some(known)),
            None => unknown_word(name, &Constellation::ALL.each_ref().map(Constellation::name), &word),
        }
    }
}

/// The variance of the noise, for soft decisions.
impl Field for Decision {
    fn say(&self, name: &str, words: &mut Words) {
        if let Decision::Soft { noise } = self {
            noise.say(name, words);
        }
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<Decision>, String> {
        Ok(f32::take(name, arguments)?.map(|noise| Decision::Soft { noise }))
    }
}

/// `decisions=` a constellation or `modulus=` a power. A signal target is an operand and has no
/// argument.
impl Field for AdaptTarget {
    fn say(&self, _: &str, words: &mut Words) {
        match self {
            AdaptTarget::Signal(_) => {}
            AdaptTarget::Decisions(constellation) => constellation.say("decisions", words),
            AdaptTarget::Modulus(power) => power.say("modulus", words),
        }
    }

    fn take(_: &str, arguments: &mut Arguments) -> Result<Option<AdaptTarget>, String> {
        if let Some(constellation) = Constellation::take("decisions", arguments)? {
            return Ok(Some(AdaptTarget::Decisions(constellation)));
        }
        Ok(f64::take("modulus", arguments)?.map(AdaptTarget::Modulus))
    }
}

/// `rows=` and `columns=` of a block, or `order=[…]`.
impl Field for Interleaver {
    fn say(&self, _: &str, words: &mut Words) {
        match self {
            Interleaver::Block { rows, columns } => {
                rows.say("rows", words);
                columns.say("columns", words);
            }
            Interleaver::Custom(order) => words.say_list("order", order.iter()),
        }
    }

    fn take(_: &str, arguments: &mut Arguments) -> Result<Option<Interleaver>, String> {
        let Some(order) = arguments.list("order")? else {
            let Some(rows) = arguments.size("rows")? else { return Ok(None) };
            return Ok(Some(Interleaver::Block { rows, columns: needed("columns", arguments)? }));
        };
        let place =
            |place: usize| u32::try_from(place).map_err(|_| format!("expected 32 bits in `order`, got {place}"));
        let order: Vec<u32> = order.into_iter().map(place).collect::<Result<_, _>>()?;
        Ok(Some(Interleaver::Custom(order.into())))
    }
}

/// One flag for each coded bit of a period: whether it is sent.
impl Field for Puncture {
    fn say(&self, name: &str, words: &mut Words) {
        words.say_list(name, (0..self.period()).map(|at| u8::from(self.is_sent(at))));
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<Puncture>, String> {
        let Some(pattern) = arguments.list(name)? else { return Ok(None) };
        if let Some(got) = pattern.iter().find(|sent| **sent > 1) {
            return Err(format!("expected 0 or 1 in `{name}`, got {got}"));
        }
        let pattern: Vec<bool> = pattern.into_iter().map(|sent| sent == 1).collect();
        Puncture::new(&pattern).map(Some).map_err(|error| error.to_string())
    }
}

/// The numbers b0, b1, b2, a1 and a2 of each section in turn.
impl Field for Vec<Biquad> {
    fn say(&self, name: &str, words: &mut Words) {
        words.say_list(name, self.iter().flat_map(|section| section.b.into_iter().chain(section.a)));
    }

    fn take(name: &str, arguments: &mut Arguments) -> Result<Option<Vec<Biquad>>, String> {
        let Some(numbers) = arguments.numbers(name)? else { return Ok(None) };
        if !numbers.len().is_multiple_of(5) {
            return Err(format!("expected five numbers for each section of `{name}`, got {} in all", numbers.len()));
        }
        let section = |of: &[f64]| Biquad { b: [of[0], of[1], of[2]], a: [of[3], of[4]] };
        Ok(Some(numbers.chunks_exact(5).map(section).collect()))
    }
}
