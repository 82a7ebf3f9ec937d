//! From a case to something that can be run: its inputs are made once, its op is sent again and again.

use panoply::prelude::*;

use super::cases::Work;
use super::random::Normals;

/// Runs the op once, to the end, and drops its output.
pub type Runner = Box<dyn Fn(&Runtime, &RunOptions) -> panoply::Result<()>>;

/// Every case draws its inputs from the same sequence.
const SEED: u64 = 7;

/// Makes the inputs of a case.
pub fn prepare(work: &Work) -> panoply::Result<Runner> {
    let mut normals = Normals::new(SEED);
    Ok(match *work {
        Work::Transpose { rows, columns } => repeat(Transpose::new(&normals.tensor([rows, columns])?)),
    })
}

fn repeat<O: Operation + Clone>(op: O) -> Runner {
    Box::new(move |runtime, options| runtime.run_with(op.clone(), options.clone()).wait().map(drop))
}
