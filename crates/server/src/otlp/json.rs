//! OTLP in its JSON encoding.
//!
//! The generated types read it, except for what proto3 JSON allows and they do not: `null` for any
//! field, arrays left out when empty, and doubles as strings. Those are put right beforehand.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use serde::de::Error;
use serde_json::{Map, Number, Value};

/// Decodes a request.
///
/// # Errors
///
/// Says what is malformed and where.
pub(crate) fn decode(body: &[u8]) -> Result<ExportTraceServiceRequest, serde_json::Error> {
    let mut value: Value = serde_json::from_slice(body)?;
    // serde would take an array for a struct, field by field.
    if !value.is_object() {
        return Err(serde_json::Error::custom("a request is a JSON object"));
    }
    normalise(&mut value);
    serde_json::from_value(value)
}

/// The depth is bounded: serde_json refuses to parse more than 128 levels.
fn normalise(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(normalise),
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            for list in ["arrayValue", "kvlistValue"] {
                if let Some(Value::Object(list)) = fields.get_mut(list) {
                    list.entry("values").or_insert_with(|| Value::Array(Vec::new()));
                }
            }
            double(fields);
            fields.values_mut().for_each(normalise);
        }
        _ => {}
    }
}

/// `"1.5"` becomes a number. NaN and the infinities, which JSON numbers lack, stay text.
fn double(fields: &mut Map<String, Value>) {
    let Some(Value::String(text)) = fields.get("doubleValue") else {
        return;
    };
    let Ok(number) = text.parse::<f64>() else {
        return;
    };
    match Number::from_f64(number) {
        Some(number) => {
            fields.insert("doubleValue".to_owned(), Value::Number(number));
        }
        None => {
            if let Some(text) = fields.remove("doubleValue") {
                fields.insert("stringValue".to_owned(), text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;

    use super::*;

    /// The attributes of one span, written by hand as senders in other languages write them.
    fn attributes(json: &str) -> Vec<Option<Any>> {
        let request = format!(
            r#"{{"resourceSpans": [{{"resource": null, "futureField": {{"a": [1]}}, "scopeSpans":
            [{{"spans": [{{"traceId": "5B8EFFF798038103D269B633813FC60C", "spanId":
            "eee19b7ec3c1b174", "kind": 2, "startTimeUnixNano": "1544712660000000000",
            "endTimeUnixNano": 1544712661000000000, "events": null,
            "attributes": {json}}}]}}]}}]}}"#
        );
        let mut request = decode(request.as_bytes()).unwrap();
        let span = request.resource_spans.remove(0).scope_spans.remove(0).spans.remove(0);
        assert_eq!(span.trace_id[..2], [0x5b, 0x8e]);
        assert_eq!(span.span_id.len(), 8);
        assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, 1_000_000_000);
        span.attributes.into_iter().map(|entry| entry.value.and_then(|any| any.value)).collect()
    }

    #[test]
    fn numbers_may_be_text() {
        let json = r#"[{"key": "a", "value": {"intValue": "-9223372036854775808"}},
            {"key": "b", "value": {"intValue": 7}},
            {"key": "c", "value": {"doubleValue": "1.5"}},
            {"key": "d", "value": {"doubleValue": 2}},
            {"key": "e", "value": {"doubleValue": "NaN"}},
            {"key": "f", "value": {"bytesValue": "AP8="}}]"#;
        let expected = [
            Any::IntValue(i64::MIN),
            Any::IntValue(7),
            Any::DoubleValue(1.5),
            Any::DoubleValue(2.0),
            Any::StringValue("NaN".to_owned()),
            Any::BytesValue(vec![0, 255]),
        ];
        assert_eq!(attributes(json), expected.map(Some));
    }

    #[test]
    fn empty_lists_and_nulls_may_be_left_out() {
        let json = r#"[{"key": "a", "value": {"arrayValue": {}}},
            {"key": "b", "value": {"kvlistValue": {"values": [{"key": "k", "value": null}]}}},
            {"key": "c"}, {"key": "d", "value": {}},
            {"key": "e", "value": {"stringValue": "x", "intValue": null}}]"#;
        let values = attributes(json);
        assert!(matches!(&values[0], Some(Any::ArrayValue(list)) if list.values.is_empty()));
        assert!(matches!(&values[1], Some(Any::KvlistValue(list)) if list.values.len() == 1));
        assert_eq!(values[2..4], [None, None]);
        assert_eq!(values[4], Some(Any::StringValue("x".to_owned())));
    }
}
