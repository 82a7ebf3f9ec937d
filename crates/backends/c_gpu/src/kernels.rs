//! The kernels loaded on one device. Each is compiled and loaded at its first launch, and then
//! looked up by name and parameters without allocation. The table is bounded: the least recently
//! used kernels are evicted.

use std::collections::HashMap;
use std::sync::Arc;

use panoply_core::{DeviceId, Error, Result};
use panoply_kernels::c::Kernel;

use crate::compile::CompileQueue;
use crate::driver::{Driver, Function};

/// Maximum number of loaded kernels.
pub const LOADED_MAX: usize = 4096;

pub(crate) struct Kernels {
    device: DeviceId,
    queue: Arc<CompileQueue>,
    loaded: HashMap<Kernel, CachedKernel>,
    loaded_max: usize,
    /// Counts launches, to record each kernel's last use.
    clock: u64,
    /// Evicted kernels, which ops in flight may still use.
    retired: Vec<Function>,
}

struct CachedKernel {
    function: Function,
    used: u64,
}

impl Kernels {
    pub(crate) fn new(device: DeviceId, queue: Arc<CompileQueue>) -> Kernels {
        Kernels { device, queue, loaded: HashMap::new(), loaded_max: LOADED_MAX, clock: 0, retired: Vec::new() }
    }

    /// The kernel, compiled and loaded.
    pub(crate) fn get(&mut self, driver: &dyn Driver, kernel: &Kernel) -> Result<Function> {
        self.clock += 1;
        if let Some(loaded) = self.loaded.get_mut(kernel) {
            loaded.used = self.clock;
            return Ok(loaded.function);
        }
        let image = self.queue.get(kernel).map_err(|message| self.refusal(kernel, message))?;
        let function = match driver.load(&kernel.name(), &image, kernel.entry()) {
            Ok(function) => function,
            Err(lost @ Error::DeviceLost { .. }) => return Err(lost),
            // The cached image may be of another driver: compile the text again, once.
            Err(_) => {
                let image = self.queue.renew(kernel).map_err(|message| self.refusal(kernel, message))?;
                driver.load(&kernel.name(), &image, kernel.entry())?
            }
        };
        if self.loaded.len() >= self.loaded_max {
            self.make_room();
        }
        self.loaded.insert(kernel.clone(), CachedKernel { function, used: self.clock });
        Ok(function)
    }

    /// A compile error: the caller's fault for the caller's own text, the device's fault otherwise.
    fn refusal(&self, kernel: &Kernel, message: String) -> Error {
        match kernel.program() {
            Some(program) => Error::KernelSource { kernel: program.name().to_owned(), language: "C", message },
            None => {
                let reason = format!("{} does not compile: {message}", kernel.name());
                Error::DeviceFault { device: self.device, reason }
            }
        }
    }

    /// Requests that the kernel be compiled, without waiting for it or loading it.
    pub(crate) fn request(&self, kernel: &Kernel) {
        if !self.loaded.contains_key(kernel) {
            self.queue.request(kernel);
        }
    }

    /// The queue in which kernels are compiled.
    pub(crate) fn queue(&self) -> &CompileQueue {
        &self.queue
    }

    /// Takes the evicted kernels, which will not be launched again. They may be unloaded when every
    /// op queued so far has finished.
    pub(crate) fn take_retired(&mut self) -> Vec<Function> {
        std::mem::take(&mut self.retired)
    }

    /// Number of loaded kernels.
    pub(crate) fn count(&self) -> usize {
        self.loaded.len()
    }

    /// Evicts the least recently used quarter of the kernels.
    fn make_room(&mut self) {
        let mut uses: Vec<u64> = self.loaded.values().map(|loaded| loaded.used).collect();
        uses.sort_unstable();
        let oldest = uses[uses.len() / 4];
        let retired = self.loaded.extract_if(|_, loaded| loaded.used <= oldest);
        self.retired.extend(retired.map(|(_, loaded)| loaded.function));
    }

    /// Sets the maximum number of loaded kernels.
    #[cfg(test)]
    pub(crate) fn limit(&mut self, loaded_max: usize) {
        self.loaded_max = loaded_max;
    }
}

#[cfg(test)]
mod tests {
    use panoply_conformance::run_one;
    use panoply_core::op::compute::Map;
    use panoply_core::{Backend, OpenOptions, Operation, Tensor};

    use crate::{EmulatedBackend, GpuBackend};

    /// Kernels are evicted and loaded again when needed: every result stays correct.
    #[test]
    fn kernels_make_room() {
        let backend = match EmulatedBackend::new() {
            Ok(backend) => backend,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let info = backend.discover().unwrap().remove(0);
        let mut engine = backend.open_engine(&info, &OpenOptions::default()).unwrap();
        engine.context_mut().limit_kernels(4);
        let x = Tensor::from_vec(vec![4.0_f32, 9.0], [2]).unwrap();
        let maps: [(Map, [f32; 2]); 6] = [
            (Map::neg(&x), [-4.0, -9.0]),
            (Map::add(&x, &x), [8.0, 18.0]),
            (Map::mul(&x, &x), [16.0, 81.0]),
            (Map::sub(&x, &x), [0.0, 0.0]),
            (Map::relu(&x), [4.0, 9.0]),
            (Map::div(&x, &x), [1.0, 1.0]),
        ];
        for _ in 0..3 {
            for (map, expected) in &maps {
                let got = run_one(&mut engine, map.clone().into_op().unwrap()).unwrap().into_tensor().unwrap();
                assert_eq!(got.to_vec::<f32>().unwrap(), expected);
                assert!(engine.context_mut().kernels_loaded() <= 4);
            }
        }
        assert_eq!(
            engine.context_mut().compile_queue().compiled().min(6),
            engine.context_mut().compile_queue().compiled()
        );
    }
}
