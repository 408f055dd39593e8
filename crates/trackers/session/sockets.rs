//! The iterator over the sockets that listen for watched processes.

use std::os::fd::AsFd as _;

use libbpf_rs::{IterOpts, Link, MapIterOpts, Object};

use super::error::{Doing as _, Result};
use super::load::{map, program};

/// An iterator over their map.
pub(super) fn listeners(object: &Object) -> Result<Link> {
    let listeners = map(object, "tcp_listeners")?;
    let options = IterOpts::Map(MapIterOpts::from_fd(listeners.as_fd()));
    program(object, "tcp_accept_listeners")?
        .attach_iter_with_opts(options)
        .doing("attaching the iterator over listening sockets")
}
