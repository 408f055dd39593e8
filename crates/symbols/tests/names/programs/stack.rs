// Prints addresses in two of its functions. Then waits.
use std::io::Read;

mod shop {
    pub struct Cart<T>(pub Vec<T>);

    pub trait Total {
        fn total(&self) -> u64;
    }

    impl Total for Cart<u32> {
        #[inline(never)]
        fn total(&self) -> u64 {
            self.0.iter().map(|item| u64::from(*item)).sum()
        }
    }
}

use shop::Total as _;

fn main() {
    let total: fn(&shop::Cart<u32>) -> u64 = shop::Cart::<u32>::total;
    println!("{:x} {:x} ", total as *const () as usize, main as *const () as usize);
    println!("{}", std::hint::black_box(total)(&shop::Cart(vec![1, 2])));
    let _ = std::io::stdin().read(&mut [0]);
}
