//! The Rust side of `wit/`, generated. Imports of WASI are not here: wasmtime's
//! crates have them, and `linker` says which.

/// Every tool, and the context that it may import.
pub(crate) mod tool {
    wasmtime::component::bindgen!({
        path: "../../wit",
        inline: "
            package countersign:face;
            world face {
                import countersign:tool/context@0.1.0;
                import countersign:tool/email@0.1.0;
                export countersign:tool/tool@0.1.0;
            }
        ",
        world: "countersign:face/face",
        imports: {
            "countersign:tool/email.send": async | trappable,
            default: trappable,
        },
        exports: { default: async },
        require_store_data_send: true,
    });
}

/// A tool that can say what became of a send. The types of `tool` come along
/// with it; they are not used.
pub(crate) mod reconciling {
    wasmtime::component::bindgen!({
        path: "../../wit",
        inline: "
            package countersign:face;
            world reconciling-face {
                export countersign:tool/tool@0.1.0;
                export countersign:tool/reconciler@0.1.0;
            }
        ",
        world: "countersign:face/reconciling-face",
        exports: { default: async },
        require_store_data_send: true,
    });
}
