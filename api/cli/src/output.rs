//! Standard output: data alone, in the form that was asked for.
//!
//! Owns writing that survives a closed pipe, the structured forms, and tables. Never writes
//! messages: those go to standard error.

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{Table, presets};
use serde_json::{Value, json};

use crate::failure::Failure;

/// Spaces between two columns, as `kubectl` has them.
const GAP: u16 = 3;

/// In which form results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// The same with more columns.
    Wide,
    /// The API object as JSON.
    Json,
    /// The API object as YAML.
    Yaml,
    /// `kind.group/name`, one a line.
    Name,
}

impl Format {
    /// True for text that people read.
    pub(crate) const fn is_text(self) -> bool {
        match self {
            Self::Table | Self::Wide => true,
            Self::Json | Self::Yaml | Self::Name => false,
        }
    }
}

/// Standard output, or whatever stands in for it.
pub(crate) struct Out(Box<dyn Write + Send>);

impl Out {
    pub(crate) fn stdout() -> Self {
        Self(Box::new(io::stdout()))
    }

    #[cfg(test)]
    pub(crate) fn to(writer: impl Write + Send + 'static) -> Self {
        Self(Box::new(writer))
    }

    /// Writes `text` and an end of line.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        let written = self
            .0
            .write_all(text.as_bytes())
            .and_then(|()| self.0.write_all(b"\n"))
            .and_then(|()| self.0.flush());
        written.map_err(unwritten)
    }

    /// Writes text that may have no lines at all.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        match text.trim_end_matches('\n') {
            "" => Ok(()),
            text => self.line(text),
        }
    }

    /// Writes bytes as they are, at once.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.0.write_all(bytes).and_then(|()| self.0.flush());
        written.map_err(unwritten)
    }

    pub(crate) fn json(&mut self, value: &Value) -> Result<(), Failure> {
        self.line(&format!("{value:#}"))
    }

    pub(crate) fn yaml(&mut self, value: &Value) -> Result<(), Failure> {
        self.text(&yaml(value))
    }
}

fn unwritten(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::Output(error),
    }
}

/// A value as YAML.
pub(crate) fn yaml(value: &Value) -> String {
    // A JSON value has no form that YAML lacks.
    serde_saphyr::to_string(value).unwrap_or_else(|error| format!("# not YAML: {error}\n"))
}

/// Objects as one value: the object itself, or a `List`.
pub(crate) fn list_of(mut items: Vec<Value>, single: bool) -> Value {
    if single && items.len() == 1 {
        return items.remove(0);
    }
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Columns and rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) titles: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Grid {
    pub(crate) fn new(titles: &[&str]) -> Self {
        Self {
            titles: titles.iter().map(|title| (*title).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Makes the columns at least as wide as they were in `widths`, and remembers how wide they
    /// are: parts of one table that are printed one after the other line up.
    pub(crate) fn widen(&mut self, widths: &mut Vec<usize>) {
        widths.resize(self.titles.len().max(widths.len()), 0);
        for row in self.rows.iter().chain([&self.titles]) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in self.rows.iter_mut().chain([&mut self.titles]) {
            for (cell, width) in row.iter_mut().zip(widths.iter()) {
                *cell = format!("{cell:width$}");
            }
        }
    }

    /// Columns side by side, without lines and without spaces at the end.
    pub(crate) fn to_text(&self, headers: Headers) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if headers == Headers::Shown {
            table.set_header(self.titles.clone());
        }
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| shown(cell)).collect::<Vec<_>>());
        }
        table.column_iter_mut().for_each(|column| {
            column.set_padding((0, GAP));
        });
        table.trim_fmt()
    }
}

/// Whether tables have their line of titles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Headers {
    /// They have.
    Shown,
    /// They have not.
    Hidden,
}

/// A cell on one line that no terminal can be steered with.
fn shown(cell: &str) -> String {
    cell.chars()
        .map(|character| {
            if character.is_control() {
                ' '
            } else {
                character
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let failure = Out::to(Closed).line("x").expect_err("nobody reads");
        assert!(matches!(failure, Failure::ClosedPipe));
        assert_eq!(failure.exit(), crate::exit::Exit::Done);
        assert_eq!(failure.report("x"), None);
    }

    #[test]
    fn a_table_is_columns_and_nothing_else() {
        let mut grid = Grid::new(&["NAME", "GPUS", "AGE"]);
        grid.row(vec!["a".into(), "128".into(), "5m".into()]);
        grid.row(vec![
            "long-name".into(),
            "0.5".into(),
            "\u{1b}[31m2h\n".into(),
        ]);
        insta::assert_snapshot!(grid.to_text(Headers::Shown), @r#"
        NAME        GPUS   AGE
        a           128    5m
        long-name   0.5     [31m2h
        "#);
        assert_eq!(grid.to_text(Headers::Hidden).lines().count(), 2);
    }
}
