//! A process of its own that reads a connection, and answers each read with a byte: this program once more, told by its environment what to
//! do.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sched::{CloneFlags, setns};

use crate::lab::Lab;

const NETNS: &str = "NETSTACK_READER_NETNS";
const CGROUP: &str = "NETSTACK_READER_CGROUP";
const PEER: &str = "NETSTACK_READER_PEER";

/// Ends with what it reads, at the latest when it is dropped.
pub(crate) struct Reader {
    child: Child,
    /// The other end of its connection.
    pub(crate) sender: TcpStream,
}

impl Reader {
    /// One in the receiving namespace, and in this cgroup.
    pub(crate) fn start(lab: &Lab, cgroup: Option<&Path>) -> Self {
        let listener = lab.listener();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "reader::reads_until_nothing_comes"])
            .env(NETNS, &lab.receiver)
            .env(PEER, listener.local_addr().unwrap().to_string())
            .stdout(Stdio::null());
        if let Some(cgroup) = cgroup {
            command.env(CGROUP, cgroup);
        }
        let child = command.spawn().unwrap();
        let (sender, _) = listener.accept().unwrap();
        sender.set_nodelay(true).unwrap();
        Reader { child, sender }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "no test: it is the process that tests start"]
fn reads_until_nothing_comes() {
    let (Ok(netns), Ok(peer)) = (std::env::var(NETNS), std::env::var(PEER)) else { return };
    // A socket belongs to the cgroup that it was made in.
    if let Ok(cgroup) = std::env::var(CGROUP) {
        let processes = Path::new(&cgroup).join("cgroup.procs");
        fs::write(processes, std::process::id().to_string()).unwrap();
    }
    let namespace = fs::File::open(Path::new("/run/netns").join(netns)).unwrap();
    setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
    let peer: SocketAddr = peer.parse().unwrap();
    let mut connection = TcpStream::connect(peer).unwrap();
    let mut bytes = [0; 4096];
    while connection.read(&mut bytes).unwrap_or(0) > 0 {
        connection.write_all(b"!").unwrap();
    }
}
