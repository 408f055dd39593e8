//! The few DWARF expressions that compilers and linkers write, told by what they compute.

use gimli::{Encoding, Expression, Operation, Reader, Register, X86_64};

use crate::{Cfa, Rbp};

/// What an expression computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Computes {
    /// A register plus an offset.
    Sum(Register, i32),
    /// The word at a register plus `offset`, plus `add`.
    Word { register: Register, offset: i32, add: i32 },
    /// The CFA in a procedure linkage table.
    Plt { pushed: u8 },
}

impl Computes {
    /// As a CFA.
    pub(crate) fn cfa(self) -> Option<Cfa> {
        match self {
            Computes::Sum(X86_64::RSP, offset) => Some(Cfa::Rsp(offset)),
            Computes::Sum(X86_64::RBP, offset) => Some(Cfa::Rbp(offset)),
            Computes::Word { register: X86_64::RSP, offset, add } => {
                Some(Cfa::AtRsp { offset, add })
            }
            Computes::Word { register: X86_64::RBP, offset, add } => {
                Some(Cfa::AtRbp { offset, add })
            }
            Computes::Plt { pushed } => Some(Cfa::Plt { pushed }),
            Computes::Sum(Register(number), offset) if number < 16 => {
                Some(Cfa::Other { register: number as u8, offset })
            }
            Computes::Sum(..) | Computes::Word { .. } => None,
        }
    }

    /// As the address at which the caller's `rbp` lies.
    pub(crate) fn rbp(self) -> Rbp {
        match self {
            Computes::Sum(X86_64::RBP, offset) => Rbp::AtRbp(offset),
            _ => Rbp::Unknown,
        }
    }
}

/// Reads an expression. `None` if it is none of those known.
pub(crate) fn read<R: Reader>(expression: Expression<R>, encoding: Encoding) -> Option<Computes> {
    let mut operations = expression.operations(encoding);
    let mut next = || operations.next().ok().flatten();
    let (register, offset) = register_offset(&next()?)?;
    match next() {
        None => Some(Computes::Sum(register, offset)),
        Some(Operation::Deref { size: 8, space: false, .. }) => match next() {
            None => Some(Computes::Word { register, offset, add: 0 }),
            Some(Operation::PlusConstant { value }) => {
                let add = i32::try_from(value).ok()?;
                next().is_none().then_some(Computes::Word { register, offset, add })
            }
            Some(_) => None,
        },
        Some(second) if (register, offset) == (X86_64::RSP, 8) => {
            // rsp + 8 + ((rip & 15) >= pushed) << 3
            let of_rip = register_offset(&second)? == (X86_64::RA, 0);
            let masked = constant(&next()?)? == 15 && matches!(next()?, Operation::And);
            let pushed = u8::try_from(constant(&next()?)?).ok()?;
            let compared = matches!(next()?, Operation::Ge);
            let shifted = constant(&next()?)? == 3 && matches!(next()?, Operation::Shl);
            let added = matches!(next()?, Operation::Plus) && next().is_none();
            let is_plt = of_rip && masked && compared && shifted && added && pushed < 16;
            is_plt.then_some(Computes::Plt { pushed })
        }
        Some(_) => None,
    }
}

fn register_offset<R: Reader>(operation: &Operation<R>) -> Option<(Register, i32)> {
    match operation {
        Operation::RegisterOffset { register, offset, .. } => {
            Some((*register, i32::try_from(*offset).ok()?))
        }
        _ => None,
    }
}

fn constant<R: Reader>(operation: &Operation<R>) -> Option<u64> {
    match operation {
        Operation::UnsignedConstant { value } => Some(*value),
        Operation::SignedConstant { value } => u64::try_from(*value).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gimli::{EndianSlice, Format, LittleEndian};

    fn computes(bytes: &[u8]) -> Option<Computes> {
        let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 1 };
        read(Expression(EndianSlice::new(bytes, LittleEndian)), encoding)
    }

    #[test]
    fn a_linkage_table_is_known() {
        // As ld writes it: breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus
        let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(computes(&plt), Some(Computes::Plt { pushed: 11 }));
        assert_eq!(computes(&plt[..10]), None);
        let mut twice = plt.to_vec();
        twice.push(0x06);
        assert_eq!(computes(&twice), None);
    }

    #[test]
    fn a_realigned_frame_is_known() {
        // GCC: the CFA is the word at rbp - 8.
        let word = computes(&[0x76, 0x78, 0x06]).and_then(Computes::cfa);
        assert_eq!(word, Some(Cfa::AtRbp { offset: -8, add: 0 }));
        assert_eq!(computes(&[0x76, 0]).map(Computes::rbp), Some(Rbp::AtRbp(0)));
        // OpenSSL's assembler: the CFA is the word at rsp + 40, plus 8.
        let word = computes(&[0x77, 40, 0x06, 0x23, 8]).and_then(Computes::cfa);
        assert_eq!(word, Some(Cfa::AtRsp { offset: 40, add: 8 }));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for bytes in [&[][..], &[0x77], &[0x30], &[0x77, 8, 0x06, 0x06], &[0xff, 0, 1]] {
            assert_eq!(computes(bytes), None, "{bytes:x?}");
        }
        let word_at_r10 = computes(&[0x7a, 0, 0x06]);
        assert_eq!(word_at_r10.and_then(Computes::cfa), None, "r10 is not followed");
    }
}
