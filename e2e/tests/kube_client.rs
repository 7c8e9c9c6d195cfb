//! kube-rs, the client that operators are written with, works against the hub as it does against
//! any API server.
//!
//! Owns that promise: objects, list-watch, streaming list, and history that is gone.

use futures::{Stream, StreamExt as _, pin_mut};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use meridian_api::units::Millis;
use meridian_e2e::deployment::{Deployment, DeploymentPlan, LONG, SOON};
use serde_json::json;

fn api(fleet: &Deployment, kind: &str) -> Api<DynamicObject> {
    let url = fleet.hubs[0].url().parse().expect("an address");
    let client = kube::Client::try_from(kube::Config::new(url)).expect("a client");
    let kind = GroupVersionKind::gvk("meridian.dev", "v1alpha1", kind);
    Api::all_with(client, &ApiResource::from_gvk(&kind))
}

fn region(name: &str) -> DynamicObject {
    let object = json!({
        "apiVersion": "meridian.dev/v1alpha1", "kind": "Region",
        "metadata": {"name": name}, "spec": {"timeZone": "Europe/Dublin"}
    });
    serde_json::from_value(object).expect("an object")
}

#[tokio::test]
async fn objects_are_made_read_changed_and_deleted() {
    let fleet = Deployment::of_hubs(&DeploymentPlan::default()).await;
    let regions = api(&fleet, "Region");
    let (post, merge) = (PostParams::default(), PatchParams::default());
    let made = regions.create(&post, &region("a")).await.expect("created");
    assert!(made.metadata.uid.is_some() && made.metadata.resource_version.is_some());
    let again = regions
        .create(&post, &region("a"))
        .await
        .expect_err("the name is taken");
    assert!(
        matches!(&again, kube::Error::Api(status) if status.code == 409),
        "{again}"
    );

    let labels = json!({"metadata": {"labels": {"tier": "gold"}}});
    let patched = regions
        .patch("a", &merge, &Patch::Merge(&labels))
        .await
        .expect("patched");
    assert_eq!(patched.metadata.labels.expect("labels")["tier"], "gold");
    let labelled = ListParams::default().labels("tier=gold");
    assert_eq!(
        regions.list(&labelled).await.expect("listed").items.len(),
        1
    );
    let other = ListParams::default().labels("tier=silver");
    assert_eq!(regions.list(&other).await.expect("listed").items.len(), 0);

    // What was read before somebody else wrote cannot be written back.
    let mut old = made;
    old.metadata.labels = Some([("tier".to_owned(), "lead".to_owned())].into());
    let stale = regions
        .replace("a", &post, &old)
        .await
        .expect_err("somebody wrote");
    assert!(
        matches!(&stale, kube::Error::Api(status) if status.reason == "Conflict"),
        "{stale}"
    );

    for name in ["b", "c", "d", "e"] {
        regions.create(&post, &region(name)).await.expect("created");
    }
    let mut page = ListParams::default().limit(2);
    let mut names = Vec::new();
    loop {
        let list = regions.list(&page).await.expect("a page");
        assert!(list.items.len() <= 2);
        names.extend(
            list.items
                .into_iter()
                .filter_map(|object| object.metadata.name),
        );
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);

    regions
        .delete("a", &DeleteParams::default())
        .await
        .expect("deleted");
    assert!(regions.get_opt("a").await.expect("read").is_none());
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}

/// The next event that is not about the beginning, as a word and a name.
async fn next(
    fleet: &Deployment,
    events: &mut (impl Stream<Item = watcher::Result<Event<DynamicObject>>> + Unpin),
) -> (&'static str, String) {
    let event = fleet.harness().clock().timeout(SOON, events.next()).await;
    let event = event
        .expect("an event comes in time")
        .expect("a watcher has no end");
    let name = |object: DynamicObject| object.metadata.name.unwrap_or_default();
    match event.expect("the watch goes well") {
        Event::Init => ("init", String::new()),
        Event::InitApply(object) => ("listed", name(object)),
        Event::InitDone => ("done", String::new()),
        Event::Apply(object) => ("applied", name(object)),
        Event::Delete(object) => ("deleted", name(object)),
    }
}

/// Everything that a watcher of this configuration sees while objects come, change and go.
async fn seen_by(fleet: &Deployment, config: watcher::Config) -> Vec<(&'static str, String)> {
    let regions = api(fleet, "Region");
    let post = PostParams::default();
    regions
        .create(&post, &region("before"))
        .await
        .expect("created");
    let events = watcher(regions.clone(), config);
    pin_mut!(events);
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(next(fleet, &mut events).await);
    }
    regions
        .create(&post, &region("during"))
        .await
        .expect("created");
    seen.push(next(fleet, &mut events).await);
    let patch = Patch::Merge(json!({"metadata": {"labels": {"tier": "gold"}}}));
    regions
        .patch("before", &PatchParams::default(), &patch)
        .await
        .expect("patched");
    seen.push(next(fleet, &mut events).await);
    for name in ["during", "before"] {
        regions
            .delete(name, &DeleteParams::default())
            .await
            .expect("deleted");
        seen.push(next(fleet, &mut events).await);
    }
    seen
}

#[tokio::test]
async fn watchers_see_every_change_in_order_however_they_begin() {
    let fleet = Deployment::of_hubs(&DeploymentPlan::default()).await;
    let expected = [
        ("init", ""),
        ("listed", "before"),
        ("done", ""),
        ("applied", "during"),
        ("applied", "before"),
        ("deleted", "during"),
        ("deleted", "before"),
    ];
    let expected = expected.map(|(word, name)| (word, name.to_owned()));
    let list_watch = watcher::Config::default();
    assert_eq!(
        seen_by(&fleet, list_watch).await,
        expected,
        "list, then watch"
    );
    let streaming = watcher::Config::default().streaming_lists();
    assert_eq!(seen_by(&fleet, streaming).await, expected, "streaming list");
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}

#[tokio::test]
async fn a_watcher_goes_on_over_a_restart_of_the_hub() {
    let mut fleet = Deployment::of_hubs(&DeploymentPlan::default()).await;
    let events = watcher(api(&fleet, "Region"), watcher::Config::default());
    pin_mut!(events);
    assert_eq!(next(&fleet, &mut events).await.0, "init");
    assert_eq!(next(&fleet, &mut events).await.0, "done");
    fleet.hubs[0].process.kill().await.expect("killed");
    fleet.hubs[0].start_again().await;
    let regions = api(&fleet, "Region");
    let made = async || {
        regions
            .create(&PostParams::default(), &region("after"))
            .await
            .ok()
    };
    fleet.until("the hub takes writes", LONG, made).await;
    // The watcher tells of the broken connection, and of the object once it has another.
    let told = async {
        loop {
            let event = events.next().await.expect("a watcher has no end");
            if let Ok(Event::Apply(object) | Event::InitApply(object)) = event {
                return object;
            }
        }
    };
    let told = fleet
        .harness()
        .clock()
        .timeout(LONG, told)
        .await
        .expect("told in time");
    assert_eq!(told.metadata.name.as_deref(), Some("after"));
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}

#[tokio::test]
async fn history_that_is_gone_is_answered_with_410() {
    let plan = DeploymentPlan {
        history: Some(Millis(500)),
        ..DeploymentPlan::default()
    };
    let mut fleet = Deployment::of_hubs(&plan).await;
    let regions = api(&fleet, "Region");
    let first = regions
        .create(&PostParams::default(), &region("a"))
        .await
        .expect("created");
    let first = first.metadata.resource_version.expect("it has one");
    regions
        .create(&PostParams::default(), &region("b"))
        .await
        .expect("created");
    // What a hub has seen itself it may remember for longer: another life has only the store.
    fleet.hubs[0].process.kill().await.expect("killed");
    fleet.hubs[0].start_again().await;
    let regions = api(&fleet, "Region");
    let gone = async || {
        let watch = regions
            .watch(&WatchParams::default().timeout(1), &first)
            .await;
        let status = match watch {
            Err(kube::Error::Api(status)) => status,
            Err(error) => panic!("{error}"),
            Ok(events) => {
                pin_mut!(events);
                match events.next().await {
                    Some(Ok(WatchEvent::Error(status))) => status,
                    // Not compacted yet: the second object is still told.
                    Some(Ok(_)) | None => return None,
                    Some(Err(error)) => panic!("{error}"),
                }
            }
        };
        Some(status)
    };
    let status = fleet.until("the first revision is gone", SOON, gone).await;
    assert_eq!(
        (status.code, status.reason.as_str()),
        (410, "Expired"),
        "{status:?}"
    );
    // Whoever lists again goes on.
    assert_eq!(
        regions
            .list(&ListParams::default())
            .await
            .expect("listed")
            .items
            .len(),
        2
    );
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}
