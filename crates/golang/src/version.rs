//! Which Go made a program.

use std::fmt;

/// A release of Go. The patch level changes no structure that is read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The `1` of 1.22.3.
    pub major: u16,
    /// The `22`.
    pub minor: u16,
    /// The `3`.
    pub patch: u16,
}

impl Version {
    /// From the build information: `go1.22.3`, `go1.23rc1`, `go1.24.0 X:nocoverageredesign`.
    /// Development versions (`devel …`) are `None`: their structures are anybody's guess.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("go")?;
        let rest = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let mut parts = rest.split('.').map(str::parse);
        let mut part = || parts.next().and_then(Result::ok);
        Some(Version { major: part()?, minor: part()?, patch: part().unwrap_or(0) })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Go {}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    fn parsed(text: &str) -> Option<(u16, u16, u16)> {
        Version::parse(text).map(|version| (version.major, version.minor, version.patch))
    }

    #[test]
    fn versions_as_toolchains_write_them() {
        assert_eq!(parsed("go1.22.3"), Some((1, 22, 3)));
        assert_eq!(parsed("go1.20"), Some((1, 20, 0)));
        assert_eq!(parsed("go1.23rc1"), Some((1, 23, 0)));
        assert_eq!(parsed("go1.24.0 X:nocoverageredesign"), Some((1, 24, 0)));
        assert_eq!(parsed("go1.19.8-debian"), Some((1, 19, 8)));
        assert_eq!(parsed("devel go1.27-abcdef"), None);
        assert_eq!(parsed(""), None);
    }
}
