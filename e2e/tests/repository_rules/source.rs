//! Rules about source files: headers, sizes, bans and reasons.
//!
//! Owns their limits and the rooms where what is banned elsewhere may stand. Never checks what
//! rustfmt and clippy check already.

use std::path::Path;

use crate::files::{self, File};
use crate::rust_text::RustText;
use crate::{Finding, none_found};

/// A file holds one thought: most lines that are not test code.
const FILE_LINES: usize = 600;
/// A function fits one screen.
const FUNCTION_LINES: usize = 70;
/// Two files fit side by side.
const LINE_COLUMNS: usize = 100;

/// What may stand only in a named room, and why.
struct Ban {
    /// Code, from a word's start.
    code: &'static str,
    /// Paths, by their beginning, where it may stand.
    rooms: &'static [&'static str],
    /// Whether test code may hold it too.
    in_tests: InTests,
    /// What to use instead.
    instead: &'static str,
}

#[derive(PartialEq, Eq)]
enum InTests {
    Allowed,
    Banned,
}

const RUNTIME: &[&str] = &["proto/runtime/src/"];

const BANS: &[Ban] = &[
    Ban {
        code: "tokio::spawn(",
        rooms: RUNTIME,
        in_tests: InTests::Allowed,
        instead: "Tasks::spawn: a task has a name and a supervisor",
    },
    Ban {
        code: "thread::spawn(",
        rooms: RUNTIME,
        in_tests: InTests::Allowed,
        instead: "Tasks::spawn: a simulation cannot steer a thread",
    },
    Ban {
        code: "thread::sleep(",
        rooms: RUNTIME,
        in_tests: InTests::Banned,
        instead: "wait for the event with a deadline",
    },
    Ban {
        code: "Instant::now(",
        rooms: RUNTIME,
        in_tests: InTests::Banned,
        instead: "Clock::boot",
    },
    Ban {
        code: "SystemTime::now(",
        rooms: RUNTIME,
        in_tests: InTests::Banned,
        instead: "Clock::wall",
    },
    Ban {
        code: "Timestamp::now(",
        rooms: RUNTIME,
        in_tests: InTests::Banned,
        instead: "Clock::wall",
    },
    Ban {
        code: "Zoned::now(",
        rooms: RUNTIME,
        in_tests: InTests::Banned,
        instead: "Clock::wall",
    },
    Ban {
        code: "tokio::time::",
        rooms: RUNTIME,
        in_tests: InTests::Allowed,
        instead: "Clock: a scaled clock cannot drive tokio's",
    },
    Ban {
        code: "from_os_rng(",
        rooms: RUNTIME,
        in_tests: InTests::Banned,
        instead: "Random, handed in",
    },
    Ban {
        code: "Uuid::new_v4(",
        rooms: RUNTIME,
        in_tests: InTests::Banned,
        instead: "Random::uid",
    },
    Ban {
        code: "todo!(",
        rooms: &[],
        in_tests: InTests::Banned,
        instead: "the code, or an error that says what is unsupported",
    },
    Ban {
        code: "unimplemented!(",
        rooms: &[],
        in_tests: InTests::Banned,
        instead: "the code, or an error that says what is unsupported",
    },
];

/// True for files that are test code as a whole.
fn is_test_file(path: &str) -> bool {
    let folders = ["/tests/", "/benches/"];
    let names = ["/tests.rs", "_tests.rs"];
    folders.iter().any(|folder| path.contains(folder))
        || names.iter().any(|name| path.ends_with(name))
}

fn missing_header(file: &File) -> Vec<Finding> {
    if file.text.starts_with("//! ") {
        return Vec::new();
    }
    vec![Finding::new(&file.path, 1, "does not begin with `//!`")]
}

fn long_file(file: &File) -> Vec<Finding> {
    let lines = RustText::new(&file.text, is_test_file(&file.path)).lines_of_code();
    if lines <= FILE_LINES {
        return Vec::new();
    }
    vec![Finding::new(
        &file.path,
        0,
        format!("{lines} lines of code, at most {FILE_LINES}"),
    )]
}

fn long_functions(file: &File) -> Vec<Finding> {
    let functions = RustText::new(&file.text, false).functions();
    let finding = |function: crate::rust_text::Function| {
        let lines = function.last_line - function.first_line + 1;
        let what = format!(
            "fn {} has {lines} lines, at most {FUNCTION_LINES}",
            function.name
        );
        (lines > FUNCTION_LINES).then(|| Finding::new(&file.path, function.first_line, what))
    };
    functions.into_iter().filter_map(finding).collect()
}

fn long_lines(file: &File) -> Vec<Finding> {
    let is_rust = Path::new(&file.path)
        .extension()
        .is_some_and(|extension| extension == "rs");
    let rust = is_rust.then(|| RustText::new(&file.text, false));
    let finding = |(index, line): (usize, &str)| {
        let columns = line.chars().count();
        // Expected output of a program is as wide as the program writes it.
        let is_output = rust
            .as_ref()
            .is_some_and(|rust| rust.is_within_literal(index + 1, line));
        let what = format!("{columns} columns, at most {LINE_COLUMNS}");
        (columns > LINE_COLUMNS && !is_output).then(|| Finding::new(&file.path, index + 1, what))
    };
    file.text.lines().enumerate().filter_map(finding).collect()
}

fn banned_code(file: &File) -> Vec<Finding> {
    let rust = RustText::new(&file.text, is_test_file(&file.path));
    let mut findings = Vec::new();
    for ban in BANS {
        if ban.rooms.iter().any(|room| file.path.starts_with(room)) {
            continue;
        }
        for line in rust.lines_with(ban.code) {
            if ban.in_tests == InTests::Banned || !rust.is_test(line) {
                let what = format!("`{}` is banned here: use {}", ban.code, ban.instead);
                findings.push(Finding::new(&file.path, line, what));
            }
        }
    }
    findings
}

fn exceptions_without_reason(file: &File) -> Vec<Finding> {
    let rust = RustText::new(&file.text, false);
    let starts = [
        "#[allow(",
        "#![allow(",
        "#[expect(",
        "#![expect(",
        "#[cfg_attr(",
        "#![cfg_attr(",
    ];
    let mut findings = Vec::new();
    for start in starts {
        for (line, attribute) in rust.attributes(start) {
            let lifts_a_lint = attribute.contains("allow(") || attribute.contains("expect(");
            if lifts_a_lint && !attribute.contains("reason") {
                findings.push(Finding::new(
                    &file.path,
                    line,
                    format!("`{start}…` has no reason"),
                ));
            }
        }
    }
    for (line, attribute) in rust.attributes("#[ignore") {
        if !attribute.contains('=') {
            findings.push(Finding::new(&file.path, line, "`#[ignore]` has no reason"));
        }
    }
    findings
}

fn over(suffix: &str, rule: fn(&File) -> Vec<Finding>) -> Vec<Finding> {
    files::ending(suffix).iter().flat_map(rule).collect()
}

#[test]
fn every_file_says_what_it_is() {
    let fix = "begin with `//!`: what it is, what it owns, what it never does";
    none_found(over(".rs", missing_header), fix);
}

#[test]
fn a_file_is_one_thought() {
    none_found(
        over(".rs", long_file),
        "split it by noun, each file named after what it owns",
    );
}

#[test]
fn a_function_fits_one_screen() {
    none_found(
        over(".rs", long_functions),
        "name its steps and give each a function",
    );
}

#[test]
fn a_line_fits_the_page() {
    let mut findings = Vec::new();
    for suffix in [".rs", ".proto", ".sh", ".py"] {
        findings.extend(over(suffix, long_lines));
    }
    none_found(
        findings,
        "break the line; rustfmt leaves comments and literals alone",
    );
}

#[test]
fn clocks_and_tasks_stay_in_their_rooms() {
    none_found(
        over(".rs", banned_code),
        "take the seam as an argument, see proto/runtime",
    );
}

#[test]
fn every_exception_has_a_reason() {
    none_found(
        over(".rs", exceptions_without_reason),
        "add `reason = \"…\"` to the attribute",
    );
}

/// The rule finds exactly these lines in a file at `path`.
#[track_caller]
fn finds(rule: fn(&File) -> Vec<Finding>, path: &str, text: &str, lines: &[usize]) {
    let file = File {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let found: Vec<usize> = rule(&file).iter().map(|finding| finding.line).collect();
    assert_eq!(found, lines, "in {text}");
}

#[test]
fn the_header_rule_can_fail() {
    finds(missing_header, "hub/src/a.rs", "//! What it is.\n", &[]);
    finds(
        missing_header,
        "hub/src/a.rs",
        "// What it is.\nfn a() {}\n",
        &[1],
    );
    finds(missing_header, "hub/src/a.rs", "", &[1]);
}

#[test]
fn the_size_rules_can_fail() {
    let long = "let a = 1;\n".repeat(FILE_LINES + 1);
    finds(long_file, "hub/src/a.rs", &long, &[0]);
    finds(long_file, "hub/tests/a.rs", &long, &[]);
    finds(
        long_file,
        "hub/src/a.rs",
        &format!("#[cfg(test)]\nmod tests {{\n{long}}}\n"),
        &[],
    );

    let body = |lines: usize| format!("\nfn a() {{\n{}}}\n", "    b();\n".repeat(lines));
    finds(
        long_functions,
        "hub/src/a.rs",
        &body(FUNCTION_LINES - 2),
        &[],
    );
    finds(
        long_functions,
        "hub/src/a.rs",
        &body(FUNCTION_LINES - 1),
        &[2],
    );

    let wide = format!("ok\n{}\n", "é".repeat(LINE_COLUMNS + 1));
    finds(long_lines, "hub/src/a.rs", &wide, &[2]);
    finds(long_lines, "hub/src/a.rs", &"é".repeat(LINE_COLUMNS), &[]);
    let output = format!("let a = \"\n{}\n\";\n", "é".repeat(LINE_COLUMNS + 1));
    finds(long_lines, "hub/src/a.rs", &output, &[]);
    let comment = format!("// {}\n", "é".repeat(LINE_COLUMNS));
    finds(long_lines, "hub/src/a.rs", &comment, &[1]);
}

#[test]
fn the_ban_can_fail() {
    let text = "fn a() {\n    tokio::spawn(b());\n    let t = std::time::Instant::now();\n}\n";
    finds(banned_code, "hub/src/a.rs", text, &[2, 3]);
    finds(banned_code, "proto/runtime/src/a.rs", text, &[]);
    finds(banned_code, "hub/tests/a.rs", text, &[3]);
    finds(
        banned_code,
        "hub/src/a.rs",
        "// tokio::spawn(b())\nlet a = \"tokio::spawn(\";\n",
        &[],
    );
    finds(
        banned_code,
        "hub/src/a.rs",
        "fn a() {\n    todo!()\n}\n",
        &[2],
    );
}

#[test]
fn the_reason_rule_can_fail() {
    let good = "#[expect(\n    dead_code,\n    reason = \"because\",\n)]\nfn a() {}\n";
    finds(exceptions_without_reason, "hub/src/a.rs", good, &[]);
    finds(
        exceptions_without_reason,
        "hub/src/a.rs",
        "\n#[allow(dead_code)]\nfn a() {}\n",
        &[2],
    );
    let nested = "#![cfg_attr(test, allow(dead_code))]\n";
    finds(exceptions_without_reason, "hub/src/a.rs", nested, &[1]);
    finds(
        exceptions_without_reason,
        "hub/src/a.rs",
        "#[ignore]\nfn a() {}\n",
        &[1],
    );
    finds(
        exceptions_without_reason,
        "hub/src/a.rs",
        "#[ignore = \"why\"]\nfn a() {}\n",
        &[],
    );
    finds(
        exceptions_without_reason,
        "hub/src/a.rs",
        "a.expect(\"b\")",
        &[],
    );
}
