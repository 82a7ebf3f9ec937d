//! Common code of all signature algorithms: the messages of an op with their signatures, and one
//! thread for each.

use panoply_core::op::crypto::Verify;
use panoply_core::{Bytes, DType, Error, Result, Shape, Value};

use super::ecdsa::Curve;
use crate::arguments::Arguments;
use crate::context::{Context, DeviceState};
use crate::driver::{Address, Launch};
use crate::memory::LeasedBlock;
use crate::ops::messages::{Batch, DeviceMessages, Terms};

pub(super) const BLOCK_THREADS: usize = 64;

/// Messages and their signatures on the device, and the destination of the verdicts: 1 or 0 for
/// each.
pub(super) struct Signatures {
    pub(super) texts: DeviceMessages,
    pub(super) batch: Batch,
    pub(super) given: DeviceMessages,
    pub(super) given_batch: Batch,
    pub(super) verdicts: Address,
}

impl Signatures {
    /// The first arguments of kernels that hash the messages themselves; [`Signatures::add_to`]
    /// adds the rest.
    pub(super) fn arguments(&self) -> Arguments {
        Arguments::new()
            .address(self.verdicts)
            .address(self.texts.address)
            .address(self.batch.rows())
            .address(self.given.address)
            .address(self.given_batch.rows())
    }

    /// Adds the layout of the messages and of the signatures.
    pub(super) fn add_to(&self, arguments: Arguments) -> Arguments {
        self.given_batch.add_to(self.batch.add_to(arguments))
    }

    pub(super) fn count(&self) -> usize {
        self.batch.count()
    }
}

/// The verdicts on an op's signatures, which `launch` computes. Not called without signatures.
pub(super) fn verdicts(
    op: &Verify,
    context: &mut Context,
    launch: impl FnOnce(&Signatures, &mut Context) -> Result<()>,
) -> Result<Value> {
    let (texts, given) = (DeviceMessages::new(op.messages(), context)?, DeviceMessages::new(op.signatures(), context)?);
    let terms = || Terms { behind: 0, unit_bytes: 1, answer_len: &|_| 1, data: None };
    let (batch, given_batch) = (Batch::new(&texts, &terms(), context)?, Batch::new(&given, &terms(), context)?);
    if batch.count() != given_batch.count() {
        return Err(Error::invalid("verify: signatures", batch.count().to_string(), given_batch.count()));
    }
    let verdicts = context.scratch(batch.count())?;
    let all = Signatures { texts, batch, given, given_batch, verdicts };
    if all.count() > 0 {
        launch(&all, context)?;
    }
    // Verdicts are read by the host.
    let verdicts = context.download(verdicts, DType::U8, Shape::new([all.count()])?)?;
    Ok(Value::Bytes(Bytes::from_tensor(&verdicts)?))
}

/// A launch with one thread for each of `count` items.
pub(super) fn thread_each(count: usize) -> Launch {
    Launch::new(count.div_ceil(BLOCK_THREADS), BLOCK_THREADS)
}

/// Multiples of the curves' base points, which are public: computed by the first op that needs
/// them, and kept as long as the engine.
#[derive(Default)]
pub(super) struct BaseTables {
    pub(super) ed25519: Option<LeasedBlock>,
    p256: Option<LeasedBlock>,
    p384: Option<LeasedBlock>,
}

impl BaseTables {
    /// The table of a curve of ECDSA.
    pub(super) fn of(&mut self, curve: &Curve) -> &mut Option<LeasedBlock> {
        if curve.number_bytes() == 32 { &mut self.p256 } else { &mut self.p384 }
    }
}

impl DeviceState for BaseTables {}

/// The table in a field of [`BaseTables`]; if absent, `make` queues kernels that compute it.
pub(super) fn base_table(
    place: impl FnOnce(&mut BaseTables) -> &mut Option<LeasedBlock>,
    bytes: usize,
    context: &mut Context,
    make: impl FnOnce(Address, &mut Context) -> Result<()>,
) -> Result<Address> {
    context.with_state(|tables: &mut BaseTables, context| {
        let place = place(tables);
        if let Some(block) = place {
            return Ok(block.block.0);
        }
        let block = context.memory.scratch(bytes)?;
        let address = block.block.0;
        let made = make(address, context);
        if made.is_ok() && !context.is_rehearsal() {
            *place = Some(block);
            context.publish();
        } else {
            // A kernel may be writing to it.
            context.hold(block);
        }
        made.map(|()| address)
    })
}
