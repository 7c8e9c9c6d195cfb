//! hub/apiserver
