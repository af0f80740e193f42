//! What a tool is and says of itself. Everything a component says is data from
//! somebody nobody here knows: bounded, shown as theirs, never obeyed.

use serde::{Deserialize, Serialize};

use crate::id::{ComponentDigest, GrantDigest, TenantId, ToolName};
use crate::time::Timestamp;

/// What a component says of itself at install.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The name it would like; the operator's word counts.
    pub name: String,
    /// Semantic version.
    pub version: String,
    /// One line.
    pub title: String,
    /// For models and people.
    pub description: String,
    /// JSON Schema 2020-12 of the arguments.
    pub input_schema: serde_json::Value,
    /// JSON Schema 2020-12 of the result.
    pub output_schema: Option<serde_json::Value>,
    /// What it will ask for.
    pub effects: Vec<DeclaredEffect>,
}

/// An effect a component says it will ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredEffect {
    /// Host it will call.
    pub host: String,
    /// Methods it will use.
    pub methods: Vec<String>,
    /// In its own words.
    pub why: String,
}

/// The tool's own words about a call, shown after what the host rendered and
/// labelled as the tool's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preview {
    /// One line.
    pub title: String,
    /// In the tool's order.
    pub fields: Vec<PreviewField>,
}

/// One line of a preview.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewField {
    /// What it is.
    pub label: String,
    /// Its value.
    pub value: String,
}

/// What was found in a component's bytes before any of its code ran, and what
/// it said when its `describe` ran with nothing granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// SHA-256 of the bytes.
    pub digest: ComponentDigest,
    /// Length of the bytes.
    pub size: u64,
    /// Full names of all imports.
    pub imports: Vec<String>,
    /// Full names of all exports.
    pub exports: Vec<String>,
    /// Additions to the first version of WebAssembly that it uses, by the names of
    /// their proposals: `bulk-memory`, `simd`. None of what was installed before
    /// they were looked for.
    #[serde(default)]
    pub features: Vec<String>,
    /// Whether it can answer what came of an effect.
    pub reconciles: bool,
    /// What it says of itself.
    pub manifest: Manifest,
    /// What an operator should know before saying yes.
    pub warnings: Vec<String>,
}

/// An installed version of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledTool {
    /// Whose it is.
    pub tenant: TenantId,
    /// Unique per tenant.
    pub name: ToolName,
    /// Unique per name.
    pub version: String,
    /// The version that runs when none is asked for.
    pub current: bool,
    /// Its code.
    pub component: ComponentDigest,
    /// The grant in force.
    pub grant: GrantDigest,
    /// Source text of that grant, TOML.
    pub grant_source: String,
    /// What was found at install.
    pub inspection: Inspection,
    /// No new claims while set.
    pub paused: bool,
    /// The tenant's policy epoch when this was read; every change of a grant, a
    /// current version, a policy or a role moves it, and claims compare it.
    pub policy_epoch: i64,
    /// When this version was installed.
    pub installed: Timestamp,
}
