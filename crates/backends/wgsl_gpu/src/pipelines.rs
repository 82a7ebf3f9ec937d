//! Compiled kernels, by their keys. The cache is bounded: when it is full it is emptied.

use std::borrow::Cow;
use std::rc::Rc;

use hashbrown::HashMap;
use panoply_core::{Error, Result};
use panoply_kernels::wgsl::{Kernel, ProgramKernel, WideKernel, with_immediates};

use crate::driver::{Driver, KernelText};

/// The most kernels that are kept. A program uses a few hundred for all its ops, types and forms.
pub const PIPELINES_MAX: usize = 4096;

/// A kernel that is ready to run.
pub struct Pipeline<D: Driver> {
    pub(crate) compiled: D::Pipeline,
    /// Number of parameter words that each dispatch carries; `None` if they come in a buffer.
    pub(crate) immediates: Option<usize>,
}

/// Numbers of buffers that a kernel writes and reads.
type Shape = (usize, usize);

/// The kernels of one opened device.
pub struct Pipelines<D: Driver> {
    driver: Rc<D>,
    immediate_words_max: usize,
    known: HashMap<Kernel, Rc<Pipeline<D>>>,
    compiled: u64,
}

impl<D: Driver> Pipelines<D> {
    pub(crate) fn new(driver: &Rc<D>, immediate_words_max: usize) -> Pipelines<D> {
        Pipelines { driver: Rc::clone(driver), immediate_words_max, known: HashMap::new(), compiled: 0 }
    }

    /// The kernels that are kept.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.known.keys()
    }

    /// Number of kernels that were compiled.
    pub fn compiled(&self) -> u64 {
        self.compiled
    }

    /// The most words of parameters that a dispatch carries itself; 0 if the device cannot.
    pub(crate) fn immediate_words_max(&self) -> usize {
        self.immediate_words_max
    }

    /// The kernel, compiled now if necessary.
    pub fn get(&mut self, kernel: &Kernel, shape: Shape) -> Result<Rc<Pipeline<D>>> {
        if let Some(known) = self.known.get(kernel) {
            return Ok(Rc::clone(known));
        }
        let made = Rc::new(match kernel {
            Kernel::Program(program) => self.compile_program(program, &kernel.source(), shape)?,
            Kernel::Wide(wide) => self.compile_with(&kernel.source(), shape, Some(wide))?,
            _ => self.compile(&kernel.source(), shape)?,
        });
        if self.known.len() >= PIPELINES_MAX {
            self.known.clear();
        }
        self.known.insert(kernel.clone(), Rc::clone(&made));
        Ok(made)
    }

    /// Compiles a text.
    pub fn compile(&mut self, source: &str, shape: Shape) -> Result<Pipeline<D>> {
        self.compile_with(source, shape, None)
    }

    /// Compiles a text. `wide` describes the kernel if its matrices hold 16-bit numbers.
    fn compile_with(&mut self, source: &str, shape: Shape, wide: Option<&WideKernel>) -> Result<Pipeline<D>> {
        let (source, immediates) = match with_immediates(source, self.immediate_words_max) {
            Some((source, words)) => (Cow::Owned(source), Some(words)),
            None => (Cow::Borrowed(source), None),
        };
        let text = KernelText { source: &source, entry: "main", checked: false, scalars: 0, shape, immediates, wide };
        let compiled = self.driver.pipeline(&text)?;
        self.compiled += 1;
        Ok(Pipeline { compiled, immediates })
    }

    /// Compiles a caller's own text. A fault that the driver finds in it is the caller's error.
    fn compile_program(&mut self, kernel: &ProgramKernel, source: &str, shape: Shape) -> Result<Pipeline<D>> {
        let (entry, scalars) = (kernel.entry(), kernel.program.scalars().len());
        let text = KernelText { source, entry, checked: true, scalars, shape, immediates: None, wide: None };
        let compiled = self.driver.pipeline(&text).map_err(|error| match error {
            Error::DeviceFault { reason: message, .. } => {
                Error::KernelSource { kernel: kernel.program.name().to_owned(), language: "WGSL", message }
            }
            other => other,
        })?;
        self.compiled += 1;
        Ok(Pipeline { compiled, immediates: None })
    }
}
