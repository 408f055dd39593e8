// The same as trees.c, by Rust's compiler: generics, closures, trait objects, and a caught panic.
use std::ffi::{c_int, c_void};
use std::io::{BufRead, Write};
use std::time::Duration;

extern "C" {
    fn backtrace(list: *mut *mut c_void, size: c_int) -> c_int;
    fn gettid() -> c_int;
}

trait Node {
    fn visit(&self, depth: u32) -> u64;
}

struct Left(Vec<u64>);
struct Right(u64);

impl Node for Left {
    #[inline(never)]
    fn visit(&self, depth: u32) -> u64 {
        let next: Box<dyn Node> = Box::new(Right(depth.into()));
        self.0.iter().sum::<u64>() + next.visit(depth)
    }
}

impl Node for Right {
    #[inline(never)]
    fn visit(&self, depth: u32) -> u64 {
        if depth == 0 {
            let caught = std::panic::catch_unwind(|| {
                let mut numbers = [3, 1, 2];
                let mut told = false;
                numbers.sort_by(|one, other| {
                    if !std::mem::replace(&mut told, true) {
                        tell_and_sleep();
                    }
                    one.cmp(other)
                });
                numbers[0]
            });
            return caught.unwrap_or(0) + self.0;
        }
        Left(vec![1; depth as usize]).visit(depth - 1) + self.0
    }
}

#[inline(never)]
fn tell_and_sleep() {
    let mut list = [std::ptr::null_mut(); 512];
    let count = unsafe { backtrace(list.as_mut_ptr(), 512) };
    let mut line = unsafe { gettid() }.to_string();
    for address in &list[..count as usize] {
        line += &format!(" {:x}", *address as usize);
    }
    println!("{line}");
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn main() {
    let mut warm = [std::ptr::null_mut(); 4];
    unsafe { backtrace(warm.as_mut_ptr(), 4) };
    println!("ready");
    let _ = std::io::stdout().flush();
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
    let total = Right(7).visit(20);
    println!("{}", if total == 1 { "one" } else { "done" });
    // A thread that exits may wait, and never goes back to tell its stack.
    std::thread::sleep(Duration::from_secs(1000));
}
