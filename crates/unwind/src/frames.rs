//! `.eh_frame` to rules.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, EhFrame, EhFrameOffset, EndianSlice,
    LittleEndian, Register, RegisterRule, UnwindContext, UnwindSection as _, UnwindTableRow,
    X86_64,
};

use crate::expression::{self, Computes};
use crate::table::Functions;
use crate::{Error, Rbp, Rule};

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Cie<'a> = CommonInformationEntry<Slice<'a>>;

/// Rows of one table at most: 30 times what libpython has.
const MAX_ROWS: usize = 8 << 20;

/// Reads all functions within `code`, the ranges of addresses that hold code.
///
/// Single entries that cannot be read are left out, which leaves a gap there.
///
/// # Errors
/// If the section's entries cannot be told apart.
pub(crate) fn read(
    section: &[u8],
    bases: &BaseAddresses,
    code: &[std::ops::Range<u64>],
    functions: &mut Functions,
) -> Result<(), Error> {
    let mut eh_frame = EhFrame::new(section, LittleEndian);
    eh_frame.set_address_size(8);
    let mut cies: HashMap<usize, Cie<'_>> = HashMap::new();
    let mut context = UnwindContext::new();
    let mut rows = Vec::new();
    let mut entries = eh_frame.entries(bases);
    while let Some(entry) = entries.next()? {
        let CieOrFde::Fde(partial) = entry else { continue };
        let mut cie = |_: &EhFrame<_>, bases: &BaseAddresses, offset: EhFrameOffset| {
            if let Some(known) = cies.get(&offset.0) {
                return Ok(known.clone());
            }
            let read = eh_frame.cie_from_offset(bases, offset)?;
            cies.insert(offset.0, read.clone());
            Ok(read)
        };
        let Ok(fde) = partial.parse(&mut cie) else { continue };
        let start = fde.initial_address();
        let Some(end) = start.checked_add(fde.len()) else { continue };
        // The linker leaves entries of functions that it has thrown away, at address 0.
        if fde.len() == 0 || !code.iter().any(|code| code.contains(&start) && end <= code.end) {
            continue;
        }
        rows.clear();
        let Ok(mut table) = fde.rows(&eh_frame, bases, &mut context) else { continue };
        loop {
            match table.next_row() {
                Ok(Some(row)) => {
                    let rule = rule(row, &eh_frame, fde.cie());
                    let at = row.start_address().clamp(start, end);
                    rows.push((if rows.is_empty() { start } else { at }, rule));
                }
                Ok(None) => break,
                // From here on nothing is known.
                Err(_) => {
                    let known = rows.last().map_or(start, |&(pc, _)| pc);
                    rows.retain(|&(pc, _)| pc < known);
                    rows.push((known, Rule::Unsupported));
                    break;
                }
            }
        }
        functions.add(start, end, rows.drain(..));
        if functions.rows() > MAX_ROWS {
            return Err(Error::TooLarge {
                bytes: section.len() as u64,
                limit: 8 * MAX_ROWS as u64,
            });
        }
    }
    Ok(())
}

/// A signal frame, as the kernel lays it out: where `struct sigcontext` has the registers.
const SIGNAL_RBP: i32 = 120;
const SIGNAL_RSP: i32 = 160;
const SIGNAL_RIP: i32 = 168;

fn rule(row: &UnwindTableRow<usize>, eh_frame: &EhFrame<Slice<'_>>, cie: &Cie<'_>) -> Rule {
    let computes = |expression: gimli::UnwindExpression<usize>| {
        expression::read(expression.get(eh_frame).ok()?, cie.encoding())
    };
    let ra = row.register(X86_64::RA);
    let at = |register, wanted| match row.register(register) {
        Some(RegisterRule::Expression(expression)) => {
            computes(expression) == Some(Computes::Sum(X86_64::RSP, wanted))
        }
        _ => false,
    };
    match ra {
        Some(RegisterRule::Undefined) => return Rule::End,
        Some(RegisterRule::Offset(-8)) => {}
        Some(RegisterRule::Register(Register(number))) if number < 16 => {
            return match *row.cfa() {
                CfaRule::RegisterAndOffset { register: X86_64::RSP, offset } => {
                    i32::try_from(offset).map_or(Rule::Unsupported, |offset| Rule::InRegister {
                        register: number as u8,
                        offset,
                    })
                }
                _ => Rule::Unsupported,
            };
        }
        Some(RegisterRule::Expression(_)) if cie.is_signal_trampoline() => {
            let cfa = match *row.cfa() {
                CfaRule::Expression(expression) => computes(expression),
                CfaRule::RegisterAndOffset { .. } => None,
            };
            let word = Computes::Word { register: X86_64::RSP, offset: SIGNAL_RSP, add: 0 };
            let as_expected =
                cfa == Some(word) && at(X86_64::RA, SIGNAL_RIP) && at(X86_64::RBP, SIGNAL_RBP);
            return if as_expected { Rule::Signal } else { Rule::Unsupported };
        }
        _ => return Rule::Unsupported,
    }
    let cfa = match *row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            i32::try_from(offset).ok().and_then(|offset| Computes::Sum(register, offset).cfa())
        }
        CfaRule::Expression(expression) => computes(expression).and_then(Computes::cfa),
    };
    let Some(cfa) = cfa else { return Rule::Unsupported };
    let rbp = match row.register(X86_64::RBP) {
        // Callees keep it, unless they say otherwise.
        None | Some(RegisterRule::SameValue) => Rbp::Same,
        Some(RegisterRule::Offset(offset)) => {
            i32::try_from(offset).map_or(Rbp::Unknown, Rbp::AtCfa)
        }
        Some(RegisterRule::Expression(expression)) => {
            computes(expression).map_or(Rbp::Unknown, Computes::rbp)
        }
        Some(_) => Rbp::Unknown,
    };
    Rule::Frame { cfa, rbp }
}
