//! A server for Burn programs on this machine's processor:
//!
//! ```text
//! cargo run --example serve 3000
//! ```
//!
//! With a runtime of the crate `panoply` in place of this one it serves every device of the
//! machine.

use std::error::Error;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use panoply_burn::Server;
use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;

fn main() -> Result<(), Box<dyn Error>> {
    let port: u16 = std::env::args().nth(1).as_deref().unwrap_or("3000").parse()?;
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build()?;
    let serving = Server::new(Arc::new(runtime)).spawn(TcpListener::bind(("127.0.0.1", port))?)?;
    println!("serving Burn programs at ws://{}", serving.address());
    let mut told = serving.counters();
    let mut endings = Vec::new();
    loop {
        std::thread::sleep(Duration::from_secs(5));
        let counters = serving.counters();
        if counters != told {
            println!("{counters:?}");
            told = counters;
        }
        let now = serving.endings();
        if now != endings {
            now.last().iter().for_each(|ending| println!("a session ended: {ending}"));
            endings = now;
        }
    }
}
