//! Who may speak for one cluster: the record, and how each event changes it.
//!
//! Owns the rules of joining, renewing and revoking, as pure functions of what is stored. A list of
//! the keys that count, not of those that do not: what is forgotten is refused. Never does I/O.

use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::quantity::{Span, Time};
use meridian_api::units::UnixMillis;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use super::names::KeyHash;

/// One cluster's record, as stored under `identities/<cluster>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Record {
    /// The newest invitation; an older one counts no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) invitation: Option<Invitation>,
    /// The agent that has joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) agent: Option<Joined>,
    /// When the right of an agent was last taken away, if none has joined since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) revoked: Option<UnixMillis>,
}

/// A token that was given out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Invitation {
    /// SHA-256 of its secret, in hexadecimal.
    pub(crate) secret_sha256: String,
    /// Hub's clock.
    pub(crate) expires: UnixMillis,
    /// Whose agent it let in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) used_by: Option<KeyHash>,
}

/// The keys of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Joined {
    /// The key that it uses.
    pub(crate) key: KeyHash,
    /// The key that it has a certificate for and has not used yet. Its first use ends the former.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<KeyHash>,
    /// When it joined; hub's clock.
    pub(crate) since: UnixMillis,
}

impl Record {
    /// Makes a token good, in place of an earlier one.
    pub(crate) fn invite(
        &mut self,
        cluster: &str,
        secret_sha256: String,
        expires: UnixMillis,
    ) -> Result<(), ApiError> {
        if let Some(joined) = &self.agent {
            let message = format!(
                "cluster {cluster:?} has an agent (key {}), which joined at {}",
                joined.key.short(),
                Time(joined.since)
            );
            return Err(
                ApiError::new(ErrorCode::ClusterClaimed, message).help(format!(
                    "if it is to be replaced, take its right away first: meridian cluster revoke \
                 {cluster}; what runs there goes on"
                )),
            );
        }
        self.invitation = Some(Invitation {
            secret_sha256,
            expires,
            used_by: None,
        });
        Ok(())
    }

    /// Lets the holder of `key` in on a token. The same key again: no change.
    pub(crate) fn join(
        &mut self,
        cluster: &str,
        secret_sha256: &str,
        key: &KeyHash,
        now: UnixMillis,
    ) -> Result<(), ApiError> {
        let presented = secret_sha256.as_bytes();
        let known = self.invitation.as_mut();
        let known =
            known.filter(|known| bool::from(known.secret_sha256.as_bytes().ct_eq(presented)));
        let Some(invitation) = known else {
            return Err(unknown_token(cluster));
        };
        let again = format!("make another one: meridian cluster join {cluster}");
        match &invitation.used_by {
            Some(user) if user != key => {
                let message = format!(
                    "the join token of cluster {cluster:?} was used by another agent (key {})",
                    user.short()
                );
                return Err(
                    ApiError::new(ErrorCode::JoinTokenUsed, message).help(format!(
                        "a token lets one agent join once; if that was not yours: meridian cluster \
                     revoke {cluster}; then {again}"
                    )),
                );
            }
            Some(_) | None => {}
        }
        if now > invitation.expires {
            let ago = Span(now.since(invitation.expires));
            let message = format!("the join token of cluster {cluster:?} expired {ago} ago");
            return Err(ApiError::new(ErrorCode::JoinTokenExpired, message).help(again));
        }
        if invitation.used_by.is_none() {
            invitation.used_by = Some(key.clone());
            self.agent = Some(Joined {
                key: key.clone(),
                next: None,
                since: now,
            });
            self.revoked = None;
        }
        Ok(())
    }

    /// Lets the agent in that holds `key`, and says when it joined. Its first use of the next key
    /// ends the former one.
    pub(crate) fn admit(&mut self, cluster: &str, key: &KeyHash) -> Result<UnixMillis, ApiError> {
        let Some(joined) = &mut self.agent else {
            return Err(self.absent(cluster));
        };
        if joined.next.as_ref() == Some(key) {
            joined.key = key.clone();
            joined.next = None;
        }
        if joined.key == *key {
            return Ok(joined.since);
        }
        let message = format!(
            "cluster {cluster:?} is bound to another agent (key {}, this one has {})",
            joined.key.short(),
            key.short()
        );
        Err(ApiError::new(ErrorCode::ClusterClaimed, message).help(format!(
            "run one agent per cluster, with its own state folder; if this one is to take over: \
             meridian cluster revoke {cluster}, then meridian cluster join {cluster}"
        )))
    }

    /// Promises a certificate for `next` to the agent that holds `key`.
    pub(crate) fn renew(
        &mut self,
        cluster: &str,
        key: &KeyHash,
        next: &KeyHash,
    ) -> Result<(), ApiError> {
        self.admit(cluster, key)?;
        if let Some(joined) = &mut self.agent
            && joined.key != *next
        {
            joined.next = Some(next.clone());
        }
        Ok(())
    }

    /// Takes every right away.
    pub(crate) fn revoke(&mut self, now: UnixMillis) {
        if self.agent.is_some() || self.invitation.is_some() {
            *self = Self {
                revoked: Some(now),
                ..Self::default()
            };
        }
    }

    /// True while the holder of `key` may speak for the cluster.
    pub(crate) fn allows(&self, key: &KeyHash) -> bool {
        self.agent
            .as_ref()
            .is_some_and(|joined| joined.key == *key || joined.next.as_ref() == Some(key))
    }

    fn absent(&self, cluster: &str) -> ApiError {
        let error = if let Some(at) = self.revoked {
            let message = format!(
                "the agent of cluster {cluster:?} was revoked at {}",
                Time(at)
            );
            ApiError::new(ErrorCode::AgentRevoked, message)
        } else {
            let message = format!("no agent of cluster {cluster:?} has joined");
            ApiError::new(ErrorCode::AgentNotJoined, message)
        };
        error.help(format!("let it join: meridian cluster join {cluster}"))
    }
}

/// A token that was never given out, or that another has replaced. Says no more to a stranger.
pub(crate) fn unknown_token(cluster: &str) -> ApiError {
    let message = format!("there is no such join token for cluster {cluster:?}");
    ApiError::new(ErrorCode::JoinTokenUnknown, message).help(format!(
        "only the newest token counts; make another one: meridian cluster join {cluster}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMillis = UnixMillis(1_700_000_000_000);
    const LATER: UnixMillis = UnixMillis(NOW.0 + 900_000);

    fn key(name: &str) -> KeyHash {
        KeyHash::of(name.as_bytes())
    }

    fn invited() -> Record {
        let mut record = Record::default();
        let invited = record.invite("euw-a", "secret".to_owned(), LATER);
        invited.expect("nobody has joined");
        record
    }

    fn joined() -> Record {
        let mut record = invited();
        let done = record.join("euw-a", "secret", &key("first"), NOW);
        done.expect("the token is good");
        record
    }

    fn code<T>(done: Result<T, ApiError>) -> Option<ErrorCode> {
        done.err().map(|error| error.code)
    }

    #[test]
    fn a_token_lets_one_key_in_once() {
        let mut record = joined();
        let before = record.clone();
        assert_eq!(
            code(record.join("euw-a", "secret", &key("first"), NOW)),
            None
        );
        assert_eq!(record, before, "a repeated call changes nothing");
        let other = record.join("euw-a", "secret", &key("second"), NOW);
        assert_eq!(code(other), Some(ErrorCode::JoinTokenUsed));
        assert!(!record.allows(&key("second")));
    }

    #[test]
    fn a_token_that_is_wrong_replaced_or_late_lets_nobody_in() {
        let refused = |record: &mut Record, secret, now| {
            let before = record.clone();
            let code = code(record.join("euw-a", secret, &key("first"), now));
            assert_eq!(*record, before);
            code
        };
        let unknown = Some(ErrorCode::JoinTokenUnknown);
        assert_eq!(refused(&mut Record::default(), "secret", NOW), unknown);
        assert_eq!(refused(&mut invited(), "secreT", NOW), unknown);
        assert_eq!(refused(&mut invited(), "", NOW), unknown);
        let late = refused(&mut invited(), "secret", UnixMillis(LATER.0 + 1));
        assert_eq!(late, Some(ErrorCode::JoinTokenExpired));
        let mut replaced = invited();
        replaced
            .invite("euw-a", "other".to_owned(), LATER)
            .expect("nobody has joined");
        assert_eq!(refused(&mut replaced, "secret", NOW), unknown);
    }

    #[test]
    fn while_an_agent_is_in_nobody_is_invited() {
        let again = joined().invite("euw-a", "other".to_owned(), LATER);
        assert_eq!(code(again), Some(ErrorCode::ClusterClaimed));
    }

    #[test]
    fn the_first_use_of_the_next_key_ends_the_former() {
        let mut record = joined();
        let (first, second, third) = (key("first"), key("second"), key("third"));
        record.renew("euw-a", &first, &second).expect("its own key");
        // The answer was lost: it asks again with another key, under the key that it has.
        record.renew("euw-a", &first, &third).expect("its own key");
        assert!(record.allows(&first) && record.allows(&third) && !record.allows(&second));
        record.admit("euw-a", &third).expect("promised");
        assert!(!record.allows(&first) && record.allows(&third));
        let old = record.admit("euw-a", &first);
        assert_eq!(code(old), Some(ErrorCode::ClusterClaimed));
    }

    #[test]
    fn a_revoked_agent_is_out_until_it_joins_again() {
        let mut record = joined();
        record.revoke(LATER);
        assert!(!record.allows(&key("first")));
        let out = record.admit("euw-a", &key("first"));
        assert_eq!(code(out), Some(ErrorCode::AgentRevoked));
        let out = record.renew("euw-a", &key("first"), &key("second"));
        assert_eq!(code(out), Some(ErrorCode::AgentRevoked));
        let before = record.clone();
        record.revoke(UnixMillis(LATER.0 + 1));
        assert_eq!(record, before, "a repeated call changes nothing");
        record
            .invite("euw-a", "other".to_owned(), UnixMillis(LATER.0 + 2))
            .expect("nobody is in");
        let done = record.join("euw-a", "other", &key("first"), LATER);
        assert_eq!(code(done), None);
        assert!(record.allows(&key("first")) && record.revoked.is_none());
    }

    #[test]
    fn an_open_token_ends_with_a_revocation() {
        let mut record = invited();
        record.revoke(NOW);
        let done = record.join("euw-a", "secret", &key("first"), NOW);
        assert_eq!(code(done), Some(ErrorCode::JoinTokenUnknown));
    }
}
