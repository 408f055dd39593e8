//! Tables of real binaries, compared with what binutils' `readelf` makes of the same `.eh_frame`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use underspan_unwind::{Cfa, Image, Rbp, Row, Rule, Table};

/// What is on a Debian or a Red Hat machine, with the system's Python and those of pyenv.
fn binaries() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut found: Vec<PathBuf> = maps
        .lines()
        .filter(|line| line.contains(" r-xp "))
        .filter_map(|line| line.split_whitespace().nth(5))
        .filter(|path| path.starts_with('/'))
        .map(PathBuf::from)
        .collect();
    for folder in ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/bin"] {
        for name in ["libcrypto.so.3", "libssl.so.3", "libstdc++.so.6", "libm.so.6", "python3"] {
            let path = Path::new(folder).join(name);
            found.extend(std::fs::canonicalize(path));
        }
    }
    let entries = std::fs::read_dir("/usr/lib/x86_64-linux-gnu").into_iter().flatten().flatten();
    let is_python = |path: &PathBuf| path.to_string_lossy().contains("/libpython3");
    found.extend(entries.map(|entry| entry.path()).filter(|path| {
        is_python(path) && path.extension().is_some_and(|extension| extension != "a")
    }));
    found = found.iter().filter_map(|path| std::fs::canonicalize(path).ok()).collect();
    found.sort();
    found.dedup();
    found
}

fn table(path: &Path) -> Table {
    let file = File::open(path).unwrap();
    Image::parse(file).unwrap().table().unwrap()
}

/// DWARF's order.
const REGISTERS: [&str; 16] = [
    "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// `rsp+8` as a register and an offset.
fn register(text: &str) -> Option<(&str, i32)> {
    let at = text.find(['+', '-'])?;
    let offset = text[at..].parse().ok()?;
    Some((&text[..at], offset))
}

/// What our rule says, in readelf's words. `None` where readelf does not say enough (`exp`), or we
/// say that we do not know.
fn agrees(rule: Rule, cfa: &str, rbp: &str, ra: &str) -> Option<bool> {
    match rule {
        Rule::Gap => Some(false),
        Rule::Unsupported | Rule::FramePointer => None,
        Rule::InRegister { register: number, offset } => {
            let name = format!("r{number}({})", REGISTERS[usize::from(number)]);
            Some(ra == name && register(cfa) == Some(("rsp", offset)))
        }
        Rule::Signal => Some(cfa == "exp" && ra == "exp"),
        Rule::End => Some(ra == "u" || rbp == "go"),
        Rule::Frame { cfa: ours, rbp: our_rbp } => {
            let cfa = match ours {
                Cfa::Rsp(offset) => cfa == "exp" || register(cfa) == Some(("rsp", offset)),
                Cfa::Rbp(offset) => cfa == "exp" || register(cfa) == Some(("rbp", offset)),
                Cfa::Other { register: number, offset } => {
                    register(cfa) == Some((REGISTERS[usize::from(number)], offset))
                }
                Cfa::AtRsp { .. } | Cfa::AtRbp { .. } | Cfa::Plt { .. } => cfa == "exp",
            };
            let rbp = match our_rbp {
                Rbp::Same => matches!(rbp, "u" | "s" | "go"),
                // Go's compiler leaves rbp to who knows Go.
                Rbp::AtCfa(-16) if rbp == "go" => true,
                Rbp::AtCfa(offset) => register(rbp) == Some(("c", offset)),
                Rbp::AtRbp(_) => rbp == "exp",
                Rbp::Unknown => true,
            };
            Some(cfa && rbp && ra == "c-8")
        }
    }
}

struct Comparison {
    rows: usize,
    unsupported: usize,
}

/// Every row that readelf prints of `section`.
fn compare(path: &Path, table: &Table, section: &str) -> Comparison {
    let mut child = Command::new("readelf")
        .arg("--debug-dump=frames-interp")
        .arg(path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("readelf, of binutils");
    let mut columns: HashMap<String, usize> = HashMap::new();
    let (mut in_section, mut in_fde) = (false, false);
    let mut result = Comparison { rows: 0, unsupported: 0 };
    let mut last = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        // One word: "r5 (rdi)".
        let line = line.unwrap().replace(" (", "(");
        if line.starts_with("Contents of") {
            in_section = line.contains(section);
        }
        if !in_section {
            continue;
        }
        let words: Vec<_> = line.split_whitespace().collect();
        if line.contains(" CIE ") || line.contains(" FDE ") {
            in_fde = line.contains(" FDE ");
            last = 0;
        } else if words.first() == Some(&"LOC") {
            columns = words.iter().enumerate().map(|(at, word)| (word.to_string(), at)).collect();
        } else if in_fde && words.len() == columns.len() && words[0].len() == 16 {
            let Ok(address) = u64::from_str_radix(words[0], 16) else { continue };
            let column = |name| columns.get(name).map_or("u", |&at| words[at]);
            let rbp = if section == ".debug_frame" { "go" } else { column("rbp") };
            let rule = table.rule(address);
            result.rows += 1;
            match agrees(rule, column("CFA"), rbp, column("ra")) {
                None => result.unsupported += 1,
                Some(agrees) => assert!(agrees, "{} {line}: {rule:?}", path.display()),
            }
            assert!(address >= last, "{line}");
            last = address;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    result
}

#[test]
fn every_row_is_what_readelf_says() {
    let (mut rows, mut described, mut supported) = (0, 0, 0);
    for path in binaries() {
        let table = table(&path);
        let Comparison { rows: compared, unsupported } = compare(&path, &table, ".eh_frame");
        let share = table.coverage().share();
        println!(
            "{:60} {:7} rows, {compared:7} compared, {unsupported:5} unsupported, {:.4} % of bytes",
            path.display().to_string(),
            table.rows.len(),
            100.0 * share,
        );
        let coverage = table.coverage();
        described += coverage.described;
        supported += coverage.supported;
        rows += compared;
    }
    // The rest is hand-written: the loader's lazy binding hangs its frames on rbx.
    let share = supported as f64 / described as f64;
    println!("supported: {supported} of {described} bytes of code, {:.4} %", 100.0 * share);
    assert!(share > 0.999, "{share}");
    assert!(rows > 50_000, "{rows} rows: is there no libpython, libcrypto or libstdc++?");
}

/// Go's compiler says the same in `.pclntab`, which we read, and for debuggers in `.debug_frame`.
#[test]
fn go_is_what_readelf_says() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("main.go");
    let program = r#"package main
        import ("fmt"; "net/http"; "os")
        func main() { fmt.Println(http.Get("http://127.0.0.1:1/")); os.Exit(0) }"#;
    std::fs::write(&source, program).unwrap();
    let binary = folder.path().join("program");
    // With C linked in and without, at a fixed address and at any.
    for (cgo, mode) in [("0", "exe"), ("1", "exe"), ("0", "pie")] {
        let built = Command::new("go")
            .args(["build", "-buildmode", mode, "-ldflags=-compressdwarf=false", "-o"])
            .args([&binary, &source])
            .env("CGO_ENABLED", cgo)
            .output();
        let Ok(built) = built else {
            println!("left out: there is no Go compiler");
            return;
        };
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let table = table(&binary);
        let Comparison { rows, unsupported } = compare(&binary, &table, ".debug_frame");
        println!(
            "cgo {cgo}, {mode}: {} rows, {rows} compared, {unsupported} not",
            table.rows.len()
        );
        assert!(rows > 10_000 && unsupported < 100, "{rows} {unsupported}");
        assert!(table.coverage().share() > 0.999);
    }
}

#[test]
fn tables_are_sorted_and_end_in_a_gap() {
    for path in binaries() {
        let table = table(&path);
        assert!(
            table.rows.iter().is_sorted_by(|one, other| one.pc < other.pc),
            "{}",
            path.display()
        );
        assert!(table.rows.iter().is_sorted_by(|one, other| one.rule != other.rule));
        assert!(matches!(table.rows.last(), Some(Row { rule: Rule::Gap, .. })));
    }
}
