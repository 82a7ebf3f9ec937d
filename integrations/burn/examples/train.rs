//! An ordinary Burn training program. Nothing in it but the choice of the device knows where it
//! runs:
//!
//! ```text
//! cargo run --example train                        on Burn's own CPU backend
//! cargo run --example train ws://127.0.0.1:3000    on a server, such as the example `serve`
//! ```

#[path = "../tests/programs/mod.rs"]
mod programs;

use burn::remote::{ConnectError, RemoteHost};
use burn::tensor::Device;

fn main() -> Result<(), ConnectError> {
    let device = match std::env::args().nth(1) {
        Some(url) => Device::remote_options(&RemoteHost::websocket(&url)).init()?,
        None => Device::flex(),
    }
    .autodiff();
    for (name, program) in
        [("mlp", programs::train_mlp as fn(&Device, usize) -> Vec<f32>), ("cnn", programs::train_cnn)]
    {
        let started = std::time::Instant::now();
        let losses = program(&device, 40);
        for (step, loss) in losses.iter().enumerate().step_by(10) {
            println!("{name}: step {step:2}: loss {loss:.6}");
        }
        println!("{name}: 40 steps in {:?}, last loss {:.6}", started.elapsed(), losses[39]);
    }
    Ok(())
}
