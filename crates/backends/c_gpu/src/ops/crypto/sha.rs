//! Hash and Hmac: SHA-2, one thread for each message.

use panoply_core::op::crypto::{Hash, HashAlgorithm, Hmac, Key, Messages, Purpose};
use panoply_core::{Result, Value};
use panoply_kernels::c::{Kernel, SHA};

use super::answer::{KernelOutput, OutputPlace};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::ops::messages::{Batch, DeviceMessages, Terms, place_key, place_plain};

const BLOCK_THREADS: usize = 64;
/// Words of a hash state.
const STATE_WORDS: usize = 8;

/// The initial hash states (FIPS 180-4).
static SHA256: [u32; STATE_WORDS] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];
static SHA384: [u64; STATE_WORDS] = [
    0xcbbb_9d5d_c105_9ed8,
    0x629a_292a_367c_d507,
    0x9159_015a_3070_dd17,
    0x152f_ecd8_f70e_5939,
    0x6733_2667_ffc0_0b31,
    0x8eb4_4a87_6858_1511,
    0xdb0c_2e0d_64f9_8fa7,
    0x47b5_481d_befa_4fa4,
];
static SHA512: [u64; STATE_WORDS] = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];

pub(super) fn hash(op: &Hash, context: &mut Context) -> Result<Value> {
    run(op.algorithm, None, &op.messages, context)
}

pub(super) fn hmac(op: &Hmac, context: &mut Context) -> Result<Value> {
    match op.key().purpose() {
        Purpose::Hmac(algorithm) => run(algorithm, Some(op.key()), op.messages(), context),
        _ => Err(op.key().invalid()),
    }
}

fn run(algorithm: HashAlgorithm, key: Option<&Key>, messages: &Messages, context: &mut Context) -> Result<Value> {
    let digest_bytes = algorithm.digest_bytes();
    let gathered = DeviceMessages::new(messages, context)?;
    let terms = Terms { behind: 0, unit_bytes: digest_bytes, answer_len: &|_| digest_bytes, data: None };
    let batch = Batch::new(&gathered, &terms, context)?;
    let made = KernelOutput::new(batch.answer_bytes(), OutputPlace::of(gathered.is_resident), context)?;
    if batch.count() > 0 {
        launch(algorithm, key, &gathered, &batch, made.address, context)?;
    }
    made.into_value(messages, batch.into_offsets(), context)
}

/// The digests of all messages, packed, for a later kernel.
pub(super) fn digests(
    algorithm: HashAlgorithm,
    messages: &DeviceMessages,
    batch: &Batch,
    context: &mut Context,
) -> Result<Address> {
    let made = context.scratch(batch.count() * algorithm.digest_bytes())?;
    launch(algorithm, None, messages, batch, made, context)?;
    Ok(made)
}

fn launch(
    algorithm: HashAlgorithm,
    key: Option<&Key>,
    messages: &DeviceMessages,
    batch: &Batch,
    made: Address,
    context: &mut Context,
) -> Result<()> {
    let states = states(algorithm, key, context)?;
    let arguments = Arguments::new().address(made).address(messages.address).address(batch.rows()).address(states);
    let mut arguments = batch.add_to(arguments).size(algorithm.digest_bytes()).u32(u32::from(key.is_some()));
    let launch = Launch::new(batch.count().div_ceil(BLOCK_THREADS), BLOCK_THREADS);
    context.launch(&kernel(algorithm, false), launch, &mut arguments)
}

/// The algorithm's initial state, as kernels read it.
pub(super) fn first_state(algorithm: HashAlgorithm) -> &'static [u8] {
    match algorithm {
        HashAlgorithm::Sha256 => bytemuck::cast_slice(&SHA256),
        HashAlgorithm::Sha384 => bytemuck::cast_slice(&SHA384),
        HashAlgorithm::Sha512 => bytemuck::cast_slice(&SHA512),
    }
}

/// The initial states: the algorithm's own, or those derived from a key for the inner and the outer
/// hash.
fn states(algorithm: HashAlgorithm, key: Option<&Key>, context: &mut Context) -> Result<Address> {
    let first = first_state(algorithm);
    let address = place_plain(first, context)?;
    let Some(key) = key else { return Ok(address) };
    let material = place_key(key.material(), context)?;
    let states = context.secret_scratch(2 * first.len())?;
    let mut arguments = Arguments::new()
        .address(states)
        .address(address)
        .address(material)
        .u64(key.material().len() as u64)
        .size(algorithm.digest_bytes());
    context.launch(&kernel(algorithm, true), Launch::new(1, 32), &mut arguments)?;
    Ok(states)
}

fn kernel(algorithm: HashAlgorithm, is_key: bool) -> Kernel {
    let entry = if is_key { "sha_key" } else { "sha_messages" };
    Kernel::new(SHA, entry).flag("WIDE", algorithm != HashAlgorithm::Sha256).flag("KEY", is_key)
}
