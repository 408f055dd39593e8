//! Names for the addresses in stacks.
