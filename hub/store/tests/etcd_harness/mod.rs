//! etcd processes for tests.
