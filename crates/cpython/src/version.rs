//! Versions of CPython.

use std::fmt;

/// A CPython version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 3
    pub major: u8,
    /// 8 to 14 are supported.
    pub minor: u8,
    /// The patch release.
    pub micro: u8,
    /// How finished it is.
    pub level: Level,
}

/// The release level, in the order of a release's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Structures still change.
    Alpha,
    /// Structures may still change.
    Beta,
    /// The layout of the release.
    Candidate,
    /// A release.
    Final,
}

impl Version {
    /// A release.
    pub const fn new(major: u8, minor: u8, micro: u8) -> Self {
        Version { major, minor, micro, level: Level::Final }
    }

    /// From `PY_VERSION_HEX`, as in `Py_Version` and `_Py_DebugOffsets`.
    pub fn from_hex(hex: u64) -> Option<Self> {
        if hex >> 32 != 0 {
            return None;
        }
        let [major, minor, micro, release] = (hex as u32).to_be_bytes();
        let level = match release >> 4 {
            0xa => Level::Alpha,
            0xb => Level::Beta,
            0xc => Level::Candidate,
            0xf => Level::Final,
            _ => return None,
        };
        Some(Version { major, minor, micro, level })
    }

    /// From the text of `PY_VERSION`: `3.8.18`, `3.9.0rc1`, `3.10.13+`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('+').unwrap_or(text);
        let mut parts = text.splitn(3, '.');
        let major = parts.next()?.parse().ok()?;
        let minor = parts.next()?.parse().ok()?;
        let rest = parts.next()?;
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (micro, suffix) = rest.split_at(digits);
        let level = match suffix.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "" if suffix.is_empty() => Level::Final,
            "a" => Level::Alpha,
            "b" => Level::Beta,
            "rc" | "c" => Level::Candidate,
            _ => return None,
        };
        Some(Version { major, minor, micro: micro.parse().ok()?, level })
    }

    /// `(3, 11)`
    pub const fn minor_pair(&self) -> (u8, u8) {
        (self.major, self.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)?;
        f.write_str(match self.level {
            Level::Alpha => " (alpha)",
            Level::Beta => " (beta)",
            Level::Candidate => " (release candidate)",
            Level::Final => "",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_words_and_texts_agree() {
        assert_eq!(Version::from_hex(0x030b_07f0), Some(Version::new(3, 11, 7)));
        assert_eq!(Version::parse("3.11.7"), Some(Version::new(3, 11, 7)));
        assert_eq!(Version::parse("3.10.13+"), Some(Version::new(3, 10, 13)));
        assert_eq!(Version::from_hex(0x0309_00c1), Version::parse("3.9.0rc1"));
    }

    #[test]
    fn nonsense_is_no_version() {
        for text in ["", "3", "3.8", "3.8.", "3.8.x", "3.8.1foo", "3.8.999"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
        assert_eq!(Version::from_hex(0x030b_0700), None);
        assert_eq!(Version::from_hex(u64::MAX), None);
    }
}
