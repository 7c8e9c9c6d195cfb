//! Promise (invariant S21): a watcher that applies events from any point on ends with exactly the
//! list, and each event's object is the one that the store holds at the event's revision.

use std::collections::BTreeMap;

use meridian_store::keys::{ObjectKey, Part};
use meridian_store::{Compare, MemoryStore, Op, Operation as StoreCall, Revision, Store as _, Txn};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::{ALL_WIDGETS, MERGE, Server, WIDGETS, version, widget_object};

/// Writes a status as a decision does: into the store itself, under a compare of the spec.
pub(crate) async fn write_status(store: &MemoryStore, name: &str, status: &Value) -> Revision {
    let key = ObjectKey {
        plural: "widgets".to_owned(),
        namespace: Some("team".to_owned()),
        name: name.to_owned(),
    };
    let spec = store
        .get(StoreCall::Probe, key.part(Part::Spec))
        .await
        .unwrap()
        .expect("there");
    let put = Op::Put {
        key: key.part(Part::Status),
        value: status.to_string().into(),
        lease: None,
    };
    let txn = Txn {
        compares: vec![Compare::ModRevision(spec.key, spec.mod_revision)],
        success: vec![put],
        failure: Vec::new(),
    };
    let response = store.txn(StoreCall::CommitDecision, txn).await.unwrap();
    assert!(response.succeeded);
    response.revision
}

#[derive(Clone, Debug)]
enum Step {
    Create(u8),
    Resize(u8, u8),
    Label(u8, bool),
    Decide(u8, u8),
    /// One transaction that decides all that exist.
    DecideAll(u8),
    Delete(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0_u8..5;
    prop_oneof![
        3 => name.clone().prop_map(Step::Create),
        2 => (name.clone(), 1_u8..9).prop_map(|(name, size)| Step::Resize(name, size)),
        2 => (name.clone(), any::<bool>()).prop_map(|(name, on)| Step::Label(name, on)),
        3 => (name.clone(), 0_u8..9).prop_map(|(name, phase)| Step::Decide(name, phase)),
        1 => (0_u8..9).prop_map(Step::DecideAll),
        2 => name.prop_map(Step::Delete),
    ]
}

async fn run(server: &Server, step: &Step) {
    let path = |name: u8| format!("{WIDGETS}/w{name}");
    let exists = async |name: u8| server.get(&path(name)).await.code == 200;
    let decide = async |name: u8, phase: u8| {
        write_status(
            &server.store,
            &format!("w{name}"),
            &json!({"phase": phase.to_string()}),
        )
        .await
    };
    match *step {
        Step::Create(name) => {
            server
                .post(WIDGETS, &widget_object(&format!("w{name}"), 1))
                .await;
        }
        Step::Resize(name, size) => {
            server
                .patch(&path(name), MERGE, &json!({"spec": {"size": size}}))
                .await;
        }
        Step::Label(name, on) => {
            let label = if on { json!("x") } else { Value::Null };
            let patch = json!({"metadata": {"labels": {"app": label}}});
            server.patch(&path(name), MERGE, &patch).await;
        }
        Step::Decide(name, phase) => {
            if exists(name).await {
                decide(name, phase).await;
            }
        }
        Step::DecideAll(phase) => decide_all(server, phase).await,
        Step::Delete(name) => {
            server.delete(&path(name)).await;
        }
    }
}

async fn decide_all(server: &Server, phase: u8) {
    let range = meridian_store::keys::objects("widgets", None);
    let page = server
        .store
        .range(StoreCall::Probe, range, 100, None)
        .await
        .unwrap();
    let status = json!({"phase": phase.to_string()}).to_string();
    let mut txn = Txn::default();
    for entry in page.entries {
        let Some((key, Part::Spec)) = ObjectKey::parse(&entry.key) else {
            continue;
        };
        txn.compares
            .push(Compare::ModRevision(entry.key, entry.mod_revision));
        let value = status.clone().into();
        txn.success.push(Op::Put {
            key: key.part(Part::Status),
            value,
            lease: None,
        });
    }
    if !txn.success.is_empty() {
        assert!(
            server
                .store
                .txn(StoreCall::CommitDecision, txn)
                .await
                .unwrap()
                .succeeded
        );
    }
}

type Objects = BTreeMap<String, Value>;

fn by_name(list: &Value) -> Objects {
    let items = list["items"].as_array().expect("items").iter();
    items
        .map(|item| {
            (
                item["metadata"]["name"]
                    .as_str()
                    .expect("a name")
                    .to_owned(),
                item.clone(),
            )
        })
        .collect()
}

/// What a list with `selector` shows at each revision of the run, and the list there is now.
async fn follow(
    server: &Server,
    from: u64,
    mut objects: Objects,
    selector: &str,
) -> Result<Objects, TestCaseError> {
    let query = format!("watch=1&timeoutSeconds=1&resourceVersion={from}{selector}");
    let mut last = from;
    for event in server
        .watch(&format!("{ALL_WIDGETS}?{query}"))
        .await
        .rest()
        .await
    {
        prop_assert!(event.version() >= last, "events go forward");
        last = event.version();
        let name = event.name().to_owned();
        if event.what == "DELETED" {
            prop_assert!(objects.remove(&name).is_some(), "{} was never there", name);
            continue;
        }
        let at = format!("{ALL_WIDGETS}?resourceVersion={last}&resourceVersionMatch=Exact");
        let stored = by_name(&server.get(&at).await.ok());
        prop_assert_eq!(stored.get(&name), Some(&event.object), "at {}", last);
        let before = objects.insert(name, event.object);
        prop_assert_eq!(before.is_some(), event.what == "MODIFIED");
    }
    Ok(objects)
}

async fn check(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let server = Server::new();
    let mut points = Vec::new();
    for selector in ["", "&labelSelector=app%3Dx"] {
        let list = server.get(&format!("{ALL_WIDGETS}?{selector}")).await.ok();
        points.push((selector, version(&list), by_name(&list)));
    }
    for step in &steps {
        run(&server, step).await;
        for selector in ["", "&labelSelector=app%3Dx"] {
            let list = server.get(&format!("{ALL_WIDGETS}?{selector}")).await.ok();
            points.push((selector, version(&list), by_name(&list)));
        }
    }
    // The one that has followed all along, and another whose cache has only just begun.
    for server in [&server, &server.replica()] {
        for (selector, from, objects) in &points {
            let list = server.get(&format!("{ALL_WIDGETS}?{selector}")).await.ok();
            let followed = follow(server, *from, objects.clone(), selector).await?;
            prop_assert_eq!(
                followed,
                by_name(&list),
                "from {} with {:?}",
                from,
                selector
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_watcher_ends_with_exactly_the_list(steps in prop::collection::vec(step(), 1..24)) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(check(steps))?;
    }
}
