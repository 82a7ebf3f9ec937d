//! `panoply-burn [ADDRESS]`: serves this machine's devices to Burn programs, by default at 127.0.0.1:3000.

use std::error::Error;
use std::net::TcpListener;
use std::sync::Arc;

use panoply_burn::{device, serve};

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let runtime = Arc::from(&panoply::Runtime::new()?);
    let devices = device::devices(&runtime);
    let listener = TcpListener::bind(&address)?;
    println!("device 0: the router's choice");
    for (number, device) in runtime.devices().enumerate() {
        println!("device {}: {} ({})", number + 1, device.id, device.name);
    }
    println!("Burn programs reach them at ws://{}", listener.local_addr()?);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(devices, listener))?;
    Ok(())
}
