//! Prints a process's goroutines: `cargo run -p underspan-golang --example goroutines -- PID`

use std::fs::File;

use underspan_golang::{Error, Functions, Inspector, Sampler};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pid = std::env::args().nth(1).ok_or("give a process id")?.parse()?;
    let runtime = Inspector::new().inspect(pid)?;
    println!(
        "{}, offsets: {:?}, {} goroutines",
        runtime.version(),
        runtime.source(),
        runtime.alive()?
    );
    let functions =
        Functions::open(File::open(format!("/proc/{pid}/exe")).map_err(|_| Error::Gone)?)?;
    let mut sampler = Sampler::new(runtime);
    sampler.round(0)?;
    let round = sampler.round(1_000_000)?;
    println!("{} listed, {} torn", round.listed, round.torn);
    for sample in round.samples {
        let status = sample.status.name();
        println!(
            "{:>8} {status} {:?} tid {} {} ({:?})",
            sample.goid, sample.wait_reason, sample.tid, sample.function, sample.end
        );
        for (index, pc) in sample.stack.iter().enumerate() {
            for at in functions.locate(pc - u64::from(index > 0)).iter().rev() {
                println!("             {} {}:{}", at.function, at.file, at.line);
            }
        }
    }
    Ok(())
}
