//! api/client
