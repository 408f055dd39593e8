//! Which format an `Accept` header asks for.

/// How metrics are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text, version 0.0.4.
    Text,
    /// Length-delimited protobuf messages.
    Protobuf,
}

impl Format {
    /// The `Content-Type` of an answer.
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; \
                 encoding=delimited"
            }
        }
    }
}

/// Protobuf for those who ask for exactly that and like it no less than text; text for all others,
/// whatever they ask for.
pub fn negotiate(accept: Option<&str>) -> Format {
    let (mut text, mut protobuf) = (None::<f32>, None::<f32>);
    for range in accept.unwrap_or("").split(',') {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or("").to_ascii_lowercase();
        let (mut quality, mut proto, mut encoding) = (1.0, "", "");
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => quality = value.trim().parse().unwrap_or(0.0),
                "proto" => proto = value.trim(),
                "encoding" => encoding = value.trim(),
                _ => {}
            }
        }
        let is_ours = proto == "io.prometheus.client.MetricFamily" && encoding == "delimited";
        let best = match media.as_str() {
            "application/vnd.google.protobuf" if is_ours => &mut protobuf,
            "text/plain" => &mut text,
            _ => continue,
        };
        *best = Some(best.map_or(quality, |best| best.max(quality)));
    }
    match protobuf {
        Some(quality) if quality > 0.0 && quality >= text.unwrap_or(0.0) => Format::Protobuf,
        _ => Format::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_gets_what_it_asks_for() {
        let with_native = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                           encoding=delimited,application/openmetrics-text;version=1.0.0;q=0.8,\
                           application/openmetrics-text;version=0.0.1;q=0.75,\
                           text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(negotiate(Some(with_native)), Format::Protobuf);
        let without =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(negotiate(Some(without)), Format::Text);
    }

    #[test]
    fn everyone_else_gets_text() {
        for accept in [
            None,
            Some(""),
            Some("*/*"),
            Some("application/json"),
            Some("application/vnd.google.protobuf"),
            Some("application/vnd.google.protobuf;proto=other.Message;encoding=delimited"),
            Some(
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text",
            ),
            Some(
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0",
            ),
            Some(
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=x",
            ),
            Some(
                "text/plain,application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.3",
            ),
            Some(";;=,;q=,q=1"),
        ] {
            assert_eq!(negotiate(accept), Format::Text, "{accept:?}");
        }
    }
}
