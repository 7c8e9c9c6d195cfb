//! The members of a stored object, as spans of its bytes.
//!
//! Owns the one pass that finds where metadata and spec begin and end, so that what is stored a
//! million times alike is read once. Never judges what lies in a span: who reads it does.

/// Where the halves of a stored object are, each of them JSON of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Members<'a> {
    /// `metadata`.
    pub(super) metadata: &'a [u8],
    /// `spec`.
    pub(super) spec: &'a [u8],
}

impl<'a> Members<'a> {
    /// Finds them; `None` for anything but an object with `apiVersion`, `kind`, `metadata`, `spec`
    /// and perhaps `status`, each once, the first two of them plain words. `is_known` says whether
    /// it has been given a spec before that was found here: where that of another ends follows.
    pub(super) fn find(object: &'a [u8], mut is_known: impl FnMut(&[u8]) -> bool) -> Option<Self> {
        let mut rest = Cursor { bytes: object };
        let (mut version, mut kind, mut metadata) = (None, None, None);
        let (mut spec, mut status) = (None, None);
        rest.expect(b'{')?;
        loop {
            let name = rest.value()?;
            rest.expect(b':')?;
            let known = match name {
                b"\"spec\"" => rest.last_value(&mut is_known),
                _ => None,
            };
            let value = known.or_else(|| rest.value())?;
            let place = match name {
                b"\"apiVersion\"" => &mut version,
                b"\"kind\"" => &mut kind,
                b"\"metadata\"" => &mut metadata,
                b"\"spec\"" => &mut spec,
                b"\"status\"" => &mut status,
                _ => return None,
            };
            if place.replace(value).is_some() {
                return None;
            }
            match rest.next()? {
                b',' => {}
                b'}' => break,
                _ => return None,
            }
        }
        let ends = rest.bytes.iter().all(u8::is_ascii_whitespace);
        (ends && is_word(version?) && is_word(kind?)).then_some(Self {
            metadata: metadata?,
            spec: spec?,
        })
    }
}

/// A text of printable ASCII without escapes.
fn is_word(value: &[u8]) -> bool {
    value.first() == Some(&b'"') && value.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

/// What is left to look at.
struct Cursor<'a> {
    bytes: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn skip_space(&mut self) {
        self.bytes = self.bytes.trim_ascii_start();
    }

    /// The next byte that is no space.
    fn next(&mut self) -> Option<u8> {
        self.skip_space();
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    /// The next value, if it is the last one of its object and known: it is not looked through.
    /// Where a value ends follows from its bytes alone, so that what was one value elsewhere is one
    /// here.
    fn last_value(&mut self, is_known: impl FnOnce(&[u8]) -> bool) -> Option<&'a [u8]> {
        self.skip_space();
        let object = self.bytes.trim_ascii_end();
        let value = object.strip_suffix(b"}")?.trim_ascii_end();
        if !is_known(value) {
            return None;
        }
        self.bytes = self.bytes.get(value.len()..)?;
        Some(value)
    }

    /// The next value, whole: a text, or whatever lies between two brackets.
    fn value(&mut self) -> Option<&'a [u8]> {
        self.skip_space();
        let length = match self.bytes.first()? {
            b'"' => text(self.bytes)?,
            b'{' | b'[' => nested(self.bytes)?,
            _ => return None,
        };
        let (value, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(value)
    }
}

/// Bytes of the text that begins here, with its quotes.
fn text(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        let rest = bytes.get(at..)?.iter();
        at += rest
            .take_while(|byte| !matches!(byte, b'"' | b'\\'))
            .count();
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            // What follows is not what it seems.
            _ => at += 2,
        }
    }
}

/// Bytes of the object or list that begins here, with its brackets.
fn nested(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (0_usize, 0_usize);
    loop {
        match bytes.get(at)? {
            b'"' => at += text(bytes.get(at..)?)?,
            b'{' | b'[' => (at, depth) = (at + 1, depth + 1),
            b'}' | b']' => {
                (at, depth) = (at + 1, depth.checked_sub(1)?);
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(object: &str) -> Option<(&str, &str)> {
        let found = Members::find(object.as_bytes(), |_| false)?;
        let text = |span| std::str::from_utf8(span).expect("cut between characters");
        Some((text(found.metadata), text(found.spec)))
    }

    #[test]
    fn spans_are_whole_whatever_is_in_them() {
        let metadata = r#"{"name":"a","note":"}\"]{ \\"}"#;
        let spec = r#"{ "list": [{"é": "]"}, [1, -2.5e3, null]], "spec": {} }"#;
        let words = "\"apiVersion\": \"v1\", \"kind\":\"Job\",\n";
        let object = format!("{{{words}\"spec\":{spec} ,\"metadata\":{metadata}}}\n");
        assert_eq!(found(&object), Some((metadata, spec)));
    }

    #[test]
    fn a_known_spec_is_found_as_one_that_is_not() {
        let words = r#""apiVersion":"v1","kind":"Job","metadata":{}"#;
        let known = r#"{"a":["}"]}"#;
        let is_known = |spec: &[u8]| spec == known.as_bytes();
        for object in [
            format!("{{{words},\"spec\":{known}}}"),
            format!("{{{words},\"spec\": {known} }}\n"),
            format!("{{{words},\"spec\":{known},\"status\":{{}}}}"),
            format!("{{\"spec\":{known},{words}}}"),
            format!("{{{words},\"spec\":{{\"b\":{known}}}}}"),
            format!("{{{words},\"spec\":{known},\"spec\":{known}}}"),
            format!("{{{words},\"spec\":{known}"),
            format!("{{{words},\"spec\":{known}}}}}"),
            format!("{{{words},\"other\":{known}}}"),
        ] {
            let bytes = object.as_bytes();
            let found = Members::find(bytes, is_known);
            assert_eq!(found, Members::find(bytes, |_| false), "{object}");
        }
    }

    #[test]
    fn anything_else_is_left_to_whoever_reads_it_whole() {
        let good = r#"{"apiVersion":"v1","kind":"Job","metadata":{},"spec":{}}"#;
        assert!(found(good).is_some());
        for (from, to) in [
            (r#""kind":"Job","#, ""),
            (r#""kind":"Job""#, r#""kind":"Job","kind":"Job""#),
            (r#""kind":"Job""#, r#""kind":7"#),
            (r#""spec":{}"#, r#""spec":{},"other":{}"#),
            (r#""spec":{}}"#, r#""spec":{}"#),
            (r#""spec":{}}"#, r#""spec":{}} x"#),
            (r#""spec":{}"#, r#""spec":{"a":"#),
            (r#""spec":{}"#, r#""spec":]"#),
            (r#""spec":{}"#, r#""spec":"\"#),
        ] {
            let other = good.replace(from, to);
            assert_ne!(other, good);
            assert_eq!(found(&other), None, "{other}");
        }
    }
}
