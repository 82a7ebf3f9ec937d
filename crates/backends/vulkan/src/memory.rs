//! Device memory in large blocks, of which buffers get parts: drivers allow few allocations, and
//! each takes long.
//!
//! There is one list of blocks for each memory type. A part is cut from the first free range that
//! is long enough; a freed part is joined with its free neighbours. Large buffers get a block of
//! their own. Blocks that the host can reach stay mapped.

use std::ptr::NonNull;

use ash::vk;

/// The size of a shared block.
const BLOCK_BYTES: u64 = 64 << 20;
/// Larger parts get a block of their own.
const SHARED_BYTES_MAX: u64 = BLOCK_BYTES / 4;
/// A heap has room for at least this many blocks; in small heaps, blocks are smaller.
const BLOCKS_IN_HEAP_MIN: u64 = 16;

/// The memory of one opened device.
pub(crate) struct Memory {
    types: vk::PhysicalDeviceMemoryProperties,
    /// The blocks by memory type; `None` stands for a freed block.
    blocks: Vec<Vec<Option<FreeListBlock>>>,
    allocations: u32,
    allocations_max: u32,
}

/// A part of a block.
pub(crate) struct BlockPart {
    kind: usize,
    block: usize,
    offset: u64,
    bytes: u64,
    pub(crate) memory: vk::DeviceMemory,
    /// The first byte, if the host can reach it.
    pub(crate) start: Option<NonNull<u8>>,
}

// SAFETY: handles and an address; the owner of the part owns the memory behind it.
unsafe impl Send for BlockPart {}
// SAFETY: as above; sharing it shares the address only.
unsafe impl Sync for BlockPart {}

impl BlockPart {
    /// The offset of the part in its memory.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
}

struct FreeListBlock {
    memory: vk::DeviceMemory,
    start: Option<NonNull<u8>>,
    bytes: u64,
    /// Free ranges as (offset, bytes), sorted by offset; no two of them touch.
    free: Vec<(u64, u64)>,
}

// SAFETY: as for `BlockPart`.
unsafe impl Send for FreeListBlock {}

/// Whether `bytes` bytes, aligned to `align`, fit into a free range.
fn fits((offset, free): (u64, u64), bytes: u64, align: u64) -> bool {
    let begin = offset.checked_next_multiple_of(align);
    begin.and_then(|begin| (begin - offset).checked_add(bytes)).is_some_and(|needed| needed <= free)
}

impl FreeListBlock {
    fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let place = self.free.iter().position(|stretch| fits(*stretch, bytes, align))?;
        let (offset, free) = self.free.remove(place);
        let begin = offset.next_multiple_of(align);
        let (before, behind) = ((offset, begin - offset), (begin + bytes, offset + free - begin - bytes));
        for rest in [behind, before].into_iter().filter(|(_, bytes)| *bytes > 0) {
            self.free.insert(place, rest);
        }
        Some(begin)
    }

    fn give_back(&mut self, offset: u64, bytes: u64) {
        let place = self.free.partition_point(|(start, _)| *start < offset);
        self.free.insert(place, (offset, bytes));
        if let Some((next, more)) = self.free.get(place + 1).copied().filter(|(next, _)| *next == offset + bytes) {
            debug_assert_eq!(next, offset + bytes);
            self.free[place].1 += more;
            self.free.remove(place + 1);
        }
        if let Some((before, less)) = place.checked_sub(1).map(|before| self.free[before])
            && before + less == offset
        {
            self.free[place - 1].1 += self.free[place].1;
            self.free.remove(place);
        }
    }

    fn is_empty(&self) -> bool {
        self.free == [(0, self.bytes)]
    }
}

impl Memory {
    pub(crate) fn new(types: vk::PhysicalDeviceMemoryProperties, allocations_max: u32) -> Memory {
        let blocks = types.memory_types_as_slice().iter().map(|_| Vec::new()).collect();
        Memory { types, blocks, allocations: 0, allocations_max }
    }

    /// The first allowed memory type that has all properties of `with` and none of `without`, and
    /// the properties of that type.
    pub(crate) fn find(
        &self,
        allowed: u32,
        with: vk::MemoryPropertyFlags,
        without: vk::MemoryPropertyFlags,
    ) -> Option<(usize, vk::MemoryPropertyFlags)> {
        let types = self.types.memory_types_as_slice().iter().map(|kind| kind.property_flags).enumerate();
        let mut fitting = types.filter(|(number, flags)| {
            allowed & (1 << number) != 0 && flags.contains(with) && !flags.intersects(without)
        });
        fitting.next()
    }

    /// Counts an allocation that the caller makes itself. Returns `false`, and counts nothing, if
    /// the device allows no more.
    pub(crate) fn count(&mut self) -> bool {
        let has_room = self.allocations < self.allocations_max;
        self.allocations += u32::from(has_room);
        has_room
    }

    /// Takes back one count of [`Memory::count`].
    pub(crate) fn discount(&mut self) {
        self.allocations = self.allocations.saturating_sub(1);
    }

    /// The heap of a memory type.
    pub(crate) fn heap(&self, kind: usize) -> usize {
        self.types.memory_types[kind].heap_index as usize
    }

    /// Whether a request fits into blocks that are allocated already.
    pub(crate) fn has_room(&self, kind: usize, bytes: u64, align: u64) -> bool {
        let has_room = |block: &FreeListBlock| block.free.iter().any(|stretch| fits(*stretch, bytes, align.max(1)));
        self.blocks[kind].iter().flatten().any(has_room)
    }

    /// Allocates a part of memory of a type.
    pub(crate) fn allocate(
        &mut self,
        device: &ash::Device,
        kind: usize,
        bytes: u64,
        align: u64,
    ) -> Result<BlockPart, vk::Result> {
        let align = align.max(1);
        for (number, block) in self.blocks[kind].iter_mut().enumerate() {
            let Some(block) = block else { continue };
            if let Some(offset) = block.take(bytes, align) {
                return Ok(part(kind, number, block, offset, bytes));
            }
        }
        let heap_bytes = self.types.memory_heaps[self.heap(kind)].size;
        let shared = BLOCK_BYTES.min(heap_bytes / BLOCKS_IN_HEAP_MIN);
        let size = if bytes > SHARED_BYTES_MAX { bytes } else { shared.max(bytes) };
        let mut block = self.block(device, kind, size)?;
        let offset = block.take(bytes, align).unwrap_or(0);
        let blocks = &mut self.blocks[kind];
        let number = blocks.iter().position(Option::is_none).unwrap_or(blocks.len());
        let made = part(kind, number, &block, offset, bytes);
        match blocks.get_mut(number) {
            Some(place) => *place = Some(block),
            None => blocks.push(Some(block)),
        }
        Ok(made)
    }

    /// Takes a part back. A block that becomes empty is freed if it is large, or if another empty
    /// block of its type remains.
    pub(crate) fn free(&mut self, device: &ash::Device, part: &BlockPart) {
        let Some(block) = self.blocks[part.kind].get_mut(part.block).and_then(Option::as_mut) else { return };
        block.give_back(part.offset, part.bytes);
        let is_large = block.bytes > BLOCK_BYTES || part.bytes > SHARED_BYTES_MAX;
        if !block.is_empty() {
            return;
        }
        let others = self.blocks[part.kind].iter().enumerate().filter(|(number, _)| *number != part.block);
        let spare = others.filter_map(|(_, block)| block.as_ref()).any(FreeListBlock::is_empty);
        if (is_large || spare)
            && let Some(block) = self.blocks[part.kind][part.block].take()
        {
            self.release(device, &block);
        }
    }

    /// Frees empty blocks when memory is short.
    pub(crate) fn trim(&mut self, device: &ash::Device) {
        let empty: Vec<FreeListBlock> =
            self.blocks.iter_mut().flatten().filter_map(|place| place.take_if(|block| block.is_empty())).collect();
        empty.iter().for_each(|block| self.release(device, block));
    }

    /// Frees all blocks.
    pub(crate) fn destroy(&mut self, device: &ash::Device) {
        let all: Vec<FreeListBlock> = self.blocks.iter_mut().flatten().filter_map(Option::take).collect();
        all.iter().for_each(|block| self.release(device, block));
    }

    fn block(&mut self, device: &ash::Device, kind: usize, bytes: u64) -> Result<FreeListBlock, vk::Result> {
        if !self.count() {
            return Err(vk::Result::ERROR_TOO_MANY_OBJECTS);
        }
        let made = self.allocate_block(device, kind, bytes);
        made.inspect_err(|_| self.discount())
    }

    fn allocate_block(&self, device: &ash::Device, kind: usize, bytes: u64) -> Result<FreeListBlock, vk::Result> {
        let info = vk::MemoryAllocateInfo::default().allocation_size(bytes).memory_type_index(kind as u32);
        let is_mapped = self.types.memory_types[kind].property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE);
        // SAFETY: the type is one of the device's; the memory is mapped once, and freed by
        // `release`.
        let (memory, start) = unsafe {
            let memory = device.allocate_memory(&info, None)?;
            let mapped = is_mapped.then(|| device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()));
            match mapped.transpose() {
                Ok(start) => (memory, start.and_then(|start| NonNull::new(start.cast()))),
                Err(error) => {
                    device.free_memory(memory, None);
                    return Err(error);
                }
            }
        };
        Ok(FreeListBlock { memory, start, bytes, free: vec![(0, bytes)] })
    }

    fn release(&mut self, device: &ash::Device, block: &FreeListBlock) {
        self.discount();
        // SAFETY: the block has no parts in use, or all its users are gone with the device.
        unsafe { device.free_memory(block.memory, None) };
    }
}

fn part(kind: usize, number: usize, block: &FreeListBlock, offset: u64, bytes: u64) -> BlockPart {
    // SAFETY: the offset is inside the mapped block.
    let start = block.start.map(|start| unsafe { start.add(offset as usize) });
    BlockPart { kind, block: number, offset, bytes, memory: block.memory, start }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> FreeListBlock {
        FreeListBlock { memory: vk::DeviceMemory::null(), start: None, bytes: 1000, free: vec![(0, 1000)] }
    }

    #[test]
    fn allocations_of_all_kinds_are_counted_together() {
        let mut memory = Memory::new(vk::PhysicalDeviceMemoryProperties::default(), 2);
        assert!(memory.count() && memory.count());
        assert!(!memory.count(), "a third where two are allowed");
        memory.discount();
        assert!(memory.count() && !memory.count());
    }

    #[test]
    fn parts_do_not_overlap_and_are_joined_again() {
        let mut block = block();
        let parts: Vec<(u64, u64)> = [(10, 1), (100, 64), (1, 256), (500, 4)]
            .map(|(bytes, align)| (block.take(bytes, align).unwrap(), bytes))
            .into();
        for (place, (offset, bytes)) in parts.iter().enumerate() {
            assert!(offset + bytes <= 1000);
            for (other, others) in &parts[..place] {
                assert!(offset + bytes <= *other || other + others <= *offset, "{parts:?}");
            }
        }
        assert!(parts[1].0.is_multiple_of(64) && parts[2].0.is_multiple_of(256));
        assert_eq!(block.take(600, 1), None);
        for place in [2, 0, 3, 1] {
            let (offset, bytes) = parts[place];
            block.give_back(offset, bytes);
        }
        assert!(block.is_empty(), "{:?}", block.free);
        assert_eq!(block.take(1000, 256), Some(0));
        assert_eq!(block.take(1, 1), None);
    }
}
