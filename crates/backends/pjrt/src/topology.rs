//! Compiles programs for devices that are not installed: libtpu compiles for a topology by its name
//! on any machine.

use std::sync::Arc;

use panoply_core::{Op, Result as OpResult};

use crate::client::{UnloadedProgram, compile_options, describe, program};
use crate::plugin::{PjrtError, Plugin};
use crate::program::{Program, compact_dims};
use crate::sys::{self, PaddedArgs};

/// A set of devices that a plugin can compile for.
pub struct Topology {
    plugin: Arc<Plugin>,
    raw: *mut sys::TopologyObject,
}

/// The result of compiling an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledProgram {
    /// The program in the plugin's own format. Empty if the plugin cannot serialise it.
    pub bytes: Vec<u8>,
    /// Size of the machine code, if the plugin reports it.
    pub code_bytes: Option<u64>,
}

/// The StableHLO text of an op or a graph on host tensors.
pub fn text(op: &Op) -> OpResult<String> {
    match op {
        Op::Graph(panoply_core::op::graph::GraphOp::RunGraph(graph)) => Ok(Program::of_graph(graph)?.text.clone()),
        op => Ok(Program::of_op(op, &|tensor| Ok(compact_dims(tensor)))?.text),
    }
}

impl Topology {
    /// Creates the topology of this name, such as `v5e:2x2x1`.
    pub fn new(plugin: &Arc<Plugin>, name: &str) -> Result<Topology, PjrtError> {
        let mut args = PaddedArgs::<sys::TopologyCreate>::new();
        (args.args.name, args.args.name_size) = (name.as_ptr().cast(), name.len());
        plugin.call(&mut args)?;
        Ok(Topology { plugin: Arc::clone(plugin), raw: args.args.topology })
    }

    /// The kinds of the topology's devices.
    pub fn devices(&self) -> Result<Vec<String>, PjrtError> {
        let mut args = PaddedArgs::<sys::TopologyDescriptions>::new();
        args.args.topology = self.raw;
        self.plugin.call(&mut args)?;
        let (list, count) = (args.args.descriptions, args.args.num_descriptions);
        // SAFETY: the topology owns the list, which has `count` entries.
        (0..count).map(|index| describe(&self.plugin, unsafe { *list.add(index) }).map(|device| device.kind)).collect()
    }

    /// Compiles StableHLO text.
    pub fn compile(&self, text: &str) -> Result<CompiledProgram, PjrtError> {
        let (program, options) = (program(text), compile_options());
        let mut args = PaddedArgs::<sys::Compile>::new();
        args.args.topology = self.raw;
        args.args.program = &raw const program.args;
        (args.args.compile_options, args.args.compile_options_size) = (options.as_ptr(), options.len());
        self.plugin.call(&mut args)?;
        let made = UnloadedProgram { plugin: Arc::clone(&self.plugin), raw: args.args.executable };
        Ok(CompiledProgram { bytes: made.serialize().unwrap_or_default(), code_bytes: made.code_bytes() })
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        let mut args = PaddedArgs::<sys::TopologyDestroy>::new();
        args.args.topology = self.raw;
        let _ = self.plugin.call(&mut args);
    }
}
