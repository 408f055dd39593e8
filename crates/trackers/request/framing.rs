//! Where an answer ends: what its first bytes say of it, if they are HTTP/1.x (RFC 9112, section 6.3).

/// More headers than any server sends.
const MAX_HEADERS: usize = 128;

/// What ends an answer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// It cannot be told: no HTTP/1.x, a head that is not whole or does not say, another protocol from here on.
    #[default]
    Unknown,
    /// So many bytes, the head's included.
    Bytes(u64),
    /// A last chunk.
    Chunks,
    /// The end of the connection.
    Close,
}

/// How the answer that begins with `bytes` to a request of this method ends.
pub(super) fn framing(method: &str, bytes: &[u8]) -> Framing {
    read(method, bytes).unwrap_or_default()
}

fn read(method: &str, bytes: &[u8]) -> Option<Framing> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = answer.parse(bytes).ok()? else { return None };
    let (head, status) = (head as u64, answer.code?);
    let every = |name: &'static str| {
        let named =
            answer.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.filter_map(|header| std::str::from_utf8(header.value).ok()).map(str::trim)
    };
    match (method, status) {
        // What follows is another protocol's. And without its method, an answer to HEAD is not known as one.
        ("" | "CONNECT", _) | (_, 101) => return None,
        ("HEAD", _) | (_, 204 | 304) => return Some(Framing::Bytes(head)),
        _ => {}
    }
    if let Some(codings) = every("transfer-encoding").next_back() {
        let last = codings.rsplit(',').next().unwrap_or_default().trim();
        return Some(if last.eq_ignore_ascii_case("chunked") {
            Framing::Chunks
        } else {
            Framing::Close
        });
    }
    let mut lengths = every("content-length");
    if let Some(length) = lengths.next() {
        let body: u64 = length.parse().ok()?;
        return lengths
            .all(|other| other == length)
            .then_some(Framing::Bytes(head.checked_add(body)?));
    }
    Some(Framing::Close)
}
