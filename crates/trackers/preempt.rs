//! Where the kernel keeps a CPU's preemption count, for `bpf/interrupt.h`.

use libbpf_rs::btf::types::{DataSec, Struct, Var};
use libbpf_rs::btf::{Btf, BtfType, TypeId};

/// The distance in bytes from a CPU's run queue to its preemption count, from the kernel's BTF.
pub(crate) fn count_from_run_queue(btf: &Btf<'_>) -> Option<i64> {
    let per_cpu = btf.type_by_name::<DataSec<'_>>(".data..percpu")?;
    // Not by the variable's name alone: a structure may have the same.
    let offset = |name: &str| {
        let is_it = |id| {
            let variable = btf.type_by_id::<Var<'_>>(id);
            variable.is_some_and(|variable| variable.name().is_some_and(|found| found == name))
        };
        per_cpu.iter().find(|entry| is_it(entry.ty)).map(|entry| i64::from(entry.offset))
    };
    let run_queue = offset("runqueues")?;
    let count = match offset("__preempt_count") {
        Some(count) => count,
        // Linux 6.2 to 6.14 keep it in a struct of their hottest per-CPU fields.
        None => offset("pcpu_hot")? + member_offset(btf, "pcpu_hot", "preempt_count")?,
    };
    Some(count - run_queue)
}

fn member_offset(btf: &Btf<'_>, structure: &str, field: &str) -> Option<i64> {
    fn find(btf: &Btf<'_>, id: TypeId, field: &str) -> Option<u32> {
        use libbpf_rs::btf::types::{Composite, MemberAttr};
        let composite = Composite::try_from(btf.type_by_id::<BtfType<'_>>(id)?).ok()?;
        for member in composite.iter() {
            let MemberAttr::Normal { offset } = member.attr else { continue };
            match member.name {
                Some(name) if name == field => return Some(offset / 8),
                None => {
                    if let Some(inner) = find(btf, member.ty, field) {
                        return Some(offset / 8 + inner);
                    }
                }
                _ => {}
            }
        }
        None
    }
    let structure = btf.type_by_name::<Struct<'_>>(structure)?;
    find(btf, structure.type_id(), field).map(i64::from)
}
