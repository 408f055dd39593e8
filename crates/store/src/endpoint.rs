//! Where the store is and how to log in, as one URL.

use std::fmt;
use std::str::FromStr;

use url::Url;

use crate::Error;

/// The environment variable that names the store where no option does.
pub const STORE_VARIABLE: &str = "UNDERSPAN_STORE";

const DEFAULT_DATABASE: &str = "default";
const DEFAULT_USER: &str = "default";

/// A ClickHouse HTTP endpoint.
///
/// Written `http://user:password@host:8123/database`; all but the host may be left out. With
/// `https`, the port is 8443 unless given. `Display` leaves out the password, so that an endpoint
/// can be logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Scheme, host and port: `http://127.0.0.1:8123`.
    pub url: String,
    /// The database that holds Underspan's tables.
    pub database: String,
    /// The user to log in as.
    pub user: String,
    /// The user's password; the embedded store's token.
    pub password: String,
}

impl Endpoint {
    /// The endpoint named by `UNDERSPAN_STORE`, or `None` where it is not set.
    ///
    /// # Errors
    ///
    /// [`Error::BadUrl`] when it is set to something that is no store's URL.
    pub fn from_env() -> Result<Option<Endpoint>, Error> {
        match std::env::var(STORE_VARIABLE) {
            Ok(text) if !text.trim().is_empty() => text.parse().map(Some),
            _ => Ok(None),
        }
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Endpoint, Error> {
        let bad = |reason: &str| Error::BadUrl { url: hide_password(text), reason: reason.into() };
        let url = Url::parse(text.trim()).map_err(|error| bad(&error.to_string()))?;
        let (default_port, implied_port) = match url.scheme() {
            "http" => (8123, 80),
            "https" => (8443, 443),
            _ => return Err(bad("only ClickHouse's HTTP interface is spoken")),
        };
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| bad("it names no host"))?;
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("settings behind ? or # are not read"));
        }
        let database = match url.path().trim_matches('/') {
            "" => DEFAULT_DATABASE.to_owned(),
            path if path.contains('/') => return Err(bad("a database has no / in its name")),
            path => decode(path).ok_or_else(|| bad("the database is not UTF-8"))?,
        };
        let user = match url.username() {
            "" => DEFAULT_USER.to_owned(),
            user => decode(user).ok_or_else(|| bad("the user is not UTF-8"))?,
        };
        let password = decode(url.password().unwrap_or_default());
        let password = password.ok_or_else(|| bad("the password is not UTF-8"))?;
        // `url` takes the scheme's own port for none, so look at what was written.
        let authority = text.rsplit('@').next().unwrap_or_default();
        let port = match url.port() {
            Some(port) => port,
            None if authority.contains(&format!("{host}:{implied_port}")) => implied_port,
            None => default_port,
        };
        let url = format!("{}://{host}:{port}", url.scheme());
        Ok(Endpoint { url, database, user, password })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.url, self.database)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("url", &self.url)
            .field("database", &self.database)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if let (b'%', [high, low, tail @ ..]) = (first, tail)
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            bytes.push(high << 4 | low);
            rest = tail;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// The text without what stands between the first `:` of the login and the `@`.
fn hide_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let Some((login, host)) = rest.rsplit_once('@') else { return text.to_owned() };
    let user = login.split(':').next().unwrap_or_default();
    format!("{scheme}://{user}:…@{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    #[test]
    fn everything_but_the_host_has_a_default() {
        let endpoint = parse("http://ch");
        assert_eq!(endpoint.url, "http://ch:8123");
        assert_eq!(endpoint.database, "default");
        assert_eq!((endpoint.user.as_str(), endpoint.password.as_str()), ("default", ""));
    }

    #[test]
    fn all_parts_are_read() {
        let endpoint = parse("http://ann:p%40ss%2Fw%C3%A9@[::1]:9000/my%20db/");
        assert_eq!(endpoint.url, "http://[::1]:9000");
        assert_eq!(endpoint.database, "my db");
        assert_eq!((endpoint.user.as_str(), endpoint.password.as_str()), ("ann", "p@ss/wé"));
        assert_eq!(parse("http://ch:80").url, "http://ch:80");
        assert_eq!(parse("https://ch").url, "https://ch:8443");
        assert_eq!(parse("https://ch:443/db").url, "https://ch:443");
        assert_eq!(parse("http://ch:80@ch/db").url, "http://ch:8123");
    }

    #[test]
    fn what_is_no_store_is_refused_with_a_reason() {
        for (text, reason) in [
            ("clickhouse:8123", "only ClickHouse's HTTP"),
            ("tcp://ch:9000", "only ClickHouse's HTTP"),
            ("http://", "empty host"),
            ("http://ch:99999", "invalid port"),
            ("http://ch/a/b", "no / in its name"),
            ("http://ch/db?max_threads=1", "settings"),
            ("nonsense", "relative URL"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(error.contains("http://user:password@host:8123/database"), "{error}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let endpoint = parse("http://ann:secret@ch/db");
        assert!(!format!("{endpoint} {endpoint:?}").contains("secret"));
        let error = "http://ann:secret@ch/a/b".parse::<Endpoint>().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
}
