//! The call by which the training stand-in tells the agent of its cluster that it has saved.
//!
//! Owns one HTTP request over a plain socket, as small as user code may write it. Never repeats it:
//! the next checkpoint says more.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// An agent that does not answer within this is told at the next checkpoint.
const LIMIT: Duration = Duration::from_secs(2);

/// Says that a checkpoint was written at `at` (RFC 3339); the status line of the answer.
///
/// # Errors
///
/// The URL is none, or nobody answers.
pub fn saved(url: &str, token: &str, at: &str) -> io::Result<String> {
    let wrong = || io::Error::other(format!("{url} is no http://host:port/path"));
    let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
    let (host, path) = rest.split_once('/').ok_or_else(wrong)?;
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let body = format!("{{\"at\": \"{at}\"}}");
    write!(
        stream,
        "POST /{path}/checkpoint HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.take(4096).read_to_string(&mut answer)?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}
