//! `replay`: decides a recorded round once more and says whether the plan is the same. Asks no
//! hub: the decision runs here.
//!
//! Owns the words around the comparison and its exit code. Compares nothing itself.

use std::fmt::Write as _;
use std::path::Path;

use meridian_api::quantity::Time;
use meridian_sim::record::{CODE, Difference, Recorded, read};
use serde_json::{Value, json};

use crate::args::ReplayArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

/// Differences shown as text: as many as are read before the cause is looked for.
const SHOWN: usize = 20;

pub(crate) fn run(context: &mut Context, args: &ReplayArgs) -> Result<Exit, Failure> {
    let (mut values, mut exit) = (Vec::new(), Exit::Done);
    for path in &args.files {
        let recorded = open(path)?;
        let differences = recorded.replay();
        if !differences.is_empty() {
            exit = Exit::Differs;
        }
        let file = path.display().to_string();
        let value = value(&file, &recorded, &differences);
        if args.output.is_text() {
            context.out.text(&text(&file, &recorded, &differences))?;
        }
        values.push(value);
    }
    let whole = crate::output::list_of(values, args.files.len() == 1);
    context.print_value(args.output, &whole).transpose()?;
    Ok(exit)
}

fn open(path: &Path) -> Result<Recorded, Failure> {
    let bytes = std::fs::read(path).map_err(|source| Failure::Unreadable {
        path: path.display().to_string(),
        source,
    })?;
    read(&bytes).map_err(|error| Failure::Ended {
        code: None,
        message: format!("{}: {error}", path.display()),
        fix: "a hub writes such files into the folder that recordRounds names".to_owned(),
        exit: Exit::Error,
    })
}

fn text(file: &str, recorded: &Recorded, differences: &[Difference]) -> String {
    let (snapshot, plan) = (&recorded.snapshot, &recorded.plan);
    let verdict = if differences.is_empty() {
        "equal".to_owned()
    } else {
        format!("{} differences", differences.len())
    };
    let mut text = format!(
        "{file}: {verdict}; revision {} at {}, {} placed, {} waiting; recorded by {}, replayed by \
         {CODE}",
        snapshot.revision,
        Time(snapshot.now),
        plan.placements.len(),
        plan.unplaced.len(),
        recorded.code,
    );
    for difference in differences.iter().take(SHOWN) {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{}", difference.what);
        for line in &difference.recorded {
            let _ = write!(text, "\n- {line}");
        }
        for line in &difference.here {
            let _ = write!(text, "\n+ {line}");
        }
    }
    if let Some(more) = differences
        .len()
        .checked_sub(SHOWN)
        .filter(|more| *more > 0)
    {
        let _ = write!(text, "\n{more} more; -o json shows all");
    }
    text
}

fn value(file: &str, recorded: &Recorded, differences: &[Difference]) -> Value {
    let difference = |each: &Difference| {
        let (what, recorded) = (&each.what, &each.recorded);
        json!({"what": what, "recorded": recorded, "here": each.here})
    };
    json!({
        "file": file,
        "equal": differences.is_empty(),
        "revision": recorded.snapshot.revision,
        "at": Time(recorded.snapshot.now),
        "recordedBy": recorded.code,
        "replayedBy": CODE,
        "placed": recorded.plan.placements.len(),
        "waiting": recorded.plan.unplaced.len(),
        "differences": differences.iter().map(difference).collect::<Vec<Value>>(),
    })
}
