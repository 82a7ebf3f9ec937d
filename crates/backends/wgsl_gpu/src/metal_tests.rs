//! Checks kernels in Metal's language, as wgpu lets naga write them on a Mac. No compiler for this
//! language runs elsewhere. So the test checks that naga takes every kernel, that Metal has a
//! binding index for each binding, and the written text itself.

use std::collections::BTreeMap;

use naga::back::msl;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::ModuleInfo;
use naga::{AddressSpace, Module, ShaderStage, StorageAccess, TypeInner};

/// Metal 2.4, which macOS 12 supports and wgpu requests there.
const VERSION: (u8, u8) = (2, 4);
/// The most buffers of all kinds that a kernel may bind in Metal.
const BUFFERS_MAX: u8 = 31;
/// The indices of the parameters and of the buffer lengths, after all bindings of a kernel.
const IMMEDIATES: u8 = BUFFERS_MAX - 2;
const SIZES: u8 = BUFFERS_MAX - 1;

/// The kernel in Metal's language; `None` if it multiplies matrices of 16 x 16, which no Mac
/// supports, so that the engine over wgpu never uses the kernel there.
pub(super) fn translate(module: &Module, info: &ModuleInfo) -> Result<Option<String>, String> {
    if module.types.iter().any(|(_, kind)| matches!(kind.inner, TypeInner::CooperativeMatrix { .. })) {
        return Ok(None);
    }
    let entry = module.entry_points.first().ok_or("no entry point")?.name.clone();
    let resources = resources(module)?;
    let written = |policy| write(module, info, (&entry, &resources), policy);
    // With checks, as callers' kernels are compiled, and without, as ours are.
    written(BoundsCheckPolicy::Restrict)?;
    written(BoundsCheckPolicy::Unchecked).map(Some)
}

/// The text as naga writes it, inspected.
fn write(
    module: &Module,
    info: &ModuleInfo,
    (entry, resources): (&str, &msl::EntryPointResources),
    policy: BoundsCheckPolicy,
) -> Result<String, String> {
    let options = msl::Options {
        lang_version: VERSION,
        per_entry_point_map: BTreeMap::from([(entry.to_owned(), resources.clone())]),
        fake_missing_bindings: false,
        bounds_check_policies: BoundsCheckPolicies {
            index: policy,
            buffer: policy,
            image_load: policy,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        ..msl::Options::default()
    };
    let entry_point = Some((ShaderStage::Compute, entry.to_owned()));
    let pipeline = msl::PipelineOptions { entry_point, ..msl::PipelineOptions::default() };
    let written = msl::write_string(module, info, &options, &pipeline);
    let (text, told) = written.map_err(|error| format!("Metal: {error}"))?;
    told.entry_point_names.into_iter().try_for_each(|name| name.map(drop)).map_err(|error| error.to_string())?;
    inspect(&text)?;
    Ok(text)
}

/// An index for every binding of the kernel, one after the other, in wgpu's order.
fn resources(module: &Module) -> Result<msl::EntryPointResources, String> {
    let mut places = msl::BindingMap::new();
    for (_, variable) in module.global_variables.iter() {
        let Some(binding) = variable.binding else { continue };
        let place = u8::try_from(places.len()).ok().filter(|place| *place < IMMEDIATES);
        let mutable =
            matches!(variable.space, AddressSpace::Storage { access } if access.contains(StorageAccess::STORE));
        let buffer = Some(place.ok_or("more buffers than Metal binds")?);
        places.insert(binding, msl::BindTarget { buffer, mutable, ..msl::BindTarget::default() });
    }
    Ok(msl::EntryPointResources { resources: places, immediates_buffer: Some(IMMEDIATES), sizes_buffer: Some(SIZES) })
}

/// Checks the text: one kernel, matching brackets, and no type that the language lacks.
fn inspect(text: &str) -> Result<(), String> {
    if text.matches("kernel void ").count() != 1 {
        return Err(format!("Metal: not one kernel in\n{text}"));
    }
    let mut open = Vec::new();
    for character in text.chars() {
        let closing = match character {
            '(' => ')',
            '[' => ']',
            '{' => '}',
            ')' | ']' | '}' if open.pop() != Some(character) => {
                return Err(format!("Metal: `{character}` closes nothing in\n{text}"));
            }
            _ => continue,
        };
        open.push(closing);
    }
    // Metal 2.4 has neither of these types, and naga writes them without a check.
    let foreign = ["double", "bfloat"].into_iter().find(|word| text.contains(word));
    match (open.is_empty(), foreign) {
        (true, None) => Ok(()),
        (false, _) => Err(format!("Metal: a bracket stays open in\n{text}")),
        (true, Some(word)) => Err(format!("Metal has no {word}:\n{text}")),
    }
}

#[test]
fn a_text_that_is_no_kernel_is_seen() {
    assert_eq!(inspect("\nkernel void main_() { a[(1)] = 2; }"), Ok(()));
    assert!(inspect("void main_() {}").unwrap_err().contains("not one kernel"));
    assert!(inspect("\nkernel void main_() { (] }").unwrap_err().contains("closes nothing"));
    assert!(inspect("\nkernel void main_() {").unwrap_err().contains("stays open"));
    assert!(inspect("\nkernel void main_() { double x; }").unwrap_err().contains("has no double"));
}
