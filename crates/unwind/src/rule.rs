//! What leads from a frame to its caller's.

/// Where the caller's stack pointer was before the call: the frame's canonical frame address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cfa {
    /// The stack pointer, plus so many bytes.
    Rsp(i32),
    /// `rbp`, plus so many bytes.
    Rbp(i32),
    /// The word at the stack pointer plus `offset`, plus `add`.
    AtRsp {
        /// Where the word is.
        offset: i32,
        /// What to add to it.
        add: i32,
    },
    /// The word at `rbp` plus `offset`, plus `add`.
    AtRbp {
        /// Where the word is.
        offset: i32,
        /// What to add to it.
        add: i32,
    },
    /// Another register than these two, plus so many bytes: known in the innermost frame only.
    Other {
        /// DWARF's number of the register, below 16.
        register: u8,
        /// What to add to it.
        offset: i32,
    },
    /// In a procedure linkage table, whose entries are 16 bytes each and push a word at byte
    /// `pushed`: the stack pointer plus 16 from there on, plus 8 before.
    Plt {
        /// From this byte of an entry on, the word is on the stack.
        pushed: u8,
    },
}

/// Where the caller's `rbp` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rbp {
    /// Still in `rbp`.
    Same,
    /// In memory, so many bytes from the CFA.
    AtCfa(i32),
    /// In memory, so many bytes from where `rbp` points.
    AtRbp(i32),
    /// Nobody knows. The caller can be found all the same, unless its frame hangs on `rbp`.
    Unknown,
}

/// How to leave a frame, for a range of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The return address is at the CFA minus 8.
    Frame {
        /// The CFA.
        cfa: Cfa,
        /// The caller's `rbp`.
        rbp: Rbp,
    },
    /// The return address is in a register, and the caller's stack pointer is `rsp` plus so many bytes: in
    /// `vfork`, whose child would overwrite the stack. Known in the innermost frame only.
    InRegister {
        /// DWARF's number of the register, below 16.
        register: u8,
        /// What to add to `rsp`.
        offset: i32,
    },
    /// `rbp` points to the caller's `rbp`, and above it lies the return address. It may be on another
    /// stack.
    FramePointer,
    /// The outermost function of a thread.
    End,
    /// What a signal handler returns to. The interrupted registers are on the stack, as the kernel
    /// put them there.
    Signal,
    /// Only a DWARF expression, or another register, can tell.
    Unsupported,
    /// No function is known here.
    Gap,
}

impl Rule {
    /// At a function's first instruction: only the return address is on the stack.
    pub const ENTRY: Rule = Rule::Frame { cfa: Cfa::Rsp(8), rbp: Rbp::Same };
}
