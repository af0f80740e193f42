//! A proposal: from somebody's words to a row that says exactly what will be
//! sent. Everything that can fail fails before the row exists.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use countersign_domain::action::{Action, Fact, State, next};
use countersign_domain::canonical::CanonicalJson;
use countersign_domain::fingerprint::{self, Approvable};
use countersign_domain::grant::Grant;
use countersign_domain::id::{ActionId, ComponentDigest, Intent, Principal, TenantId, ToolName};
use countersign_domain::key::{ActionKey, action_id};
use countersign_domain::plan::Plan;
use countersign_domain::run::{Call, RunContext, RunLimits};
use countersign_domain::tool::InstalledTool;
use countersign_store::steps::{Move, NewAction, Proposed};

use crate::quota::Who;
use crate::{Gate, GateError, Inner};

/// What a caller proposes.
#[derive(Debug, Clone)]
pub struct Proposal {
    /// Whose token it is.
    pub tenant: TenantId,
    /// Who proposes.
    pub proposer: Principal,
    /// In whose name.
    pub actor: Principal,
    /// Which tool.
    pub tool: ToolName,
    /// `None`: the current one.
    pub version: Option<String>,
    /// Read strictly.
    pub arguments: CanonicalJson,
    /// The caller's name for it.
    pub key: ActionKey,
    /// Workers run it once it is approved.
    pub run_by_itself: bool,
    /// The action that this one makes good.
    pub compensates: Option<ActionId>,
    /// The action that this one replaces.
    pub supersedes: Option<ActionId>,
}

/// What became of it.
#[derive(Debug, Clone)]
pub struct ProposedAction {
    /// The row.
    pub action: Action,
    /// It was there already.
    pub replayed: bool,
}

/// Input schemas, compiled once per component.
#[derive(Default)]
pub struct Schemas {
    compiled: Mutex<HashMap<ComponentDigest, Arc<Compiled>>>,
}

struct Compiled {
    input: jsonschema::Validator,
    output: Option<jsonschema::Validator>,
}

impl Gate {
    /// Proposes an action, or finds the one that this key names.
    ///
    /// # Errors
    /// [`GateError::KeyMismatch`] if the key names another intent; otherwise
    /// why nothing was proposed. No row was made then.
    pub async fn propose(&self, proposal: Proposal) -> Result<ProposedAction, GateError> {
        let inner = &self.inner;
        let id = action_id(&proposal.tenant, &proposal.key);
        let intent = fingerprint::intent(
            &proposal.tenant,
            &proposal.actor,
            &proposal.tool,
            proposal.version.as_deref(),
            &proposal.arguments,
        );
        // First the row: a caller gets its own result back whatever has become
        // of the tool since. The insert below decides, not this look.
        if let Some(existing) = inner.store.action(&proposal.tenant, id).await? {
            return again(existing, intent, None);
        }
        let quota = inner.config.quotas.get(&proposal.tenant);
        let (tool, grant) = inner.fits(&proposal).await?;
        let who = Who {
            tenant: &proposal.tenant,
            tool: &proposal.tool,
            caller: &proposal.proposer,
            actor: &proposal.actor,
            replaces: proposal.supersedes.is_some(),
        };
        inner.admission.proposes(quota, &who)?;
        let required = u32::from(grant.approval().required);
        if required > 0 {
            inner.admission.looks(&*inner.store, quota, &who).await?;
        }
        let place = inner.planning_place(&who).await?;
        inner.ensure_loaded(&proposal.tenant, tool.component).await?;

        let created = inner.store.now().await?;
        let mut seed = [0u8; 32];
        seed[..16].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        seed[16..].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        let call = Call {
            component: tool.component,
            arguments: proposal.arguments.clone(),
            context: RunContext {
                tenant: proposal.tenant.clone(),
                action: id,
                run: proposal.key.run().map(|(run, _)| run.to_owned()),
                step: proposal.key.run().map(|(_, step)| step.to_owned()),
                actor: proposal.actor.clone(),
                started: created,
                seed,
            },
            limits: run_limits(&grant),
            forbidden_headers: Arc::new(grant.forbidden_headers()),
        };
        let previewed = inner.components.preview(call.clone());
        let (preview, planned) = tokio::join!(previewed, inner.plan(&proposal.tool, &grant, call));
        // What is not canonical JSON is no preview: it is shown, and hashed.
        let preview = preview.and_then(|preview| CanonicalJson::of(&preview).ok());
        let planned = planned?;
        drop(place);
        let plan = canonical_plan(&planned.plan)?;
        let fingerprint = fingerprint::fingerprint(Approvable {
            action: id,
            intent,
            version: &tool.version,
            component: tool.component,
            grant: tool.grant,
            plan: &plan,
            preview: preview.as_ref(),
        });
        // Counted once more where it becomes a row: planning took its time.
        let pass = match required {
            0 => None,
            _ => Some(inner.admission.enter(&*inner.store, quota, &who).await?),
        };
        let by = proposal.proposer.to_string();
        let first = Fact::Proposed { fingerprint };
        let second = if required == 0 { Fact::PolicyAllowed } else { Fact::ApprovalRequired { required } };
        let to = next(State::Proposed, &second).map_err(|e| GateError::unavailable(e.to_string()))?;
        let action = NewAction {
            tenant: proposal.tenant,
            id,
            key: proposal.key,
            tool: proposal.tool,
            requested_version: proposal.version,
            version: tool.version.clone(),
            component: tool.component,
            grant: tool.grant,
            arguments: proposal.arguments,
            intent,
            fingerprint,
            actor: proposal.actor,
            proposer: proposal.proposer,
            plan,
            preview,
            approvals_required: required,
            approval_expires_after: grant.approval().expires_after,
            execution_deadline_after: grant.approval().execution_deadline,
            policy_epoch: tool.policy_epoch,
            run_by_itself: proposal.run_by_itself,
            supersedes: proposal.supersedes,
            compensates: proposal.compensates,
            created,
            seed,
            attempts: inner.config.retry.attempts,
            repeats: inner.config.repeats,
            planned_effects: planned.effects,
            moves: vec![
                Move { fact: first, to: State::Proposed, by: by.clone() },
                Move { fact: second, to, by: "policy".into() },
            ],
        };
        let proposed = inner.store.propose(action).await;
        drop(pass);
        match proposed? {
            Proposed::New(action) => {
                if action.run_by_itself && action.state == State::Approved {
                    inner.nudge.notify_one();
                }
                Ok(ProposedAction { action: *action, replayed: false })
            }
            Proposed::Again(existing) => again(*existing, intent, Some(fingerprint)),
        }
    }
}

/// The same key again: the same intent gets the same action, another is told so.
/// Compared is the intent and nothing that changes when a tool is upgraded.
fn again(
    existing: Action,
    requested: Intent,
    fingerprint: Option<countersign_domain::id::Fingerprint>,
) -> Result<ProposedAction, GateError> {
    let same = if countersign_domain::planted::on("key-compared-by-fingerprint") {
        fingerprint.is_some_and(|fingerprint| fingerprint == existing.fingerprint)
    } else {
        existing.intent == requested
    };
    if same {
        Ok(ProposedAction { action: existing, replayed: true })
    } else {
        Err(GateError::KeyMismatch { action: existing.id, existing: existing.intent, requested })
    }
}

fn no_tool(proposal: &Proposal) -> GateError {
    let what = match &proposal.version {
        Some(version) => format!("tool {} in version {version}", proposal.tool),
        None => format!("tool {}", proposal.tool),
    };
    GateError::NotFound { what }
}

fn check_size(grant: &Grant, arguments: &CanonicalJson) -> Result<(), GateError> {
    let limit = grant.limits().arguments;
    if arguments.as_str().len() as u64 <= limit {
        return Ok(());
    }
    Err(GateError::InvalidArguments {
        pointer: String::new(),
        why: format!("they are {} bytes, and this tool's grant allows {limit}", arguments.as_str().len()),
    })
}

fn canonical_plan(plan: &Plan) -> Result<CanonicalJson, GateError> {
    CanonicalJson::of(plan).map_err(|error| GateError::PlanningFailed {
        why: format!("what it would send cannot be shown: {error}"),
        retryable: false,
    })
}

/// What one run may use, by its grant.
pub(crate) fn run_limits(grant: &Grant) -> RunLimits {
    RunLimits {
        memory: grant.limits().memory,
        cpu: grant.limits().cpu,
        wall: grant.limits().wall,
        result: grant.limits().result,
        log: grant.limits().log,
        request_body: grant.http().iter().map(|route| route.request_body).max().unwrap_or(0),
    }
}

impl Inner {
    /// Whether there is such a tool and the arguments fit it, as far as can be
    /// told without running it.
    ///
    /// # Errors
    /// [`GateError::NotFound`], [`GateError::InvalidArguments`].
    pub(crate) async fn fits(&self, proposal: &Proposal) -> Result<(InstalledTool, Arc<Grant>), GateError> {
        let tool = self
            .store
            .tool(&proposal.tenant, &proposal.tool, proposal.version.as_deref())
            .await?
            .ok_or_else(|| no_tool(proposal))?;
        let grant = self.grants.parse(tool.grant, &tool.grant_source)?;
        check_size(&grant, &proposal.arguments)?;
        self.schemas.check(&tool, &proposal.arguments)?;
        Ok((tool, grant))
    }

    /// Makes a component ready, from the store if this host has not seen it.
    pub(crate) async fn ensure_loaded(
        &self,
        tenant: &TenantId,
        component: ComponentDigest,
    ) -> Result<(), GateError> {
        if self.components.is_loaded(component) {
            return Ok(());
        }
        let bytes = self
            .store
            .component(tenant, component)
            .await?
            .ok_or_else(|| GateError::NotFound { what: format!("component {component}") })?;
        self.components.load(component, Arc::from(bytes)).await?;
        Ok(())
    }
}

impl Schemas {
    /// Checks arguments against the tool's input schema.
    fn check(&self, tool: &InstalledTool, arguments: &CanonicalJson) -> Result<(), GateError> {
        let compiled = self.compiled(tool)?;
        let value = arguments.value();
        match compiled.input.iter_errors(&value).next() {
            None => Ok(()),
            Some(error) => Err(GateError::InvalidArguments {
                pointer: error.instance_path().to_string(),
                why: error.to_string(),
            }),
        }
    }

    /// What is wrong with a result, by the tool's own output schema. `None`: this
    /// host has not compiled the schemas of that component yet.
    pub(crate) fn misfit(
        &self,
        component: ComponentDigest,
        result: &CanonicalJson,
    ) -> Option<Option<String>> {
        let compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner).get(&component)?.clone();
        let Some(output) = &compiled.output else { return Some(None) };
        let value = result.value();
        let misfit = output.iter_errors(&value).next();
        Some(misfit.map(|error| format!("at \"{}\": {error}", error.instance_path())))
    }

    /// Compiles a tool's schemas, if this host has not yet.
    pub(crate) fn prepare(&self, tool: &InstalledTool) -> Result<(), GateError> {
        self.compiled(tool).map(drop)
    }

    fn compiled(&self, tool: &InstalledTool) -> Result<Arc<Compiled>, GateError> {
        let mut map = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = map.get(&tool.component) {
            return Ok(compiled.clone());
        }
        let manifest = &tool.inspection.manifest;
        let broken = |why: String| GateError::unavailable(format!("a schema of tool {}: {why}", tool.name));
        let input = compile_schema(&manifest.input_schema).map_err(broken)?;
        let output = manifest.output_schema.as_ref().map(compile_schema).transpose().map_err(broken)?;
        let compiled = Arc::new(Compiled { input, output });
        map.insert(tool.component, compiled.clone());
        Ok(compiled)
    }
}

/// Compiles a JSON Schema (2020-12). References to other documents are not
/// followed: a tool's schema is whole in itself, and the host fetches nothing.
pub(crate) fn compile_schema(schema: &serde_json::Value) -> Result<jsonschema::Validator, String> {
    jsonschema::options()
        .with_draft(jsonschema::Draft::Draft202012)
        .build(schema)
        .map_err(|error| error.to_string())
}
