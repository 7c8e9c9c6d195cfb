//! Properties: text forms read back, canonical JSON ignores the order of keys, no input panics.

#![allow(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use meridian_api::document;
use meridian_api::kinds;
use meridian_api::quantity::{CpuQuantity, GpuQuantity, MemoryQuantity, Money, Span, Speed, Time};
use meridian_api::units::{Mebibytes, MicroMoney, MilliCpus, MilliGpus, Millis, UnixMillis};
use meridian_api::{canonical, fields};
use proptest::prelude::*;
use serde_json::{Map, Value};

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((".{0,6}", inner), 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

fn reversed(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let turned = fields
                .iter()
                .rev()
                .map(|(key, inner)| (key.clone(), reversed(inner)));
            Value::Object(turned.collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(reversed).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// A document of one of the kinds whose spec has the kind's own field names with any values.
fn almost_objects() -> impl Strategy<Value = Value> {
    (0..kinds::ALL.len()).prop_flat_map(|index| {
        let info = &kinds::ALL[index];
        let schema = (info.schema)();
        let names = schema["properties"]["spec"]["properties"]
            .as_object()
            .unwrap();
        let names: Vec<String> = names.keys().cloned().collect();
        prop::collection::vec((prop::sample::select(names), json()), 0..8).prop_map(move |spec| {
            let spec: Map<String, Value> = spec.into_iter().collect();
            serde_json::json!({
                "apiVersion": "meridian.dev/v1alpha1",
                "kind": info.kind,
                "metadata": {"name": "x"},
                "spec": spec,
            })
        })
    })
}

macro_rules! reads_back {
    ($quantity:expr, $type:ty) => {{
        let quantity = $quantity;
        prop_assert_eq!(quantity.to_string().parse::<$type>(), Ok(quantity));
        let json = serde_json::to_value(quantity).unwrap();
        prop_assert_eq!(serde_json::from_value::<$type>(json).unwrap(), quantity);
    }};
}

proptest! {
    #[test]
    fn quantities_read_back(count in any::<u64>(), money in any::<i64>(), small in any::<u32>()) {
        reads_back!(GpuQuantity(MilliGpus(count)), GpuQuantity);
        reads_back!(CpuQuantity(MilliCpus(count)), CpuQuantity);
        reads_back!(Span(Millis(count)), Span);
        reads_back!(Speed(small), Speed);
        // The least amount of money has no positive counterpart to be read as.
        reads_back!(Money(MicroMoney(money.max(-i64::MAX))), Money);
        // Memory is read with six decimals of its unit, so 2^44 MiB (16 EiB) is the most.
        reads_back!(MemoryQuantity(Mebibytes(count % (1 << 43))), MemoryQuantity);
        reads_back!(Time(UnixMillis(money % 200_000_000_000_000)), Time);
    }

    #[test]
    fn any_text_is_a_quantity_or_an_error(text in ".{0,24}") {
        let _ = text.parse::<GpuQuantity>();
        let _ = text.parse::<CpuQuantity>();
        let _ = text.parse::<MemoryQuantity>();
        let _ = text.parse::<Span>();
        let _ = text.parse::<Money>();
        let _ = text.parse::<Speed>();
        let _ = text.parse::<Time>();
    }

    #[test]
    fn canonical_json_ignores_the_order_of_keys(value in json()) {
        let text = canonical::to_string(&value);
        prop_assert_eq!(&canonical::to_string(&reversed(&value)), &text);
        prop_assert_eq!(canonical::sha256(&value), canonical::sha256(&reversed(&value)));
        let read: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(canonical::to_string(&read), text);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = document::parse(&bytes);
    }

    #[test]
    fn no_yaml_like_text_panics(text in "[-:{}\\[\\]&*!|>'\"%@` #a1\\n\\t,?]{0,200}") {
        let _ = document::parse(text.as_bytes());
    }

    #[test]
    fn no_json_panics_and_all_of_it_reads_back(value in json()) {
        let object = serde_json::json!({ "value": value });
        let read = document::parse_one(object.to_string().as_bytes()).unwrap();
        prop_assert_eq!(read, serde_json::from_str::<Value>(&object.to_string()).unwrap());
    }

    #[test]
    fn no_object_panics(value in almost_objects()) {
        let info = kinds::of(&value).unwrap();
        let found = info.check(&value);
        prop_assert!(found.len() <= 2 * fields::MAX_FINDINGS);
        let _ = (info.validate_update)(&value, &value);
    }
}
