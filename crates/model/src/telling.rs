//! Which frame of a stack says where a thread was.
//!
//! The innermost one often does not: a wait ends in the C library's `syscall()`, whoever waits for
//! whatever. Then it is the nearest caller that does.

use crate::idle::is_way_to_wait;
use crate::{Frame, FrameKind};

/// What code is called, and where it is from: of a frame, or of a box in a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code<'a> {
    /// Where it runs, or its language.
    pub kind: FrameKind,
    /// The function.
    pub function: &'a str,
    /// File name of the executable or library.
    pub module: &'a str,
}

/// Functions by their whole names, and by how they begin.
struct Names {
    whole: &'static [&'static str],
    begin: &'static [&'static str],
}

/// How code of the C library and of Go calls the kernel, whatever for.
const TO_KERNEL: Names = Names {
    whole: &["syscall"],
    begin: &[
        "__syscall",
        "__internal_syscall",
        "syscall.",
        "internal/runtime/syscall",
        "runtime/internal/syscall",
    ],
};

/// What the kernel does at every call, and where every thread gives its CPU away.
const IN_KERNEL: Names = Names {
    whole: &["do_syscall_64", "do_syscall_x64", "x64_sys_call", "__schedule"],
    begin: &[
        "entry_SYS",
        "exit_to_user_mode",
        "syscall_exit_to_user_mode",
        "ret_from_fork",
        "schedule",
    ],
};

impl Code<'_> {
    /// Whether every system call goes through it.
    pub fn is_way_to_kernel(&self) -> bool {
        let names = match self.kind {
            FrameKind::Python => return false,
            FrameKind::Native => &TO_KERNEL,
            FrameKind::Kernel => &IN_KERNEL,
        };
        names.whole.contains(&self.function)
            || names.begin.iter().any(|begin| self.function.starts_with(begin))
    }

    /// Whether it says where a thread is that `runs` there, or waits. What the C library and the
    /// languages' own ones do to wait says nothing; of a thread that runs in them it does.
    fn tells(&self, runs: bool) -> bool {
        let is_way_to_wait =
            || self.kind == FrameKind::Native && is_way_to_wait(self.function, self.module);
        !self.is_way_to_kernel() && (runs || !is_way_to_wait())
    }
}

impl Frame {
    /// What it is called.
    pub fn code(&self) -> Code<'_> {
        Code { kind: self.kind, function: &self.function, module: &self.module }
    }
}

/// Which of code that called each other, the innermost first, says most about a thread that `runs` there,
/// or waits: the innermost Python function, else native one, else the kernel's that tells something; else
/// whatever there is, in the same order.
pub fn most_telling<'a>(
    innermost_first: impl Iterator<Item = Code<'a>> + Clone,
    runs: bool,
) -> Option<usize> {
    let find = |tells: fn(&Code<'_>, bool) -> bool| {
        let of =
            |kind| innermost_first.clone().position(|code| code.kind == kind && tells(&code, runs));
        FrameKind::ALL.into_iter().find_map(of)
    };
    find(|code, runs| code.tells(runs)).or_else(|| find(|_, _| true))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `libc.so.6:poll`, `[kernel]:do_poll`, `app.py:view`, the outermost first.
    fn told(outermost_first: &[&'static str], runs: bool) -> &'static str {
        let code = |text: &&'static str| {
            let (module, function) = text.split_once(':').unwrap();
            let kind = match module {
                "[kernel]" => FrameKind::Kernel,
                _ if module.ends_with(".py") => FrameKind::Python,
                _ => FrameKind::Native,
            };
            Code { kind, function, module }
        };
        let codes: Vec<_> = outermost_first.iter().rev().map(code).collect();
        most_telling(codes.iter().copied(), runs).map_or("nothing", |at| codes[at].function)
    }

    const FUTEX: [&str; 5] = [
        "[kernel]:entry_SYSCALL_64_after_hwframe",
        "[kernel]:do_syscall_64",
        "[kernel]:__x64_sys_futex",
        "[kernel]:futex_wait_queue",
        "[kernel]:schedule",
    ];

    fn before_futex(frames: &[&'static str]) -> Vec<&'static str> {
        frames.iter().chain(&FUTEX).copied().collect()
    }

    #[test]
    fn who_waits_is_told_and_not_how() {
        for how in [
            &["libc.so.6:syscall"][..],
            &["libc.so.6:pthread_cond_wait", "libc.so.6:__futex_abstimed_wait_common"],
            // Linked statically: the module is the program's.
            &["shop:std::sys::pal::unix::futex::futex_wait", "shop:syscall"],
            &["shop:pthread_mutex_lock", "shop:__timedwait", "shop:__syscall_cp_c"],
            &["libc.so.6:0x9a2f1"],
        ] {
            let frames = [&["libc.so.6:start_thread", "shop:main", "shop:refresh"], how].concat();
            assert_eq!(told(&before_futex(&frames), false), "refresh", "{how:?}");
        }
        let go = ["shop:runtime.main", "shop:main.work", "shop:runtime.chanrecv1"];
        assert_eq!(told(&[&go[..], &["shop:runtime.gopark"]].concat(), false), "main.work");
    }

    /// A function's own name may begin like the C library's.
    #[test]
    fn an_applications_functions_are_told_whatever_they_are_called() {
        for frame in ["shop:read_orders", "shop:poll_jobs", "shop:select_user", "shop:syscalls"] {
            let told = told(&before_futex(&["shop:main", frame]), false);
            assert_eq!(Some(told), frame.strip_prefix("shop:"));
        }
        let cython = ["_rows.so:__pyx_f_fetch", "libc.so.6:recv"];
        assert_eq!(told(&cython, false), "__pyx_f_fetch");
    }

    #[test]
    fn pythons_function_is_told_before_all() {
        let frames = ["python3.11:main", "app.py:view", "libc.so.6:syscall"];
        assert_eq!(told(&before_futex(&frames), false), "view");
    }

    /// On a CPU the C library's functions are what takes the time.
    #[test]
    fn of_who_runs_the_innermost_function_is_told_unless_it_only_calls_the_kernel() {
        assert_eq!(told(&["shop:main", "libc.so.6:__memmove_avx"], true), "__memmove_avx");
        assert_eq!(told(&["shop:main", "libc.so.6:syscall"], true), "main");
    }

    #[test]
    fn where_no_caller_tells_the_kernel_does_and_else_whatever_there_is() {
        assert_eq!(told(&FUTEX, false), "futex_wait_queue");
        assert_eq!(told(&before_futex(&["libc.so.6:syscall"]), false), "futex_wait_queue");
        assert_eq!(told(&["libc.so.6:start_thread", "libc.so.6:syscall"], false), "syscall");
        assert_eq!(told(&FUTEX[..2], false), "do_syscall_64");
        assert_eq!(told(&[], false), "nothing");
    }
}
