//! Prints all that is known of a process's interpreter: `cargo run --example inspect -- PID`.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use underspan_cpython::Inspector;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pid = std::env::args().nth(1).ok_or("usage: inspect PID")?.parse()?;
    let mut inspector = Inspector::new();
    let start = Instant::now();
    let interpreter = inspector.inspect(pid)?;
    let first = start.elapsed();
    let start = Instant::now();
    inspector.inspect(pid)?;
    println!("{interpreter:#x?}");
    println!("GIL wait futexes: {:x?}", interpreter.gil_wait_range());
    println!("took {first:?}, again {:?}", start.elapsed());
    let start = Instant::now();
    let names = interpreter.thread_names()?;
    let took = start.elapsed();
    for thread in &names {
        println!("{:>8} {:#x} {}", thread.tid.unwrap_or(0), thread.pthread_id, thread.name);
    }
    println!("{} names took {took:?}", names.len());
    Ok(())
}
