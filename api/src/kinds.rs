//! The kinds: one file each, and the list of them.
//!
//! Owns what is common to kinds. Never stores or serves one.

pub mod federated_job;
pub mod gpu_pool;
pub mod member_cluster;
pub mod region;
pub mod tenant;
pub mod tenant_quota;
pub mod time_window;
pub mod workload_class;

pub use federated_job::FederatedJob;
pub use gpu_pool::GPUPool;
pub use member_cluster::MemberCluster;
pub use region::Region;
pub use tenant::Tenant;
pub use tenant_quota::TenantQuota;
pub use time_window::TimeWindow;
pub use workload_class::WorkloadClass;
