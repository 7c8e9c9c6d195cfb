//! Promise: every mutation passes admission, with what is stored then; what admission read and
//! adds is part of the change's own transaction.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use meridian_apiserver::admission::Operation;
use meridian_apiserver::{Admission, Admitted, Change, Denial, DryRun, FieldError, FieldReason};
use meridian_store::{Compare, MemoryStore, Op, Operation as StoreCall, Store as _, keys};
use serde_json::json;

use crate::fixture::{GADGETS, MERGE, Server, WIDGETS, gadget_object, widget_object};

/// Notes what it is asked, refuses size 13, fills in a color, and warns of large ones.
#[derive(Default)]
struct House {
    asked: Mutex<Vec<(Operation, String, DryRun)>>,
}

#[async_trait]
impl Admission for House {
    async fn admit(&self, change: &Change<'_>) -> Result<Admitted, Denial> {
        let asked = (change.operation, change.key.name.clone(), change.dry_run);
        self.asked.lock().unwrap().push(asked);
        let mut admitted = Admitted::default();
        let Some(after) = change.after else {
            return Ok(admitted);
        };
        if after["spec"]["size"] == 13 {
            let mut denial = Denial::forbidden("13 brings bad luck, take 12 (BadLuck)");
            denial.causes = vec![FieldError::new("spec.size", FieldReason::Forbidden, "13")];
            return Err(denial);
        }
        if after["spec"]["size"].as_u64() > Some(100) {
            admitted.warnings.push("that is large".to_owned());
        }
        if after["spec"].get("color").is_none() {
            let mut object = after.clone();
            object["spec"]["color"] = json!("blue");
            admitted.object = Some(object);
        }
        Ok(admitted)
    }
}

#[tokio::test(start_paused = true)]
async fn every_mutation_is_admitted_and_no_read_is() {
    let house = Arc::new(House::default());
    let server = Server::admitting(house.clone());
    server
        .post(&format!("{WIDGETS}?dryRun=All"), &widget_object("a", 1))
        .await
        .ok();
    server.make("a", 1).await;
    let one = format!("{WIDGETS}/a");
    server.get(&one).await.ok();
    server
        .patch(&one, MERGE, &json!({"spec": {"size": 2}}))
        .await
        .ok();
    let status = json!({"status": {"phase": "x"}});
    server
        .patch(&format!("{one}/status"), MERGE, &status)
        .await
        .ok();
    server.delete(&one).await.ok();
    let asked: Vec<_> = house
        .asked
        .lock()
        .unwrap()
        .iter()
        .map(|(what, _, dry)| (*what, *dry))
        .collect();
    assert_eq!(
        asked,
        [
            (Operation::Create, DryRun::All),
            (Operation::Create, DryRun::No),
            (Operation::Update, DryRun::No),
            (Operation::UpdateStatus, DryRun::No),
            (Operation::Delete, DryRun::No),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_why_and_defaults_and_warnings_arrive() {
    let server = Server::admitting(Arc::new(House::default()));
    let refused = server
        .post(WIDGETS, &widget_object("a", 13))
        .await
        .failed(403);
    assert_eq!(refused["reason"], "Forbidden");
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.size");
    assert!(refused["message"].as_str().unwrap().contains("BadLuck"));
    let made = server.post(WIDGETS, &widget_object("a", 101)).await;
    assert_eq!(made.warnings(), ["299 - \"that is large\""]);
    assert_eq!(made.ok()["spec"]["color"], "blue");
    let stored = server.get(&format!("{WIDGETS}/a")).await.ok();
    assert_eq!(stored["spec"]["color"], "blue");
    let patch = json!({"spec": {"size": 13}});
    server
        .patch(&format!("{WIDGETS}/a"), MERGE, &patch)
        .await
        .failed(403);
}

/// At most one gadget, judged by what is stored; each admitted one leaves a mark.
struct AtMostOne(Mutex<Option<MemoryStore>>);

#[async_trait]
impl Admission for AtMostOne {
    async fn admit(&self, change: &Change<'_>) -> Result<Admitted, Denial> {
        let store = self.0.lock().unwrap().clone().expect("set before use");
        let range = keys::objects("gadgets", None);
        let (count, _) = store
            .count(StoreCall::Probe, range)
            .await
            .expect("readable");
        // Both read before either writes: only the transaction can tell them apart.
        tokio::task::yield_now().await;
        if change.operation == Operation::Create && count > 0 {
            return Err(Denial::forbidden("one gadget is enough"));
        }
        let key = bytes(&format!("marks/{}", change.key.name));
        let mark = Op::Put {
            key,
            value: bytes("1"),
            lease: None,
        };
        Ok(Admitted {
            puts: vec![mark],
            ..Admitted::default()
        })
    }
}

fn bytes(text: &str) -> bytes::Bytes {
    bytes::Bytes::from(text.to_owned())
}

#[tokio::test(start_paused = true)]
async fn two_writers_cannot_each_accept_half_of_a_contradiction() {
    let admission = Arc::new(AtMostOne(Mutex::new(None)));
    let server = Server::admitting(admission.clone());
    *admission.0.lock().unwrap() = Some(server.store.clone());
    let (one, two) = (gadget_object("one"), gadget_object("two"));
    let (one, two) = tokio::join!(server.post(GADGETS, &one), server.post(GADGETS, &two));
    let mut codes = [one.code, two.code];
    codes.sort_unstable();
    assert_eq!(codes, [201, 403]);
    let marks = meridian_store::KeyRange::prefix("marks/");
    let marks = server.store.count(StoreCall::Probe, marks).await.unwrap().0;
    assert_eq!(marks, 1, "a refused change leaves nothing");
}

/// Admits under a condition that never holds.
struct Stale;

#[async_trait]
impl Admission for Stale {
    async fn admit(&self, _change: &Change<'_>) -> Result<Admitted, Denial> {
        let never = Compare::ModRevision(bytes("some/key"), meridian_store::Revision(999));
        Ok(Admitted {
            compares: vec![never],
            ..Admitted::default()
        })
    }
}

#[tokio::test(start_paused = true)]
async fn what_admission_read_is_compared_and_the_tries_are_bounded() {
    let server = Server::admitting(Arc::new(Stale));
    let failed = server
        .post(WIDGETS, &widget_object("a", 1))
        .await
        .failed(409);
    assert_eq!(failed["reason"], "Conflict");
    server.get(&format!("{WIDGETS}/a")).await.failed(404);
}
