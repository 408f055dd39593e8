//! Functions' names without what compilers append to them.

/// Suffixes of parts and copies of functions, with a number or without.
const PARTS: [&str; 6] = [".cold", ".part.", ".constprop.", ".isra.", ".lto_priv.", ".llvm."];

/// The function's name as it was written: `collect.constprop.0.cold` is `collect`.
pub(crate) fn plain(name: &str) -> &str {
    // Demanglers write a suffix as `f(int) [clone .cold]`.
    let name = name.split(" [clone .").next().unwrap_or(name);
    let cut = PARTS.iter().filter_map(|part| {
        let at = name.find(part).filter(|at| *at > 0)?;
        let rest = name.get(at + part.len()..)?;
        let ends = if part.ends_with('.') {
            rest.starts_with(|c: char| c.is_ascii_digit())
        } else {
            rest.is_empty() || rest.starts_with('.')
        };
        ends.then_some(at)
    });
    cut.min().and_then(|at| name.get(..at)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn parts_and_copies() {
        for (name, expected) in [
            ("_PyEval_EvalFrameDefault.cold", "_PyEval_EvalFrameDefault"),
            ("collect.constprop.0.cold", "collect"),
            ("f(int) [clone .part.0] [clone .cold]", "f(int)"),
            ("main.(*T).cold", "main.(*T)"),
            ("main.coldStart", "main.coldStart"),
            ("pkg.partition", "pkg.partition"),
            ("a.part.b", "a.part.b"),
            ("", ""),
            (".cold", ".cold"),
        ] {
            assert_eq!(plain(name), expected);
        }
    }
}
