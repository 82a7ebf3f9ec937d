//! The `panoply` command with the abacus as an additional device: `panoply-abacus devices`,
//! `panoply-abacus bench`.

use std::sync::Arc;

fn main() -> std::process::ExitCode {
    panoply::register(Arc::new(own_backend::AbacusBackend));
    panoply_app::main()
}
