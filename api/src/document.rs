//! Documents: from YAML or JSON text to values, within limits, with line numbers.
//!
//! Owns the limits on what people send. Knows no kind; says where the text is wrong, not what it
//! means.

use serde_json::Value;
use serde_saphyr::budget::BudgetBreach;

use crate::errors::{ApiError, ErrorCode};

/// Most bytes of one object as JSON: what one value of the store may have, so that it fits in a
/// transaction beside its decision.
pub const MAX_OBJECT_BYTES: usize = 384 * 1024;
/// Most bytes of one text with many documents: a thousand objects of ordinary size (16 KiB).
pub const MAX_TEXT_BYTES: usize = 16 * 1024 * 1024;
/// Deepest nesting. Our kinds need 12, a pod template about 15; recursion of this depth fits any
/// stack.
pub const MAX_DEPTH: usize = 64;
/// Most values in one object: at four bytes for the shortest (`[0],`) no honest object of
/// [`MAX_OBJECT_BYTES`] has more.
pub const MAX_NODES: usize = 100_000;
/// Most documents in one text.
pub const MAX_DOCUMENTS: usize = 1000;
/// One document of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Line of the text, from 1, on which it begins.
    pub line: u64,
    /// What it says; always an object.
    pub value: Value,
}

/// Reads every document of a text. Empty documents are skipped; a `List` is not opened.
///
/// # Errors
/// `MalformedDocument`, `TooLarge` or `TooDeep`, with line and numbers.
pub fn parse(text: &[u8]) -> Result<Vec<Document>, ApiError> {
    if text.len() > MAX_TEXT_BYTES {
        let message = format!(
            "the text has {} bytes, at most {MAX_TEXT_BYTES} fit",
            text.len()
        );
        return Err(ApiError::new(ErrorCode::TooLarge, message).help("split it into several"));
    }
    let text = std::str::from_utf8(text).map_err(|error| {
        let line = text[..error.valid_up_to()]
            .split(|byte| *byte == b'\n')
            .count();
        let message = format!("line {line}: the text is not UTF-8");
        ApiError::new(ErrorCode::MalformedDocument, message).help("save it as UTF-8")
    })?;
    let documents = match parse_json(text) {
        Some(value) => vec![Document { line: 1, value }],
        None => parse_yaml(text)?,
    };
    for document in &documents {
        check_limits(document)?;
    }
    Ok(documents)
}

/// Reads the one document of a text.
///
/// # Errors
/// As [`parse`]; also when there is none, or more than one.
pub fn parse_one(text: &[u8]) -> Result<Value, ApiError> {
    let mut documents = parse(text)?;
    match (documents.pop(), documents.len()) {
        (Some(only), 0) => Ok(only.value),
        (Some(_), others) => {
            let message = format!("one document is wanted, the text has {}", others + 1);
            Err(ApiError::new(ErrorCode::MalformedDocument, message).help("send them one by one"))
        }
        (None, _) => Err(ApiError::new(
            ErrorCode::MalformedDocument,
            "the text is empty",
        )),
    }
}

/// JSON is read by its own rules (escapes of surrogate pairs are not YAML); what is not JSON may
/// still be YAML in braces.
fn parse_json(text: &str) -> Option<Value> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// What aliases replay is bounded by the parser's own default, a million events.
fn parse_yaml(text: &str) -> Result<Vec<Document>, ApiError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_documents: MAX_DOCUMENTS,
        },
        // YAML 1.2: only true and false are booleans; `no` is the code of Norway.
        strict_booleans: true,
        with_snippet: false,
    };
    let read = serde_saphyr::from_multiple_with_options::<serde_saphyr::Spanned<Value>>;
    let documents = read(text, options).map_err(|error| yaml_error(&error))?;
    let documents = documents.into_iter();
    let document = |read: serde_saphyr::Spanned<Value>| Document {
        line: read.defined.line(),
        value: read.value,
    };
    Ok(documents.map(document).collect())
}

fn yaml_error(error: &serde_saphyr::Error) -> ApiError {
    let place = error
        .location()
        .map_or_else(String::new, |at| format!("line {}: ", at.line()));
    if let serde_saphyr::Error::Budget { breach, .. } = error.without_snippet() {
        return match breach {
            BudgetBreach::Depth { .. } => {
                let message = format!("{place}nested more than {MAX_DEPTH} levels deep");
                ApiError::new(ErrorCode::TooDeep, message)
            }
            BudgetBreach::Documents { documents } => {
                let message = format!("{place}{documents} documents, at most {MAX_DOCUMENTS} fit");
                ApiError::new(ErrorCode::TooLarge, message).help("split the text into several")
            }
            _ => {
                let message = format!("{place}more values, anchors or aliases than are read");
                ApiError::new(ErrorCode::TooDeep, message).help("write aliases out, or split it")
            }
        };
    }
    let message = match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("{place}the key {key:?} is there twice")
        }
        other => format!("the text is not YAML: {other}"),
    };
    ApiError::new(ErrorCode::MalformedDocument, message)
        .help("look at indentation, quotes and brackets there")
}

fn check_limits(document: &Document) -> Result<(), ApiError> {
    let line = document.line;
    if !document.value.is_object() {
        let message = format!("line {line}: an object with apiVersion, kind and spec is wanted");
        return Err(ApiError::new(ErrorCode::MalformedDocument, message));
    }
    let mut nodes = 0;
    let depth = measure(&document.value, &mut nodes);
    if depth > MAX_DEPTH {
        let message = format!("line {line}: nested {depth} levels deep, at most {MAX_DEPTH} fit");
        return Err(ApiError::new(ErrorCode::TooDeep, message));
    }
    if nodes > MAX_NODES {
        let message =
            format!("line {line}: the object has {nodes} values, at most {MAX_NODES} fit");
        return Err(ApiError::new(ErrorCode::TooDeep, message));
    }
    let bytes = document.value.to_string().len();
    if bytes > MAX_OBJECT_BYTES {
        let message =
            format!("line {line}: the object has {bytes} bytes, at most {MAX_OBJECT_BYTES} fit");
        let help = "keep scripts and data out of the template: mount or download them";
        return Err(ApiError::new(ErrorCode::TooLarge, message).help(help));
    }
    Ok(())
}

/// Depth of a value, counting it into `nodes`. Recursion ends: both parsers bound the depth.
fn measure(value: &Value, nodes: &mut usize) -> usize {
    *nodes += 1;
    let deepest = match value {
        Value::Object(fields) => fields.values().map(|inner| measure(inner, nodes)).max(),
        Value::Array(items) => items.iter().map(|inner| measure(inner, nodes)).max(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return 0,
    };
    1 + deepest.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fails(text: &str) -> ApiError {
        parse(text.as_bytes()).unwrap_err()
    }

    #[test]
    fn several_documents_with_their_lines() {
        let text = "# a comment\na: 1\n---\n\n---\nb: [x, y]\n---\n{c: 2}\n";
        let documents = parse(text.as_bytes()).unwrap();
        let lines: Vec<u64> = documents.iter().map(|document| document.line).collect();
        assert_eq!(lines, [2, 6, 8]);
        assert_eq!(documents[1].value, json!({"b": ["x", "y"]}));
        let json = parse_one(br#"{"a": "\ud83d\ude00", "b": [1.5]}"#).unwrap();
        assert_eq!(json, json!({"a": "\u{1f600}", "b": [1.5]}));
    }

    #[test]
    fn wrong_text_is_named_by_line() {
        let error = fails("a: 1\nb: [1, 2\nc: 3\n");
        assert_eq!(error.code, ErrorCode::MalformedDocument);
        assert!(error.message.contains("line 3"), "{}", error.message);
        let error = fails("a: 1\na: 2\n");
        assert!(error.message.contains("line 2"), "{}", error.message);
        let error = fails("---\n- 1\n");
        assert!(
            error.message.contains("line 2: an object"),
            "{}",
            error.message
        );
        assert_eq!(
            parse(b"a: \xff\n").unwrap_err().code,
            ErrorCode::MalformedDocument
        );
        assert_eq!(
            parse_one(b"").unwrap_err().code,
            ErrorCode::MalformedDocument
        );
        assert_eq!(
            parse_one(b"a: 1\n---\nb: 1").unwrap_err().code,
            ErrorCode::MalformedDocument
        );
    }

    #[test]
    fn deep_text_is_refused() {
        for open in ["[", "{\"a\":"] {
            let close = if open == "[" { "]" } else { "}" };
            for depth in [MAX_DEPTH, 120, 10_000, 200_000] {
                let text = format!("{{\"x\":{}1{}}}", open.repeat(depth), close.repeat(depth));
                assert!(parse(text.as_bytes()).is_err(), "{open} {depth}");
            }
            let depth = MAX_DEPTH - 1;
            let text = format!("{{\"x\":{}1{}}}", open.repeat(depth), close.repeat(depth));
            assert!(parse(text.as_bytes()).is_ok(), "{open}");
        }
        let text = format!("x: {}1{}", "[".repeat(70), "]".repeat(70));
        assert_eq!(
            fails(&text).code,
            ErrorCode::TooDeep,
            "{}",
            fails(&text).message
        );
    }

    #[test]
    fn large_text_is_refused() {
        let error = fails(&format!("a: {}", "x".repeat(MAX_OBJECT_BYTES)));
        assert_eq!(error.code, ErrorCode::TooLarge);
        assert!(error.message.contains("393216"), "{}", error.message);
        assert_eq!(
            fails(&"a: 1\n---\n".repeat(MAX_DOCUMENTS + 1)).code,
            ErrorCode::TooLarge
        );
        assert_eq!(
            fails(&" ".repeat(MAX_TEXT_BYTES + 1)).code,
            ErrorCode::TooLarge
        );
    }

    #[test]
    fn a_bomb_of_aliases_is_refused() {
        let level = |level: usize| {
            let refs = vec![format!("*a{}", level - 1); 10].join(", ");
            format!("a{level}: &a{level} [{refs}]\n")
        };
        let first = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        let text: String = std::iter::once(first).chain((1..10).map(level)).collect();
        let error = fails(&text);
        assert_ne!(error.code, ErrorCode::Internal, "{}", error.message);
    }
}
