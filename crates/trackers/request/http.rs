//! What the first bytes of a request and of its answer say, if they are HTTP/1.x.

/// From a request's first bytes. Everything is empty if they are not HTTP/1.x.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) method: String,
    /// Without its query string.
    pub(super) path: String,
    /// 32 hexadecimal digits.
    pub(super) trace_id: String,
    /// 16 hexadecimal digits.
    pub(super) parent_span_id: String,
}

/// More headers than any server accepts by default.
const MAX_HEADERS: usize = 128;

/// Reads a request's first bytes. They may end anywhere.
pub(super) fn request_head(bytes: &[u8]) -> Head {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    // Headers that were parsed before the bytes ended, or before one that is malformed, are kept.
    let parsed = request.parse(bytes);
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return Head::default();
    };
    if parsed.is_err() && request.version.is_none() {
        return Head::default();
    }
    let mut head = Head {
        method: method.to_owned(),
        path: target.split(['?', '#']).next().unwrap_or_default().to_owned(),
        ..Head::default()
    };
    for header in request.headers.iter().filter(|header| !header.name.is_empty()) {
        if header.name.eq_ignore_ascii_case("traceparent")
            && let Some((trace, parent)) = traceparent(header.value)
        {
            head.trace_id = trace;
            head.parent_span_id = parent;
        }
    }
    head
}

/// `00-<trace id>-<span id>-<flags>`, as W3C Trace Context has it; later versions may append.
fn traceparent(value: &[u8]) -> Option<(String, String)> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let mut parts = text.split('-');
    let (version, trace, parent, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let zero = |part: &str| part.bytes().all(|b| b == b'0');
    let valid = hex(version, 2)
        && version != "ff"
        && (version != "00" || parts.next().is_none())
        && hex(trace, 32)
        && hex(parent, 16)
        && hex(flags, 2)
        && !zero(trace)
        && !zero(parent);
    valid.then(|| (trace.to_owned(), parent.to_owned()))
}

/// The status of an answer that begins with these bytes, 0 if it is not HTTP/1.x.
pub(super) fn status(bytes: &[u8]) -> u16 {
    let digits = bytes
        .strip_prefix(b"HTTP/1.")
        .and_then(|rest| rest.get(2..5))
        .filter(|digits| digits.iter().all(u8::is_ascii_digit));
    digits.map_or(0, |digits| digits.iter().fold(0, |n, d| n * 10 + u16::from(d - b'0')))
}
