//! `.eh_frame` to rules.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, EhFrame, EhFrameOffset,
    FrameDescriptionEntry, PartialFrameDescriptionEntry, Register, RegisterRule, UnwindContext,
    UnwindSection as _, UnwindTableRow, X86_64,
};

use crate::expression::{self, Computes};
use crate::section::Section;
use crate::{Error, Rbp, Rule};

type Cie = CommonInformationEntry<Section>;
type Fde = FrameDescriptionEntry<Section>;

/// A section's entries.
pub(crate) struct Frames {
    section: EhFrame<Section>,
    bases: BaseAddresses,
    /// By offset. `None`: its instructions cannot be followed, nor those of functions that begin with them.
    cies: HashMap<usize, Option<Cie>>,
    context: UnwindContext<usize>,
}

impl Frames {
    pub(crate) fn new(section: Section, bases: BaseAddresses) -> Self {
        let mut section = EhFrame::from(section);
        section.set_address_size(8);
        Frames { section, bases, cies: HashMap::new(), context: UnwindContext::new() }
    }

    /// Tells of all functions within `code`, the ranges of addresses that hold code: where each begins, and its
    /// entry's offset. Single entries that cannot be read are left out, which leaves a gap there.
    ///
    /// # Errors
    /// If the section's entries cannot be told apart; and those of `each`.
    pub(crate) fn functions(
        &mut self,
        code: &[Range<u64>],
        mut each: impl FnMut(u64, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (section, bases) = (self.section.clone(), self.bases.clone());
        let mut entries = section.entries(&bases);
        while let Some(entry) = entries.next()? {
            let CieOrFde::Fde(partial) = entry else { continue };
            let offset = partial.offset();
            let Some(fde) = self.parse(&partial) else { continue };
            let start = fde.initial_address();
            let Some(end) = start.checked_add(fde.len()) else { continue };
            // The linker leaves entries of functions that it has thrown away, at address 0.
            if start < end && code.iter().any(|code| code.contains(&start) && end <= code.end) {
                each(start, offset)?;
            }
        }
        Ok(())
    }

    /// Tells the function's rules, from its first byte on, in ascending order, of two at one address the later one.
    /// Returns its end.
    pub(crate) fn rules(&mut self, offset: usize, mut each: impl FnMut(u64, Rule)) -> Option<u64> {
        let (section, bases) = (self.section.clone(), self.bases.clone());
        let partial = section.partial_fde_from_offset(&bases, EhFrameOffset(offset)).ok()?;
        let fde = self.parse(&partial)?;
        let (start, end) = (fde.initial_address(), fde.end_address());
        let mut table = fde.rows(&section, &bases, &mut self.context).ok()?;
        let mut at = None;
        loop {
            match table.next_row() {
                Ok(Some(row)) => {
                    let from = at.map_or(start, |_| row.start_address().clamp(start, end));
                    at = Some(from);
                    each(from, rule(row, &section, fde.cie()));
                }
                Ok(None) => break,
                // From here on nothing is known.
                Err(_) => {
                    each(at.unwrap_or(start), Rule::Unsupported);
                    break;
                }
            }
        }
        Some(end)
    }

    fn parse(
        &mut self,
        partial: &PartialFrameDescriptionEntry<'_, EhFrame<Section>, Section>,
    ) -> Option<Fde> {
        let at = partial.cie_offset();
        let known = self.cies.get(&at.0).cloned();
        let cie = match &known {
            Some(cie) => cie.clone()?,
            None => self.section.cie_from_offset(&self.bases, at).ok()?,
        };
        let fde = partial.parse(|_, _, _| Ok(cie.clone())).ok()?;
        if known.is_none() {
            let starts = fde.rows(&self.section, &self.bases, &mut self.context).is_ok();
            self.cies.insert(at.0, starts.then_some(cie));
            return starts.then_some(fde);
        }
        Some(fde)
    }
}

/// A signal frame, as the kernel lays it out: where `struct sigcontext` has the registers.
const SIGNAL_RBP: i32 = 120;
const SIGNAL_RSP: i32 = 160;
const SIGNAL_RIP: i32 = 168;

fn rule(row: &UnwindTableRow<usize>, eh_frame: &EhFrame<Section>, cie: &Cie) -> Rule {
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
