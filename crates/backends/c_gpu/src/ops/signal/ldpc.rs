//! LdpcDecode: one block per word at a time. Checks are grouped so that the checks of a group share
//! no bit, and each check has one thread.

use std::cell::RefCell;
use std::rc::Rc;

use panoply_core::op::signal::{Ldpc, LdpcDecode};
use panoply_core::{DType, Result, Value};
use panoply_kernels::c::{Kernel, LDPC};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::ops::messages::place_plain;

/// Bounds of the threads per block, which are as many as the largest group has checks.
const BLOCK_THREADS: [usize; 2] = [64, 512];
const LANES: usize = 32;
/// Blocks per multiprocessor for short words, and the maximum bytes of a short word.
const BLOCKS_EACH: usize = 4;
const SHORT_WORD_BYTES_MAX: usize = 48 << 10;
/// Block memory that the kernel declares itself.
const OWN_SHARED_BYTES: usize = 64;
/// Number of tables that a thread caches.
const TABLES_MAX: usize = 8;
/// Filler for a check with fewer bits than others of its group.
const NONE: u32 = u32::MAX;

pub(super) fn decode(op: &LdpcDecode, context: &mut Context) -> Result<Value> {
    let (data_shape, count_shape) = op.output_shapes()?;
    let (data, counts) = (context.output(DType::U8, data_shape)?, context.output(DType::I32, count_shape)?);
    let words = count_shape.elements();
    if words > 0 {
        let tables = tables(op.code);
        let (bits, groups) = (place(&tables.bits, context)?, place(&tables.groups, context)?);
        let word_bytes = op.code.word_bits() * size_of::<f32>();
        let properties = context.driver.properties();
        let is_shared = word_bytes + OWN_SHARED_BYTES <= properties.shared_bytes_max as usize;
        let [least, most] = BLOCK_THREADS.map(|threads| threads.min(properties.block_threads_max as usize));
        let threads = tables.checks_max.next_multiple_of(LANES).clamp(least, most);
        let each = if word_bytes <= SHORT_WORD_BYTES_MAX { BLOCKS_EACH } else { 1 };
        let blocks = words.min(context.multiprocessors() * each).max(1);
        let messages = context.scratch(blocks * tables.bits.len() * size_of::<f32>())?;
        let beliefs = if is_shared { Address::NULL } else { context.scratch(blocks * word_bytes)? };
        let mut arguments = Arguments::new()
            .address(data.address)
            .address(counts.address)
            .address(context.input(&op.input)?)
            .address(messages)
            .address(beliefs)
            .address(bits)
            .address(groups)
            .u64(words as u64)
            .size(tables.groups.len() / 3)
            .size(tables.bits.len())
            .size(op.code.word_bits())
            .size(op.code.sent().start)
            .size(op.code.coded_bits())
            .size(op.code.data_bits())
            .size(op.iterations);
        let kernel = Kernel::new(LDPC, "ldpc_decode")
            .integer("THREADS", threads as i64)
            .integer("DEGREE_MAX", tables.degree_max as i64)
            .flag("SHARED_BELIEFS", is_shared);
        let launch = Launch::new(blocks, threads).shared(if is_shared { word_bytes } else { 0 });
        context.launch(&kernel, launch, &mut arguments)?;
    }
    Ok(Value::Pair(data.into_tensor(), counts.into_tensor()))
}

fn place(words: &[u32], context: &mut Context) -> Result<Address> {
    place_plain(bytemuck::cast_slice(words), context)
}

/// The checks of a code in the kernel's format.
struct Tables {
    bits: Vec<u32>,
    groups: Vec<u32>,
    degree_max: usize,
    checks_max: usize,
}

impl Tables {
    fn new(code: Ldpc) -> Tables {
        let checks = code.parity_checks();
        let mut tables = Tables { bits: Vec::new(), groups: Vec::new(), degree_max: 1, checks_max: 1 };
        for row in checks.chunks(code.block().max(1)) {
            apart(row, code.word_bits()).iter().for_each(|group| tables.add(group));
        }
        tables
    }

    fn add(&mut self, group: &[&[u32]]) {
        let degree = group.iter().map(|check| check.len()).max().unwrap_or(0);
        self.groups.extend([self.bits.len(), group.len(), degree].map(|value| value as u32));
        for slot in 0..degree {
            self.bits.extend(group.iter().map(|check| check.get(slot).copied().unwrap_or(NONE)));
        }
        self.degree_max = self.degree_max.max(degree);
        self.checks_max = self.checks_max.max(group.len());
    }
}

/// Divides checks into groups that share no bit: each check joins the first group in which it meets
/// no other.
fn apart(row: &[Vec<u32>], word_bits: usize) -> Vec<Vec<&[u32]>> {
    let mut groups: Vec<(Vec<bool>, Vec<&[u32]>)> = Vec::new();
    for check in row {
        let is_free = |met: &[bool]| check.iter().all(|bit| !met[*bit as usize]);
        let place = groups.iter().position(|(met, _)| is_free(met)).unwrap_or_else(|| {
            groups.push((vec![false; word_bits], Vec::new()));
            groups.len() - 1
        });
        let (met, group) = &mut groups[place];
        check.iter().for_each(|bit| met[*bit as usize] = true);
        group.push(check);
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// The tables of a code. Making them takes longer than a small op, so a thread caches those of its
/// most recent codes.
fn tables(code: Ldpc) -> Rc<Tables> {
    thread_local! {
        static KEPT: RefCell<Vec<(Ldpc, Rc<Tables>)>> = const { RefCell::new(Vec::new()) };
    }
    KEPT.with_borrow_mut(|kept| {
        let found = kept.iter().position(|(known, _)| *known == code).map(|place| kept.remove(place));
        let (_, tables) = found.unwrap_or_else(|| (code, Rc::new(Tables::new(code))));
        kept.insert(0, (code, Rc::clone(&tables)));
        kept.truncate(TABLES_MAX);
        tables
    })
}

#[cfg(test)]
mod tests {
    use panoply_core::op::signal::{BaseGraph, TelemetryRate};

    use super::*;

    #[test]
    fn checks_of_a_group_share_no_bit_and_none_is_left_out() {
        for code in [
            Ldpc::Nr { graph: BaseGraph::One, lifting: 13 },
            Ldpc::Nr { graph: BaseGraph::Two, lifting: 384 },
            Ldpc::Telemetry { data: 1024, rate: TelemetryRate::Half },
            Ldpc::Telemetry { data: 1024, rate: TelemetryRate::FourFifths },
        ] {
            let tables = Tables::new(code);
            let mut all = Vec::new();
            for group in tables.groups.chunks(3) {
                let [begin, checks, degree] = [group[0], group[1], group[2]].map(|value| value as usize);
                let edges = &tables.bits[begin..begin + checks * degree];
                let mut bits: Vec<u32> = edges.iter().copied().filter(|bit| *bit != NONE).collect();
                let count = bits.len();
                bits.sort_unstable();
                bits.dedup();
                assert_eq!(bits.len(), count, "{code:?}");
                for check in 0..checks {
                    let of_check = edges.iter().skip(check).step_by(checks).copied().filter(|bit| *bit != NONE);
                    all.push(of_check.collect::<Vec<u32>>());
                }
            }
            let mut expected = code.parity_checks();
            all.sort_unstable();
            expected.sort_unstable();
            assert_eq!(all, expected, "{code:?}");
        }
    }
}
