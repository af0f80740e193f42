//! The domain's tests that are larger than one rule.

mod model;
