//! Attribute values as text, the way the Collector writes them into `Map(String, String)` columns.
//!
//! It follows `pcommon.Value.AsString`: scalars as they print, bytes in base64, arrays and maps as
//! compact JSON with sorted keys and no HTML escapes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};

/// The value as text. An absent value is the empty string.
pub(crate) fn text(value: Option<&AnyValue>) -> Cow<'_, str> {
    let Some(value) = value.and_then(|value| value.value.as_ref()) else {
        return Cow::Borrowed("");
    };
    match value {
        Value::StringValue(text) => Cow::Borrowed(text),
        Value::BoolValue(flag) => Cow::Borrowed(if *flag { "true" } else { "false" }),
        Value::IntValue(number) => Cow::Owned(number.to_string()),
        Value::DoubleValue(number) => Cow::Owned(match json_number(*number) {
            Some(number) => number,
            None => format!("json: unsupported value: {}", non_finite(*number)),
        }),
        Value::BytesValue(bytes) => Cow::Owned(BASE64.encode(bytes)),
        Value::ArrayValue(_) | Value::KvlistValue(_) => {
            let mut out = String::new();
            // JSON has no NaN and no infinity. The Collector then stores nothing at all.
            Cow::Owned(if json(&mut out, Some(value)).is_some() { out } else { String::new() })
        }
        // A reference into a profile's string table: it means nothing in a span.
        Value::StringValueStrindex(_) => Cow::Borrowed(""),
    }
}

/// Appends the value as JSON, or returns `None` where JSON cannot express it.
fn json(out: &mut String, value: Option<&Value>) -> Option<()> {
    match value {
        None | Some(Value::StringValueStrindex(_)) => out.push_str("null"),
        Some(Value::StringValue(text)) => json_string(out, text),
        Some(Value::BoolValue(flag)) => out.push_str(if *flag { "true" } else { "false" }),
        Some(Value::IntValue(number)) => out.push_str(&number.to_string()),
        Some(Value::DoubleValue(number)) => out.push_str(&json_number(*number)?),
        Some(Value::BytesValue(bytes)) if bytes.is_empty() => out.push_str("null"),
        Some(Value::BytesValue(bytes)) => json_string(out, &BASE64.encode(bytes)),
        Some(Value::ArrayValue(array)) => {
            out.push('[');
            for (index, item) in array.values.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                json(out, item.value.as_ref())?;
            }
            out.push(']');
        }
        Some(Value::KvlistValue(list)) => json_object(out, &list.values)?,
    }
    Some(())
}

/// Keys sorted; of equal keys the last one counts.
fn json_object(out: &mut String, entries: &[KeyValue]) -> Option<()> {
    let entries: BTreeMap<_, _> =
        entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_ref())).collect();
    out.push('{');
    for (index, (key, value)) in entries.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        json_string(out, key);
        out.push(':');
        json(out, value.and_then(|value| value.value.as_ref()))?;
    }
    out.push('}');
    Some(())
}

fn json_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' | '\u{2028}' | '\u{2029}' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A number as ECMAScript prints it: plain within [1e-6, 1e21), else with an exponent.
fn json_number(number: f64) -> Option<String> {
    if !number.is_finite() {
        return None;
    }
    let size = number.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{number:e}");
        // Rust prints 1e21, Go prints 1e+21.
        return Some(match text.split_once('e') {
            Some((digits, exponent)) if !exponent.starts_with('-') => {
                format!("{digits}e+{exponent}")
            }
            _ => text,
        });
    }
    Some(number.to_string())
}

fn non_finite(number: f64) -> &'static str {
    if number.is_nan() {
        "NaN"
    } else if number > 0.0 {
        "+Inf"
    } else {
        "-Inf"
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::{ArrayValue, KeyValueList};

    use super::*;

    fn any(value: Value) -> AnyValue {
        AnyValue { value: Some(value) }
    }

    fn array(values: Vec<Value>) -> Value {
        Value::ArrayValue(ArrayValue { values: values.into_iter().map(any).collect() })
    }

    fn map(entries: Vec<(&str, Value)>) -> Value {
        let values = entries
            .into_iter()
            .map(|(key, value)| KeyValue {
                key: key.to_owned(),
                value: Some(any(value)),
                ..Default::default()
            })
            .collect();
        Value::KvlistValue(KeyValueList { values })
    }

    fn string(text: &str) -> Value {
        Value::StringValue(text.to_owned())
    }

    #[test]
    fn scalars_print_as_the_collector_prints_them() {
        for (value, expected) in [
            (string("<a & b>"), "<a & b>"),
            (Value::BoolValue(true), "true"),
            (Value::IntValue(i64::MIN), "-9223372036854775808"),
            (Value::DoubleValue(1.0), "1"),
            (Value::DoubleValue(0.1), "0.1"),
            (Value::DoubleValue(-0.0), "-0"),
            (Value::DoubleValue(1e20), "100000000000000000000"),
            (Value::DoubleValue(1e21), "1e+21"),
            (Value::DoubleValue(1.5e-7), "1.5e-7"),
            (Value::DoubleValue(0.000001), "0.000001"),
            (Value::DoubleValue(f64::NAN), "json: unsupported value: NaN"),
            (Value::DoubleValue(f64::NEG_INFINITY), "json: unsupported value: -Inf"),
            (Value::BytesValue(vec![0, 255, 16]), "AP8Q"),
            (Value::BytesValue(vec![]), ""),
            (Value::StringValueStrindex(3), ""),
        ] {
            assert_eq!(text(Some(&any(value))), expected);
        }
        assert_eq!(text(None), "");
        assert_eq!(text(Some(&AnyValue { value: None })), "");
    }

    #[test]
    fn arrays_and_maps_are_compact_json() {
        let nested = map(vec![
            ("z", array(vec![Value::IntValue(1), string("a\"\n<\u{2028}\u{1}"), array(vec![])])),
            ("a", Value::BytesValue(vec![1, 2])),
            ("m", map(vec![])),
            ("z", array(vec![Value::DoubleValue(2.5), Value::BytesValue(vec![])])),
        ]);
        assert_eq!(text(Some(&any(nested))), r#"{"a":"AQI=","m":{},"z":[2.5,null]}"#);
        let list = array(vec![string("a\"\n<\u{2028}\u{1}"), Value::BoolValue(false)]);
        assert_eq!(text(Some(&any(list))), r#"["a\"\n<\u2028\u0001",false]"#);
    }

    #[test]
    fn what_json_cannot_express_is_stored_as_nothing() {
        assert_eq!(text(Some(&any(array(vec![Value::DoubleValue(f64::NAN)])))), "");
    }
}
