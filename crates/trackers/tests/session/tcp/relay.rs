//! A way between two interfaces on which every frame takes a chosen time, in order.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike as _};

/// From `linux/if_packet.h`: frames come with what their sender left to do (checksums), and go so.
const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;
/// The longest frame, and its header.
const LONGEST: usize = 70_000;
/// So often it looks whether it shall stop.
const LOOK_MS: i64 = 50;

/// Stops when it is dropped.
pub(super) struct Relay {
    delay: Arc<AtomicU64>,
    latest: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Carries frames between two interfaces of the namespace that the calling thread is in.
    pub(super) fn between(names: [&str; 2]) -> Self {
        let ends = names.map(|name| Arc::new(open(name)));
        let (delay, latest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let ways = [(0, 1), (1, 0)].map(|(from, to): (usize, usize)| {
            let (from, to) = (ends[from].clone(), ends[to].clone());
            let (delay, latest, stop) = (delay.clone(), latest.clone(), stop.clone());
            thread::spawn(move || carry([&from, &to], &delay, &latest, &stop))
        });
        Relay { delay, latest, stop, threads: ways.into() }
    }

    /// From now on frames take so long, each way.
    pub(super) fn take(&self, delay: Duration) {
        self.delay.store(delay.as_nanos() as u64, Ordering::Relaxed);
    }

    /// By how many nanoseconds more a frame has been late since the last call, at most: on a loaded machine
    /// the relay itself is.
    pub(super) fn late(&self) -> u64 {
        self.latest.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// All frames that come in by an interface.
fn open(name: &str) -> OwnedFd {
    let every = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: it has no pointers.
    let fd =
        unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, every.into()) };
    assert!(fd >= 0, "a packet socket: {}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just made it for us.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    for option in [PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING] {
        super::set_option(&socket, libc::SOL_PACKET, option, 1);
    }
    let look = TimeVal::milliseconds(LOOK_MS);
    setsockopt(&socket, sockopt::ReceiveTimeout, &look).expect("a socket");
    // SAFETY: zero is a value of every one of its fields.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = every;
    address.sll_ifindex = if_nametoindex(name).expect("the interface is there") as i32;
    // SAFETY: the address outlives the call, and is as long as it says.
    let result = unsafe {
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    socket
}

/// Reads frames, and has them written when they are due.
fn carry([from, to]: [&OwnedFd; 2], delay: &AtomicU64, latest: &AtomicU64, stop: &AtomicBool) {
    let (give, take) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::scope(|scope| {
        scope.spawn(move || {
            super::ahead_of_others();
            for (due, frame) in take {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                // An interface that is not up yet takes none.
                let _ = nix::unistd::write(to, &frame);
                latest.fetch_max(due.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
        });
        // How late a frame is counts from here.
        super::ahead_of_others();
        let mut frame = vec![0; LONGEST];
        while !stop.load(Ordering::Relaxed) {
            let Ok(length) = nix::unistd::read(from, &mut frame) else { continue };
            let due = Instant::now() + Duration::from_nanos(delay.load(Ordering::Relaxed));
            give.send((due, frame[..length].to_vec())).expect("the other one lives as long");
        }
        drop(give);
    });
}
