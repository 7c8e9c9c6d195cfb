//! Explanation as text: a plan for a person's eyes.
//!
//! Owns the words around the numbers of a plan. Never decides, and says nothing that the plan
//! does not contain.

use std::fmt::Write as _;

use meridian_api::quantity::Money;
use meridian_api::units::UnixMillis;

use crate::diagnosis::{amount, cards};
use crate::model::{Cause, Placed, Plan, Snapshot, Unplaced, WaitingIx};
use crate::preempt::words::{lines, victim_line};

/// The plan as text: first what is placed, in order of decision, with hosts and score, then the
/// queue with every reason. Equal plans give equal text.
#[must_use]
pub fn render(snapshot: &Snapshot, plan: &Plan) -> String {
    let mut text = String::new();
    line(&mut text, format_args!("placed {}", plan.placements.len()));
    for placed in &plan.placements {
        render_placed(&mut text, snapshot, placed);
    }
    if !plan.preemptions.is_empty() {
        line(
            &mut text,
            format_args!("room is made for {}", plan.preemptions.len()),
        );
    }
    for made in &plan.preemptions {
        for words in lines(snapshot, made) {
            line(&mut text, format_args!("  {words}"));
        }
    }
    for leaving in &plan.vacating {
        let row = snapshot.reserved.get(leaving.reserved as usize);
        let name = row.map_or("?", |row| row.name.as_str());
        line(
            &mut text,
            format_args!("reservation {name} is about to begin"),
        );
        for victim in &leaving.victims {
            line(
                &mut text,
                format_args!("  {}", victim_line(snapshot, victim)),
            );
        }
    }
    for lapsed in &plan.lapsed {
        let hold = snapshot.holds.get(lapsed.hold.index());
        let gang = hold.map_or_else(String::new, |hold| hold.gang.to_string());
        line(
            &mut text,
            format_args!("hold of {gang} ends: {:?}", lapsed.why),
        );
    }
    line(&mut text, format_args!("waiting {}", plan.unplaced.len()));
    for (position, unplaced) in plan.unplaced.iter().enumerate() {
        render_unplaced(&mut text, snapshot, position + 1, unplaced);
    }
    for held in plan
        .returning
        .iter()
        .filter_map(|ix| snapshot.held.get(ix.index()))
    {
        let cluster = &snapshot.clusters[held.cluster.index()].name;
        let words = format_args!("goes back: gang {} from {cluster}", held.gang);
        line(&mut text, words);
    }
    text
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    writeln!(text, "{words}").expect("a String takes any text");
}

fn name(snapshot: &Snapshot, ix: WaitingIx) -> String {
    let gang = &snapshot.waiting[ix.index()];
    format!("{} gang {}", gang.job, gang.gang.index)
}

fn render_placed(text: &mut String, snapshot: &Snapshot, placed: &Placed) {
    let pool = &snapshot.pools[placed.pool.index()];
    let cluster = &snapshot.clusters[pool.cluster.index()].name;
    let roles = &snapshot.waiting[placed.waiting.index()].shape.roles;
    let who = name(snapshot, placed.waiting);
    let gpus = cards(placed.gpus);
    line(
        text,
        format_args!("  {who} -> {cluster}/{}, {gpus}", pool.name),
    );
    for take in &placed.takes {
        let role = roles.get(take.role as usize).map_or("?", |role| &role.name);
        let place = match take.domains.as_slice() {
            [] => "the pool".to_owned(),
            domains => domains.join("/"),
        };
        line(
            text,
            format_args!(
                "    {role}: {} x {} in {place}, on {} of {} GPUs free",
                take.hosts,
                take.pods_per_host,
                amount(take.free.gpus),
                amount(take.allocatable.gpus),
            ),
        );
    }
    let score = &placed.score;
    line(
        text,
        format_args!(
            "    score: region {}, flavor {}, short of max {}, preferences missed {}, \
             left on hosts {}, left in pool {}",
            score.region_order,
            score.flavor_order,
            score.short_of_max,
            score.preferences_missed,
            score.left_on_hosts,
            score.left_in_pool,
        ),
    );
    if let Some(bill) = bill_words(snapshot, placed) {
        line(text, format_args!("    {bill}"));
    }
}

/// What finishing there takes, where anything was said that could make a difference: a price, a
/// speed, or a wish.
#[must_use]
pub fn bill_words(snapshot: &Snapshot, placed: &Placed) -> Option<String> {
    let gang = snapshot.waiting.get(placed.waiting.index())?;
    let priced = snapshot.pools.iter().any(|pool| pool.facts.price.is_some());
    if !priced && snapshot.choices.get(gang.choice.index()).is_none() {
        return None;
    }
    let bill = &placed.score.bill;
    let (total, gpus, egress) = (Money(bill.total()), Money(bill.gpus), Money(bill.egress));
    let (loss, spread) = (Money(bill.loss), Money(bill.spread));
    let fragmentation = Money(bill.fragmentation);
    let minutes = bill.time.0.div_ceil(60_000);
    Some(format!(
        "cost to finish: {total} (GPUs {gpus}, egress {egress}, loss {loss}, fragmentation \
         {fragmentation}, spread {spread}) in {minutes} min"
    ))
}

fn render_unplaced(text: &mut String, snapshot: &Snapshot, position: usize, entry: &Unplaced) {
    line(
        text,
        format_args!("  {position}. {}", name(snapshot, entry.waiting)),
    );
    for cause in entry.reasons.iter() {
        line(text, format_args!("    {}", cause_line(snapshot, cause)));
    }
    if let Some(start) = entry.start {
        let minutes = |at: UnixMillis| at.since(snapshot.now).0.div_ceil(60_000);
        let latest = start
            .latest
            .map_or("open".to_owned(), |at| minutes(at).to_string());
        let earliest = minutes(start.earliest);
        line(
            text,
            format_args!("    starts in {earliest} to {latest} min"),
        );
    }
}

/// One cause on one line: reason, where, and the words.
#[must_use]
pub fn cause_line(snapshot: &Snapshot, cause: &Cause) -> String {
    let cluster = cause
        .cluster
        .and_then(|ix| snapshot.clusters.get(ix.index()));
    let flavor = cause.flavor.and_then(|ix| snapshot.flavors.get(ix.index()));
    let place: Vec<&str> = [
        cluster.map(|it| it.name.as_str()),
        flavor.map(|it| it.name.as_str()),
    ]
    .into_iter()
    .flatten()
    .collect();
    let place = if place.is_empty() {
        String::new()
    } else {
        format!(" [{}]", place.join(" "))
    };
    format!("{}{place}: {}", cause.reason, cause.message)
}
