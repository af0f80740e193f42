//! Tools made of text: any core module behind the interface of a tool, with `invoke` as it likes and
//! `describe` and `preview` that trap.

use std::sync::Arc;

/// In `invoke`: no failure, and a text of one byte at 32, as what is at 16 says.
pub(crate) const ONE_BYTE: &str = "(i32.store8 (i32.const 16) (i32.const 0))
    (i32.store (i32.const 20) (i32.const 32)) (i32.store (i32.const 24) (i32.const 1))";

/// `imports`: what it imports, as text, and `given`: the same as arguments. `module` makes the core
/// instance `$i`, with a memory, `realloc`, `describe`, `other` and `invoke`.
pub(crate) fn tool(imports: &str, given: &str, module: &str) -> Arc<[u8]> {
    let text = format!(
        r#"(component
        {imports}
        (component $tool
            {imports}
            {module}
            (type $effect' (record (field "host" string) (field "methods" (list string)) (field "why" string)))
            (export $effect "declared-effect" (type $effect'))
            (type $manifest' (record (field "name" string) (field "version" string) (field "title" string)
                (field "description" string) (field "input-schema" string)
                (field "output-schema" (option string)) (field "effects" (list $effect))))
            (export $manifest "manifest" (type $manifest'))
            (type $field' (record (field "label" string) (field "value" string)))
            (export $field "preview-field" (type $field'))
            (type $preview' (record (field "title" string) (field "fields" (list $field))))
            (export $preview "tool-preview" (type $preview'))
            (type $failure' (variant (case "invalid-arguments" string) (case "refused" string)
                (case "try-later" (option u32)) (case "broken" string)))
            (export $failure "failure" (type $failure'))
            (func (export "describe") (result $manifest)
                (canon lift (core func $i "describe") (memory (core memory $i "memory"))))
            (func (export "preview") (param "arguments" string) (result (result $preview (error $failure)))
                (canon lift (core func $i "other") (memory (core memory $i "memory"))
                    (realloc (core func $i "realloc"))))
            (func (export "invoke") (param "arguments" string) (result (result string (error $failure)))
                (canon lift (core func $i "invoke") (memory (core memory $i "memory"))
                    (realloc (core func $i "realloc")))))
        (instance $it (instantiate $tool {given}))
        (export "countersign:tool/tool@0.1.0" (instance $it)))"#
    );
    wat::parse_str(text).unwrap_or_else(|e| panic!("{e}")).into()
}

const STREAMS: &str = r#"
    (import "wasi:io/error@0.2.0" (instance $error (export "error" (type (sub resource)))))
    (alias export $error "error" (type $error))
    (import "wasi:io/streams@0.2.0" (instance $streams
        (alias outer 1 $error (type $e))
        (export "error" (type $error (eq $e)))
        (type $se (variant (case "last-operation-failed" (own $error)) (case "closed")))
        (export "stream-error" (type $stream-error (eq $se)))
        (export "output-stream" (type $out (sub resource)))
        (export "[method]output-stream.check-write" (func
            (param "self" (borrow $out)) (result (result u64 (error $stream-error)))))
        (export "[method]output-stream.write" (func
            (param "self" (borrow $out)) (param "contents" (list u8)) (result (result (error $stream-error)))))))
    (alias export $streams "output-stream" (type $output-stream))
    (import "wasi:cli/stdout@0.2.0" (instance $stdout
        (alias outer 1 $output-stream (type $o))
        (export "output-stream" (type $out (eq $o)))
        (export "get-stdout" (func (result (own $out))))))
    (import "wasi:cli/stderr@0.2.0" (instance $stderr
        (alias outer 1 $output-stream (type $o))
        (export "output-stream" (type $out (eq $o)))
        (export "get-stderr" (func (result (own $out))))))
"#;

/// Prints a GiB to stdout and a sixteenth of that to stderr, 64 KiB at a time in lines of 1 KiB, and
/// gives `0` if every write was taken.
pub(crate) fn prints_a_gibibyte() -> Arc<[u8]> {
    tool(
        STREAMS,
        r#"(with "wasi:io/error@0.2.0" (instance $error)) (with "wasi:io/streams@0.2.0" (instance $streams))
            (with "wasi:cli/stdout@0.2.0" (instance $stdout)) (with "wasi:cli/stderr@0.2.0" (instance $stderr))"#,
        &format!(
            r#"
            (core module $room (memory (export "memory") 3))
            (core instance $room (instantiate $room))
            (core func $out (canon lower (func $stdout "get-stdout")))
            (core func $err (canon lower (func $stderr "get-stderr")))
            (core func $check (canon lower (func $streams "[method]output-stream.check-write")
                (memory (core memory $room "memory"))))
            (core func $write (canon lower (func $streams "[method]output-stream.write")
                (memory (core memory $room "memory"))))
            (core module $m
                (import "" "memory" (memory 3))
                (import "" "out" (func $out (result i32)))
                (import "" "err" (func $err (result i32)))
                (import "" "check" (func $check (param i32 i32)))
                (import "" "write" (func $write (param i32 i32 i32 i32)))
                (export "memory" (memory 0))
                (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
                (func (export "other") (param i32 i32) (result i32) unreachable)
                (func (export "describe") (result i32) unreachable)
                (func $print (param $to i32)
                    (call $check (local.get $to) (i32.const 64))
                    (call $write (local.get $to) (i32.const 65536) (i32.const 65536) (i32.const 96))
                    (if (i32.load8_u (i32.const 96)) (then unreachable)))
                (func (export "invoke") (param i32 i32) (result i32)
                    (local $n i32) (local $o i32) (local $e i32)
                    (memory.fill (i32.const 65536) (i32.const 0x78) (i32.const 65536))
                    (loop $lines
                        (i32.store8 offset=66559 (i32.shl (local.get $n) (i32.const 10)) (i32.const 10))
                        (local.set $n (i32.add (local.get $n) (i32.const 1)))
                        (br_if $lines (i32.lt_u (local.get $n) (i32.const 64))))
                    (local.set $n (i32.const 0))
                    (local.set $o (call $out))
                    (local.set $e (call $err))
                    (loop $l
                        (call $print (local.get $o))
                        (if (i32.eqz (i32.and (local.get $n) (i32.const 15)))
                            (then (call $print (local.get $e))))
                        (local.set $n (i32.add (local.get $n) (i32.const 1)))
                        (br_if $l (i32.lt_u (local.get $n) (i32.const 16384))))
                    {ONE_BYTE} (i32.store8 (i32.const 32) (i32.const 0x30)) (i32.const 16)))
            (core instance $i (instantiate $m (with "" (instance
                (export "memory" (memory $room "memory"))
                (export "out" (func $out)) (export "err" (func $err))
                (export "check" (func $check)) (export "write" (func $write))))))"#
        ),
    )
}
