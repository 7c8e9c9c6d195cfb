//! Continue tokens: where the next page of a list begins, and at which revision.
//!
//! Owns their form: revision, a dot, and the last key in hexadecimal. Opaque to clients.

use bytes::Bytes;
use meridian_store::Revision;

use crate::status::ApiStatus;

/// Longest token: a key is at most a plural, a namespace and a name, in hexadecimal.
const MAX_TOKEN: usize = 2 * 1024;

/// Where a list goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Continuation {
    /// The revision of the first page.
    pub revision: Revision,
    /// The last key that has been given.
    pub after: Bytes,
}

impl Continuation {
    pub(crate) fn token(&self) -> String {
        let mut token = format!("{}.", self.revision);
        for byte in &self.after {
            for digit in [byte >> 4, byte & 0xf] {
                token.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
            }
        }
        token
    }

    pub(crate) fn parse(token: &str) -> Result<Self, ApiStatus> {
        read(token).ok_or_else(|| {
            let message = "the continue token is not one of ours: list again without it";
            ApiStatus::bad_request(message)
        })
    }
}

fn read(token: &str) -> Option<Continuation> {
    if token.len() > MAX_TOKEN {
        return None;
    }
    let (revision, hex) = token.split_once('.')?;
    let digits: Option<Vec<u8>> = hex
        .chars()
        .map(|digit| u8::try_from(digit.to_digit(16)?).ok())
        .collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    let after: Vec<u8> = digits
        .chunks(2)
        .map(|pair| (pair[0] << 4) | pair[1])
        .collect();
    Some(Continuation {
        revision: Revision(revision.parse().ok()?),
        after: after.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_nonsense_does_not() {
        let place = Continuation {
            revision: Revision(42),
            after: Bytes::from_static(b"objects/widgets/n/a/status"),
        };
        assert_eq!(Continuation::parse(&place.token()), Ok(place));
        for token in [
            "",
            "x",
            "1",
            "1.f",
            "1.zz",
            "x.00",
            "-1.00",
            &"1.".repeat(3000),
        ] {
            assert_eq!(
                Continuation::parse(token).unwrap_err().code(),
                400,
                "{token}"
            );
        }
    }
}
