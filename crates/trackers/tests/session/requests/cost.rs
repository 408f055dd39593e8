//! What the programs of a request cost.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::tcp::cost::{counts, print, statistics};
use crate::watcher::Watcher;

/// Requests one after the other on one connection of this process to itself, each head in these pieces.
fn load(requests: u32, pieces: &[&[u8]]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    for _ in 0..requests {
        for piece in pieces {
            client.write_all(piece).unwrap();
            server.read_exact(&mut vec![0; piece.len()]).unwrap();
        }
        server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        client.read_exact(&mut [0; 27]).unwrap();
    }
}

/// By the kernel's own count. Prints; asks for a quiet machine:
/// `sudo -E cargo test -p underspan-trackers --test session requests::cost -- --ignored --nocapture`
#[test]
#[ignore = "it measures"]
fn cost() {
    let _statistics = statistics();
    let head = format!("GET /orders/17 HTTP/1.1\r\nHost: shop\r\nCookie: {}\r\n", "c".repeat(400));
    let whole = format!("{head}\r\n");
    let loads: [(&str, bool, &[&[u8]]); 3] = [
        ("not watched", false, &[whole.as_bytes()]),
        ("whole heads", true, &[whole.as_bytes()]),
        ("heads in two pieces", true, &[head.as_bytes(), b"\r\n"]),
    ];
    for (what, watched, pieces) in loads {
        let mut watcher = Watcher::new();
        if watched {
            watcher.watch(std::process::id());
        }
        let before = counts(&watcher, "request_");
        for _ in 0..10 {
            load(2_000, pieces);
            watcher.drain();
        }
        println!("{what}:");
        print(&before, &counts(&watcher, "request_"));
    }
}
