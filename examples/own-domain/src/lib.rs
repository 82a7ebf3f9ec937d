//! A domain of ops outside Panoply's own crates: `text`, with three ops on bytes.
//!
//! The ops bring their code for the host, so the CPU backend runs them as they are: validated,
//! queued, routed, reported and learned about like Panoply's own. Nothing inside Panoply names this
//! domain. A backend with a faster way downcasts the op, as `examples/own-backend` does with its
//! ops.
//!
//! * [`Letters`]: the number of each letter, counted by the device's threads.
//! * [`StartTally`], [`Tally`]: a running sum of such counts, which lives on the device.

use std::sync::atomic::{AtomicU32, Ordering};

use panoply::backend::{Object, Op, Value, parts};
use panoply::op::{Host, HostOp};
use panoply::{AnswerTypes, Bytes, DType, Describe, Error, Operation, Result, Shape, Tensor};

/// The domain's name.
pub const TEXT: &str = "text";

/// Number of letters.
pub const LETTERS: usize = 26;

/// Number of bytes from which a second thread pays.
const PIECE_BYTES: usize = 1 << 16;

/// Counts each of the letters `a` to `z`, in either case. Other bytes are left out. The answer has
/// 26 elements of `u32`.
#[derive(Clone, Debug)]
pub struct Letters {
    /// The text.
    pub text: Bytes,
}

/// Makes a tally on the device, with all counts zero.
#[derive(Clone, Debug, Default)]
pub struct StartTally;

/// Adds the letters of a text to a tally. The answer is the tally after that.
#[derive(Clone, Debug)]
pub struct Tally {
    /// The tally, from [`StartTally`].
    pub tally: Object,
    /// The text.
    pub text: Bytes,
}

impl Describe for Letters {
    fn name(&self) -> &'static str {
        "letters"
    }
    fn validate(&self) -> Result<()> {
        check(&self.text)
    }
    parts!(text);
    /// Panoply checks each answer against these types.
    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        counts()
    }
}

impl Describe for StartTally {
    fn name(&self) -> &'static str {
        "start_tally"
    }
    fn validate(&self) -> Result<()> {
        Ok(())
    }
    parts!();
}

impl Describe for Tally {
    fn name(&self) -> &'static str {
        "tally"
    }
    fn validate(&self) -> Result<()> {
        check(&self.text)
    }
    parts!(tally, text);
    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        counts()
    }
    /// A text that is added twice would be counted twice, so no fallback may repeat the op.
    fn is_repeatable(&self) -> bool {
        false
    }
}

impl HostOp for Letters {
    const DOMAIN: &'static str = TEXT;

    fn run(&self, host: &mut Host<'_>) -> Result<Value> {
        let text = self.text.as_slice()?;
        let counts = [const { AtomicU32::new(0) }; LETTERS];
        let count = |piece: usize| {
            let end = text.len().min((piece + 1) * PIECE_BYTES);
            for (all, own) in counts.iter().zip(letters(&text[piece * PIECE_BYTES..end])) {
                all.fetch_add(own, Ordering::Relaxed);
            }
        };
        host.threads().run(text.len().div_ceil(PIECE_BYTES), &count);
        answer(&counts.map(AtomicU32::into_inner))
    }
}

impl HostOp for StartTally {
    const DOMAIN: &'static str = TEXT;

    fn run(&self, host: &mut Host<'_>) -> Result<Value> {
        host.keep("tally", [0_u32; LETTERS]).map(Value::Object)
    }
}

impl HostOp for Tally {
    const DOMAIN: &'static str = TEXT;

    fn run(&self, host: &mut Host<'_>) -> Result<Value> {
        let own = letters(self.text.as_slice()?);
        let sums = host.state::<[u32; LETTERS]>(&self.tally)?;
        sums.iter_mut().zip(own).for_each(|(sum, own)| *sum = sum.wrapping_add(own));
        answer(sums)
    }
}

impl Operation for Letters {
    type Output = Tensor;
    fn into_op(self) -> Result<Op> {
        Op::of_host(self)
    }
    fn output(value: Value) -> Result<Tensor> {
        value.into_tensor()
    }
}

impl Operation for StartTally {
    type Output = Object;
    fn into_op(self) -> Result<Op> {
        Op::of_host(self)
    }
    fn output(value: Value) -> Result<Object> {
        value.into_object()
    }
}

impl Operation for Tally {
    type Output = Tensor;
    fn into_op(self) -> Result<Op> {
        Op::of_host(self)
    }
    fn output(value: Value) -> Result<Tensor> {
        value.into_tensor()
    }
}

/// Counts are `u32`, so a text has fewer than 2^32 bytes.
fn check(text: &Bytes) -> Result<()> {
    match u32::try_from(text.len()) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::invalid("text", "fewer than 2^32 bytes", text.len())),
    }
}

/// The type of an answer: a count for each letter.
fn counts() -> Result<AnswerTypes<'static>> {
    Ok(AnswerTypes::Tensor(DType::U32, Shape::new([LETTERS])?))
}

fn letters(text: &[u8]) -> [u32; LETTERS] {
    let mut counts = [0; LETTERS];
    for byte in text.iter().filter(|byte| byte.is_ascii_alphabetic()) {
        counts[usize::from(byte.to_ascii_lowercase() - b'a')] += 1;
    }
    counts
}

fn answer(counts: &[u32; LETTERS]) -> Result<Value> {
    Tensor::from_slice(counts.as_slice(), [LETTERS]).map(Value::Tensor)
}
