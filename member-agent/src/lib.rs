//! member-agent
