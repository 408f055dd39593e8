//! Compiles every tracker's BPF programs, links them into one object, and makes Rust types from the
//! record headers. The list of states comes from the `model` crate: C and Rust cannot disagree.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use underspan_model::State;

/// Trackers whose programs are an object of their own.
const SEPARATE: [&str; 1] = ["netstack"];

/// What makes user code of the programs, or of parts of them, for tests.
const TESTED: [&str; 4] =
    ["stack/tests/python.c", "stack/tests/again.c", "offcpu/tests/points.c", "oncpu/tests/ticks.c"];

fn main() -> Result<()> {
    let source = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let libbpf =
        env::var("DEP_BPF_INCLUDE").context("libbpf-sys did not say where its headers are")?;

    fs::write(out.join("states.h"), states_header()?)?;

    let folders = folders(&source)?;
    let programs = files(&folders, ".bpf.c")?;
    let headers = files(&folders, ".h")?;
    for file in programs.iter().chain(&headers) {
        println!("cargo:rerun-if-changed={}", file.display());
    }

    let mut objects = Vec::new();
    for file in &programs {
        let object = compile(file, &out, &libbpf)?;
        if !file.components().any(|part| SEPARATE.iter().any(|name| part.as_os_str() == *name)) {
            objects.push(object);
        }
    }
    link(&objects, &out.join("underspan.bpf.o"))?;
    user_code(&source, &out);
    bindings(&headers, &source, &out)
}

/// The shared folders and one folder per tracker. Those that define what others declare come first,
/// and the ledger, which calls most trackers, last: libbpf's linker loses the place of a map that it
/// hears of before its definition.
fn folders(source: &Path) -> Result<Vec<PathBuf>> {
    let mut folders: Vec<_> = fs::read_dir(source)?
        .map(|entry| Ok(entry?.path()))
        .filter(|path| !matches!(path, Ok(path) if !path.is_dir()))
        .collect::<Result<_>>()?;
    let defines = |path: &PathBuf| path.ends_with("bpf") || path.ends_with("stack");
    let calls = |path: &PathBuf| path.ends_with("ledger");
    folders.sort_by_key(|path| (!defines(path), calls(path), path.clone()));
    Ok(folders)
}

fn files(folders: &[PathBuf], suffix: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in folders {
        let first = found.len();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.ends_with(suffix)) {
                found.push(path);
            }
        }
        found[first..].sort();
    }
    Ok(found)
}

/// `states.h`: the numbers of the states.
fn states_header() -> Result<String> {
    let mut text = String::from(
        "/* Made from the list in the model crate. */\n#ifndef UNDERSPAN_STATES_H\n#define UNDERSPAN_STATES_H\n\nenum state {\n",
    );
    for state in State::ALL {
        writeln!(text, "\tSTATE_{} = {},", state.name().to_uppercase(), state.index())?;
    }
    writeln!(text, "}};\n\n#define STATES {}\n\n#endif", State::ALL.len())?;
    Ok(text)
}

fn compile(source: &Path, out: &Path, libbpf: &str) -> Result<PathBuf> {
    let name = source.file_name().context("a source has a name")?;
    let object = out.join(name).with_extension("o");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let status = Command::new(&clang)
        .args([
            "-g",
            "-O2",
            "-target",
            "bpf",
            "-mcpu=v3",
            "-D__TARGET_ARCH_x86",
            "-Wall",
            "-Werror",
        ])
        .args(["-Wno-missing-declarations", "-Wno-unused-function"])
        .arg(format!("-I{}", out.display()))
        .arg(format!("-I{libbpf}"))
        // asm/errno.h, for libbpf's USDT header, lives in the multiarch folder.
        .args(["-idirafter", "/usr/include/x86_64-linux-gnu", "-c"])
        .arg(source)
        .arg("-o")
        .arg(&object)
        .status()
        .with_context(|| format!("cannot run {clang}: install it (Debian: apt install clang)"))?;
    if !status.success() {
        bail!("{clang} could not compile {}", source.display());
    }
    Ok(object)
}

fn link(objects: &[PathBuf], output: &Path) -> Result<()> {
    let mut linker = libbpf_rs::Linker::new(output)?;
    for object in objects {
        linker.add_file(object).with_context(|| format!("linking {}", object.display()))?;
    }
    linker.link()?;
    Ok(())
}

/// What is tested for itself as user code, on a kernel that the tests make up (`stack/tests/user.h`). Nothing of it
/// gets into a program that is no test.
fn user_code(source: &Path, out: &Path) {
    let mut build = cc::Build::new();
    for file in TESTED {
        build.file(source.join(file));
    }
    for folder in ["stack/tests", "offcpu/tests", "oncpu/tests"].map(|folder| source.join(folder)) {
        println!("cargo:rerun-if-changed={}", folder.display());
    }
    build
        .include(source.join("stack/tests"))
        .include(out)
        .warnings(true)
        .flag_if_supported("-Wno-unused-parameter")
        .flag_if_supported("-Wno-unused-function")
        .compile("underspan_test_user_code");
}

/// Rust types for everything user space exchanges with BPF.
fn bindings(headers: &[PathBuf], source: &Path, out: &Path) -> Result<()> {
    let kernel_side =
        ["kernel.h", "read.h", "maps.h", "emit.h", "charge.h", "interrupt.h", "tcp.h", "points.h"];
    let mut builder = bindgen::Builder::default()
        .clang_arg(format!("-I{}", out.display()))
        .clang_arg(format!("-I{}", source.join("bpf").display()))
        .allowlist_type("(.*_event|event_.*|config|process|thread|collections|lost_reason|tracker_id|gc_rung|request_end|python_frames?|python_layout|loop_kind|netstack_.*|tcp_loss_.*|stack_end|stack_moment|unwind_.*)")
        .allowlist_var("(UNWIND_.*|NETSTACK_.*|KERNEL_FRAMES|STACK_PLACES|NATIVE_FRAMES|PYTHON_FRAMES|PYTHON_STARTING|COMM_LEN|STATES|REQUEST_HEAD|ANSWER_(HEAD|START)|SENDS_TOLD)")
        .default_enum_style(bindgen::EnumVariation::ModuleConsts)
        .derive_default(true)
        .layout_tests(true)
        .use_core();
    for header in headers {
        let name = header.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if !name.ends_with(".bpf.h") && !kernel_side.contains(&name) {
            builder = builder.header(header.display().to_string());
        }
    }
    builder.generate()?.write_to_file(out.join("records.rs"))?;
    Ok(())
}
