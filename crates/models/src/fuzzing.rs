//! Entry points for fuzz targets and tests of mutated files. They call the readers of all outside
//! input, with bounds so low that reaching them takes little memory and time.

use crate::bounds::lowered;
use crate::model::zeros_of;
use crate::network::Network;

/// Number of bits by which bounds are lowered: arrays of at most 256 KiB.
const LOWERED_BITS: u32 = 14;

/// Reads a model and, if that succeeds, runs it on zeros in plain loops. Returns whether the model
/// was read and whether it ran.
pub fn model(bytes: &[u8]) -> (bool, bool) {
    lowered(LOWERED_BITS, || {
        let Ok(network) = Network::from_bytes(bytes) else { return (false, false) };
        let zeros = network.inputs().iter().map(|port| Some((port.name.as_str(), zeros_of(port, &[]).ok()?.into())));
        let Some(inputs) = zeros.collect::<Option<Vec<_>>>() else { return (true, false) };
        (true, network.reference(&inputs).is_ok())
    })
}

/// Reads an array in NumPy's format. Returns whether that succeeded.
pub fn npy(bytes: &[u8]) -> bool {
    lowered(LOWERED_BITS, || crate::npy::read(bytes).is_ok())
}
