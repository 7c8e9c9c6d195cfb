//! Just enough of Rust's grammar to tell code from comments and text, and tests from the rest.
//!
//! Owns the masking of comments and literals, and the search for functions and test modules.
//! Never parses: a rule that needs types belongs to clippy.

/// A source file, with comments and literals blanked out so that what is left is code.
pub(crate) struct RustText {
    code: Vec<char>,
    /// Per line from 0: true when it lies in a `#[cfg(test)]` item.
    test_lines: Vec<bool>,
}

/// A function and where it stands, lines from 1.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) first_line: usize,
    pub(crate) last_line: usize,
}

impl RustText {
    /// Reads a file. `is_test_file`: all of it is test code.
    pub(crate) fn new(text: &str, is_test_file: bool) -> Self {
        let code = mask(text);
        let lines = text.lines().count();
        let mut file = Self {
            code,
            test_lines: vec![is_test_file; lines],
        };
        for at in file.find("#[cfg(test)]") {
            let end = file.end_of_item(at + "#[cfg(test)]".len());
            let (first, last) = (file.line_of(at), file.line_of(end));
            for line in first..=last.min(lines) {
                file.test_lines[line - 1] = true;
            }
        }
        file
    }

    /// True when the line (from 1) is test code.
    pub(crate) fn is_test(&self, line: usize) -> bool {
        self.test_lines.get(line - 1).copied().unwrap_or(false)
    }

    /// Lines that are not test code.
    pub(crate) fn lines_of_code(&self) -> usize {
        self.test_lines.iter().filter(|is_test| !**is_test).count()
    }

    /// True when `line` of that number (from 1) is text of a literal that spans lines.
    pub(crate) fn is_within_literal(&self, number: usize, line: &str) -> bool {
        let mut lines = self.code.split(|letter| *letter == '\n');
        let code = lines.nth(number - 1).unwrap_or_default();
        let is_comment = line.trim_start().starts_with("//");
        !is_comment && code.iter().all(|letter| letter.is_whitespace())
    }

    /// Lines, from 1, whose code holds `pattern` at a word's start.
    pub(crate) fn lines_with(&self, pattern: &str) -> Vec<usize> {
        let starts_word = |at: &usize| *at == 0 || !is_word(self.code[at - 1]);
        self.find(pattern)
            .into_iter()
            .filter(starts_word)
            .map(|at| self.line_of(at))
            .collect()
    }

    /// Attributes that begin so (`#[allow(`), whole, with their lines.
    pub(crate) fn attributes(&self, start: &str) -> Vec<(usize, String)> {
        let whole = |at: usize| {
            let open = at + start.find('[').expect("an attribute has a bracket");
            let end = self.matching(open);
            (self.line_of(at), self.code[at..=end].iter().collect())
        };
        self.find(start).into_iter().map(whole).collect()
    }

    /// Every function with a body.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let mut functions = Vec::new();
        for at in self.find("fn ") {
            let starts_word = at == 0 || !is_word(self.code[at - 1]);
            let name: String = self.code[at + 3..]
                .iter()
                .take_while(|letter| is_word(**letter))
                .collect();
            if !starts_word || name.is_empty() {
                continue;
            }
            let end = self.end_of_item(at);
            if self.code[end] == '}' {
                let (first_line, last_line) = (self.line_of(at), self.line_of(end));
                functions.push(Function {
                    name,
                    first_line,
                    last_line,
                });
            }
        }
        functions
    }

    /// Where the item that begins at `from` ends: at its `;`, or at the brace that closes it.
    fn end_of_item(&self, from: usize) -> usize {
        let mut at = from;
        while at < self.code.len() {
            match self.code[at] {
                ';' => return at,
                '{' => return self.matching(at),
                '(' | '[' => at = self.matching(at),
                _ => {}
            }
            at += 1;
        }
        self.code.len().saturating_sub(1)
    }

    /// The bracket that closes the one at `open`, or the end of the file.
    fn matching(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for (at, letter) in self.code.iter().enumerate().skip(open) {
            match letter {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return at;
            }
        }
        self.code.len().saturating_sub(1)
    }

    fn find(&self, pattern: &str) -> Vec<usize> {
        let pattern: Vec<char> = pattern.chars().collect();
        let windows = self.code.windows(pattern.len()).enumerate();
        windows
            .filter(|(_, window)| *window == pattern)
            .map(|(at, _)| at)
            .collect()
    }

    fn line_of(&self, at: usize) -> usize {
        1 + self.code[..at]
            .iter()
            .filter(|letter| **letter == '\n')
            .count()
    }
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The text with each letter of a comment or literal replaced by a blank; line ends stay.
fn mask(text: &str) -> Vec<char> {
    let letters: Vec<char> = text.chars().collect();
    let mut masked = letters.clone();
    let mut at = 0;
    while at < letters.len() {
        match end_of_masked(&letters, at) {
            Some(end) => {
                for letter in masked.iter_mut().take(end).skip(at) {
                    if *letter != '\n' {
                        *letter = ' ';
                    }
                }
                at = end;
            }
            None => at += 1,
        }
    }
    masked
}

/// One past the comment or literal that begins at `at`, or `None` when code does.
fn end_of_masked(letters: &[char], at: usize) -> Option<usize> {
    let next = letters.get(at + 1).copied();
    match letters[at] {
        '/' if next == Some('/') => Some(
            letters[at..]
                .iter()
                .position(|letter| *letter == '\n')
                .map_or(letters.len(), |n| at + n),
        ),
        '/' if next == Some('*') => Some(end_of_block_comment(letters, at)),
        '"' => Some(end_of_quoted(letters, at + 1, '"')),
        'r' if at == 0 || !is_word(letters[at - 1]) || is_byte_prefix(letters, at) => {
            end_of_raw(letters, at)
        }
        '\'' if next == Some('\\') || letters.get(at + 2) == Some(&'\'') => {
            Some(end_of_quoted(letters, at + 1, '\''))
        }
        _ => None,
    }
}

/// True at the `r` of `br"` and `cr"`.
fn is_byte_prefix(letters: &[char], at: usize) -> bool {
    matches!(letters[at - 1], 'b' | 'c') && (at == 1 || !is_word(letters[at - 2]))
}

fn end_of_block_comment(letters: &[char], start: usize) -> usize {
    let (mut depth, mut at) = (0_usize, start);
    while at < letters.len() {
        match (letters[at], letters.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    letters.len()
}

fn end_of_quoted(letters: &[char], start: usize, quote: char) -> usize {
    let mut at = start;
    while at < letters.len() {
        match letters[at] {
            '\\' => at += 2,
            letter if letter == quote => return at + 1,
            _ => at += 1,
        }
    }
    letters.len()
}

/// The end of `r"…"` or `r#"…"#`, or `None` when this `r` is only a letter.
fn end_of_raw(letters: &[char], start: usize) -> Option<usize> {
    let hashes = letters[start + 1..]
        .iter()
        .take_while(|letter| **letter == '#')
        .count();
    let open = start + 1 + hashes;
    if letters.get(open) != Some(&'"') {
        return None;
    }
    let closes = |at: &usize| {
        letters[*at] == '"'
            && letters[at + 1..]
                .iter()
                .take(hashes)
                .filter(|l| **l == '#')
                .count()
                == hashes
    };
    Some(
        (open + 1..letters.len())
            .find(closes)
            .map_or(letters.len(), |at| at + 1 + hashes),
    )
}

#[test]
fn comments_and_literals_are_no_code() {
    let text = r##"
let a = "fn x() {"; // fn y() {
let b = r#"fn "z"() {"#; /* fn /* v */ w() { */ let c = '{'; let d: &'static str = "\"{";
fn real<'a>(x: [u8; 4]) -> &'a str {
    "}"
}
"##;
    let functions = RustText::new(text, false).functions();
    let only = Function {
        name: "real".into(),
        first_line: 4,
        last_line: 6,
    };
    assert_eq!(functions, vec![only]);
}

#[test]
fn test_modules_are_test_code() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
    let rust = RustText::new(text, false);
    assert_eq!(
        (1..=6).map(|line| rust.is_test(line)).collect::<Vec<_>>(),
        [false, true, true, true, true, false]
    );
    assert_eq!(rust.lines_of_code(), 2);
}
