//! Tables of text with named columns: what every file that the simulator reads is.
//!
//! Owns finding columns by name, numbers with the line that they stand on, and the words of what
//! is wrong. Never knows what a row means.

use std::fmt::Display;
use std::str::FromStr;

use csv::StringRecord;
use meridian_api::fields::nearest;

/// Rows of one table. The largest public trace of jobs has three million, and a row becomes about
/// half a kilobyte: more would not fit a workstation.
pub const MAX_ROWS: usize = 10_000_000;

/// What is wrong with a table, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The text is no table.
    #[error("{file} line {line}: {message}")]
    Malformed {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: u64,
        /// What is wrong.
        message: String,
    },
    /// A cell is not what its column holds.
    #[error("{file} line {line}, column {column}: {message}")]
    Cell {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: u64,
        /// Name of the column.
        column: String,
        /// What is wrong.
        message: String,
    },
}

/// The columns that a table must and may have.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Must be there.
    pub required: &'static [&'static str],
    /// May be there; a cell may be empty.
    pub optional: &'static [&'static str],
}

/// One row, with its place.
#[derive(Debug)]
pub struct Row<'a> {
    file: &'a str,
    columns: &'a [String],
    record: &'a StringRecord,
    /// Line of the file, from 1.
    pub line: u64,
}

impl Row<'_> {
    /// The cell of a column; `None` when it is empty or the table has no such column.
    #[must_use]
    pub fn text(&self, column: &str) -> Option<&str> {
        let position = self.columns.iter().position(|name| name == column)?;
        let cell = self.record.get(position)?.trim();
        (!cell.is_empty()).then_some(cell)
    }

    /// The cell as a value; `None` when it is empty or there is no such column.
    pub fn get<T>(&self, column: &str) -> Result<Option<T>, TableError>
    where
        T: FromStr,
        T::Err: Display,
    {
        let parse = |text: &str| {
            text.parse().map_err(|error: T::Err| {
                let message = error.to_string();
                // Quantities quote the text themselves.
                let quoted = message.starts_with('"');
                let message = if quoted {
                    message
                } else {
                    format!("{text:?}: {message}")
                };
                self.wrong(column, message)
            })
        };
        self.text(column).map(parse).transpose()
    }

    /// The cell as a value that must be there.
    pub fn need<T>(&self, column: &str) -> Result<T, TableError>
    where
        T: FromStr,
        T::Err: Display,
    {
        let value = self.get(column)?;
        value.ok_or_else(|| self.wrong(column, "must be given".to_owned()))
    }

    /// Parts of a cell that are joined by `|`.
    pub fn list(&self, column: &str) -> impl Iterator<Item = &str> {
        let parts = self.text(column).unwrap_or_default().split('|');
        parts.map(str::trim).filter(|part| !part.is_empty())
    }

    /// An error about one cell of this row.
    #[must_use]
    pub fn wrong(&self, column: &str, message: String) -> TableError {
        TableError::Cell {
            file: self.file.to_owned(),
            line: self.line,
            column: column.to_owned(),
            message,
        }
    }
}

/// Reads a table row by row. Its first line names the columns, in any order; blank lines are
/// passed over.
pub fn read(
    file: &str,
    text: &[u8],
    columns: Columns,
    mut each: impl FnMut(&Row<'_>) -> Result<(), TableError>,
) -> Result<(), TableError> {
    let malformed = |line: u64, message: String| TableError::Malformed {
        file: file.to_owned(),
        line,
        message,
    };
    let unreadable = |error: csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        malformed(line, error.to_string())
    };
    let mut reader = csv::Reader::from_reader(text);
    let header = reader.headers().map_err(unreadable)?;
    let names: Vec<String> = header.iter().map(|name| name.trim().to_owned()).collect();
    check_header(&names, columns).map_err(|message| malformed(1, message))?;
    let mut record = StringRecord::new();
    let mut rows = 0;
    while reader.read_record(&mut record).map_err(unreadable)? {
        let line = record.position().map_or(0, csv::Position::line);
        rows += 1;
        if rows > MAX_ROWS {
            let message = format!("more than {MAX_ROWS} rows: cut the table");
            return Err(malformed(line, message));
        }
        each(&Row {
            file,
            columns: &names,
            record: &record,
            line,
        })?;
    }
    Ok(())
}

fn check_header(names: &[String], columns: Columns) -> Result<(), String> {
    let known = || columns.required.iter().chain(columns.optional).copied();
    for (position, name) in names.iter().enumerate() {
        if !known().any(|column| column == name) {
            let meant = nearest(name, known())
                .map_or_else(String::new, |meant| format!(" (did you mean {meant:?}?)"));
            let all: Vec<&str> = known().collect();
            let all = all.join(", ");
            return Err(format!(
                "there is no column {name:?}{meant}; columns are {all}"
            ));
        }
        if names[..position].contains(name) {
            return Err(format!("the column {name:?} is there twice"));
        }
    }
    let missing = columns
        .required
        .iter()
        .find(|column| !names.iter().any(|name| name == *column));
    missing.map_or(Ok(()), |column| {
        Err(format!("the column {column:?} is missing"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: Columns = Columns {
        required: &["name", "gpus"],
        optional: &["regions"],
    };

    fn all(text: &str) -> Result<Vec<(String, u32, usize)>, TableError> {
        let mut rows = Vec::new();
        read("x.csv", text.as_bytes(), COLUMNS, |row| {
            let regions = row.list("regions").count();
            rows.push((row.need("name")?, row.need("gpus")?, regions));
            Ok(())
        })?;
        Ok(rows)
    }

    #[test]
    fn columns_are_found_by_name() {
        let rows = all("gpus,regions,name\n8,eu|us,a\n\n4,,b\n").expect("a table");
        assert_eq!(rows, [("a".into(), 8, 2), ("b".into(), 4, 0)]);
        assert_eq!(all("name,gpus\n").expect("an empty table"), []);
    }

    #[test]
    fn what_is_wrong_names_line_and_column() {
        let cases = [
            (
                "name,gpus\na,8\nb,x\n",
                "x.csv line 3, column gpus: \"x\": invalid digit found in string",
            ),
            (
                "name,gpus\n,8\n",
                "x.csv line 2, column name: must be given",
            ),
            (
                "name,gpu\n",
                "x.csv line 1: there is no column \"gpu\" (did you mean \"gpus\"?); columns are \
                 name, gpus, regions",
            ),
            ("name\n", "x.csv line 1: the column \"gpus\" is missing"),
            (
                "name,gpus,name\n",
                "x.csv line 1: the column \"name\" is there twice",
            ),
        ];
        for (text, expected) in cases {
            let error = all(text).expect_err("it is wrong");
            assert_eq!(error.to_string(), expected);
        }
        let ragged = all("name,gpus\na,1,2\n")
            .expect_err("three cells")
            .to_string();
        assert!(ragged.starts_with("x.csv line 2: "), "{ragged}");
    }
}
