//! Tests of gangs put together from what the cluster shows.
