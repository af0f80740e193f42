//! What an operator sees before a component is installed.

use std::sync::Arc;

use super::rig::{component, sandbox};
use crate::SandboxError;

#[tokio::test(flavor = "multi_thread")]
async fn an_inspection_lists_imports_exports_and_the_tools_words() {
    let sandbox = sandbox().await;
    let refund = sandbox.inspect(component("refund")).await.unwrap();
    assert_eq!(refund.manifest.name, "refund");
    assert_eq!(refund.manifest.input_schema["type"], "object");
    assert_eq!(refund.manifest.effects[0].host, "api.stripe.com");
    assert!(refund.imports.iter().any(|i| i == "countersign:tool/context@0.1.0"), "{:?}", refund.imports);
    assert!(refund.imports.iter().any(|i| i.starts_with("wasi:http/outgoing-handler@0.2.")));
    assert!(refund.exports.iter().any(|e| e == "countersign:tool/tool@0.1.0"));
    assert!(!refund.reconciles);
    assert_eq!(refund.size, component("refund").len() as u64);
    assert_eq!(refund.warnings, Vec::<String>::new());

    assert!(sandbox.inspect(component("transfer")).await.unwrap().reconciles);
    let probe = sandbox.inspect(component("probe")).await.unwrap();
    assert!(probe.warnings.iter().any(|w| w.contains("which host")), "{:?}", probe.warnings);
}

#[tokio::test(flavor = "multi_thread")]
async fn j01_other_bytes_than_named_are_not_compiled() {
    let (refund, transfer) = (component("refund"), component("transfer"));
    let error = sandbox().await.load(super::rig::digest(&[1, 2, 3]), refund).await.unwrap_err();
    assert!(matches!(error, SandboxError::WrongBytes { .. }), "{error}");
    let mut flipped = transfer.to_vec();
    let last = flipped.len() - 1;
    flipped[last] ^= 1;
    let error = sandbox().await.load(super::rig::digest(b"x"), Arc::from(flipped)).await.unwrap_err();
    assert!(matches!(error, SandboxError::WrongBytes { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_that_is_no_tool_is_told_what_is_missing() {
    let bytes = wat::parse_str(r#"(component (component $c) (export "acme:calc/add@1.0.0" (component $c)))"#)
        .unwrap();
    let error = sandbox().await.inspect(bytes.into()).await.unwrap_err().to_string();
    assert!(error.contains("countersign:tool/tool@0.1.0"), "{error}");
    assert!(error.contains("acme:calc/add@1.0.0"), "{error}");
}
