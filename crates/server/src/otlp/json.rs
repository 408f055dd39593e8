//! OTLP in its JSON encoding.
//!
//! The generated types read it, except for what proto3 JSON allows and they do not: `null` for any
//! field, arrays left out when empty, and doubles as strings. Those are put right beforehand.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use serde_json::{Map, Number, Value};

/// Decodes a request.
///
/// # Errors
///
/// Says what is malformed and where.
pub(crate) fn decode(body: &[u8]) -> Result<ExportTraceServiceRequest, serde_json::Error> {
    let mut value: Value = serde_json::from_slice(body)?;
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
