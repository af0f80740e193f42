//! Named points in the life of an attempt, at which a test can stop the process
//! and kill it. Silent unless armed; a build for use has nobody to arm them.

use async_trait::async_trait;
use countersign_domain::id::Ordinal;

/// Where an attempt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// The action is about to be claimed.
    BeforeClaim,
    /// The action claim is committed, no effect is claimed.
    AfterClaim,
    /// A write is about to be claimed.
    BeforeWriteClaim,
    /// The write claim is flushed, nothing is sent.
    AfterWriteClaim,
    /// The connection stands, the next thing is the first byte.
    BeforeFirstByte,
    /// The whole answer was read, nothing is recorded.
    AfterAnswer,
    /// The answer is recorded, the component has not seen it.
    AfterRecord,
    /// The component returned, its end is not recorded.
    BeforeEnd,
    /// The end is recorded, nobody was told.
    AfterEnd,
}

impl Point {
    /// All of them, in the order in which an attempt passes them.
    pub const ALL: &'static [Point] = &[
        Point::BeforeClaim,
        Point::AfterClaim,
        Point::BeforeWriteClaim,
        Point::AfterWriteClaim,
        Point::BeforeFirstByte,
        Point::AfterAnswer,
        Point::AfterRecord,
        Point::BeforeEnd,
        Point::AfterEnd,
    ];

    /// The name by which a test arms it.
    pub const fn name(self) -> &'static str {
        match self {
            Point::BeforeClaim => "before-claim",
            Point::AfterClaim => "after-claim",
            Point::BeforeWriteClaim => "before-write-claim",
            Point::AfterWriteClaim => "after-write-claim",
            Point::BeforeFirstByte => "before-first-byte",
            Point::AfterAnswer => "after-answer",
            Point::AfterRecord => "after-record",
            Point::BeforeEnd => "before-end",
            Point::AfterEnd => "after-end",
        }
    }
}

/// Somebody who wants to know, and may take their time.
#[async_trait]
pub trait Signals: Send + Sync + 'static {
    /// Called at each point; the attempt goes on when it returns.
    async fn reached(&self, point: Point, ordinal: Option<Ordinal>);
}
