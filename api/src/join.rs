//! Join tokens: the secret that lets one agent join as one cluster.
//!
//! Owns how a token is written and read. Never prints the secret by accident, and never decides
//! whether a token is good.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use crate::canonical::hex;

/// Says what the text is, and in which form.
const PREFIX: &str = "mj1.";
/// Bytes of a secret: nobody guesses 256 bits.
const SECRET_BYTES: usize = 32;
/// Longest name of a cluster (RFC 1123 subdomain).
const MAX_NAME: usize = 253;

/// A token: `mj1.<cluster>.<64 hexadecimal digits>`.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    cluster: String,
    secret: [u8; SECRET_BYTES],
}

impl JoinToken {
    /// A token for `cluster`; the secret must be random.
    pub fn new(cluster: impl Into<String>, secret: [u8; SECRET_BYTES]) -> Self {
        Self {
            cluster: cluster.into(),
            secret,
        }
    }

    /// The cluster that it is for.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The token as it is handed on. Whoever reads this can join.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}.{}", self.cluster, hex(&self.secret))
    }

    /// SHA-256 of its secret, in hexadecimal: what a hub keeps of it.
    #[must_use]
    pub fn secret_sha256(&self) -> String {
        hex(&Sha256::digest(self.secret).into())
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({})", self.cluster)
    }
}

/// A text is not a join token. It is not shown: it may be half of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a join token, which is mj1., the name of a cluster, a dot and 64 hex digits")]
pub struct NotAToken;

impl FromStr for JoinToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let rest = text.strip_prefix(PREFIX).ok_or(NotAToken)?;
        let (cluster, digits) = rest.rsplit_once('.').ok_or(NotAToken)?;
        let digits = digits.as_bytes();
        let of_hex = digits.len() == 2 * SECRET_BYTES && digits.iter().all(u8::is_ascii_hexdigit);
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let names = cluster.bytes().all(|byte| is_name(byte) || byte == b'.');
        if !of_hex || !names || cluster.is_empty() || cluster.len() > MAX_NAME {
            return Err(NotAToken);
        }
        let mut secret = [0; SECRET_BYTES];
        for (byte, pair) in secret.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| NotAToken)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| NotAToken)?;
        }
        Ok(Self::new(cluster, secret))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_hides_its_secret() {
        for cluster in ["euw-a", "a.b", "0"] {
            let token = JoinToken::new(cluster, [0xc3; SECRET_BYTES]);
            assert_eq!(token.reveal().parse(), Ok(token.clone()));
            assert_eq!(format!("{token:?}"), format!("JoinToken({cluster})"));
        }
    }

    #[test]
    fn what_is_not_a_token_is_refused_without_being_shown() {
        let digits = "c3".repeat(SECRET_BYTES);
        let long = "a".repeat(MAX_NAME + 1);
        for text in [
            String::new(),
            digits.clone(),
            format!("mj1.{digits}"),
            format!("mj1..{digits}"),
            format!("mj2.euw-a.{digits}"),
            format!("mj1.euw/a.{digits}"),
            format!("mj1.EUW.{digits}"),
            format!("mj1.euw-a.{digits}0"),
            format!("mj1.euw-a.{}", "+3".repeat(SECRET_BYTES)),
            format!("mj1.{long}.{digits}"),
        ] {
            let error = text.parse::<JoinToken>().expect_err(&text);
            assert!(!error.to_string().contains("c3"), "{error}");
        }
    }
}
