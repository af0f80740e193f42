//! The host's functions by family, and the component that calls them by orders.
//!
//! An order is one byte for the function, and then for each raw argument one byte that says what
//! it is and the bytes of it:
//!
//! | byte modulo 6 | a 32-bit argument is |
//! |---|---|
//! | 0, 5 | the next byte |
//! | 1 | one of the last sixteen results, by the next byte |
//! | 2 | the next four bytes |
//! | 3 | a place in the scratch, by the next byte |
//! | 4 | what is in the scratch, by the next byte: a handle, if the host wrote one there |
//!
//! A 64-bit argument is the next byte or, if the first is odd, the next eight bytes. The scratch
//! begins as a copy of the orders. After their end every byte is zero.
//!
//! Long because it is a list: every function of every family stands here, with its shape.

use std::fmt::Write as _;

/// A family: what is imported, and what is called.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    imports: &'static str,
    pub(crate) functions: &'static [Function],
}

/// A function: the instance and the name it is imported under (or `drop`, and a type), and its
/// raw parameters and result: `i` has 32 bits, `I` has 64.
pub(crate) struct Function(&'static str, &'static str, &'static str, &'static str);

impl Family {
    /// Orders for one function, with arguments of the right kind more often than by chance.
    #[cfg(test)]
    pub(crate) fn plausible(&self, next: &mut impl FnMut() -> u64) -> Vec<u8> {
        let index = (next() % self.functions.len() as u64) as u8;
        let mut orders = vec![index];
        for (n, parameter) in self.functions[usize::from(index)].2.chars().enumerate() {
            let small = (next() % 24) as u8;
            match (parameter, n) {
                ('I', _) => orders.extend([0, small]),
                // Usually the resource.
                ('i', 0) => orders.extend([1, (next() % 4) as u8]),
                _ => orders.extend([[3, 0, 4, 1][(next() % 4) as usize], small]),
            }
        }
        orders
    }

    /// The component, as text.
    pub(crate) fn component(&self) -> String {
        let mut lowered = String::new();
        let mut imports = String::new();
        let mut given = String::new();
        let mut cases = String::new();
        let count = self.functions.len();
        for (n, Function(instance, name, parameters, result)) in self.functions.iter().enumerate() {
            let _ = match *name {
                "drop" => writeln!(lowered, "(core func $f{n} (canon resource.drop ${instance}))"),
                _ => writeln!(
                    lowered,
                    r#"(core func $f{n} (canon lower (func ${instance} "{name}") (memory (core memory $room "memory")) (realloc (core func $room "realloc"))))"#
                ),
            };
            let types: String = parameters.chars().map(|p| if p == 'i' { " i32" } else { " i64" }).collect();
            let returns = match *result {
                "" => String::new(),
                "i" => "(result i32)".to_owned(),
                _ => "(result i64)".to_owned(),
            };
            let _ = writeln!(imports, r#"(import "f" "{n}" (func $f{n} (param{types}) {returns}))"#);
            let _ = writeln!(given, r#"(export "{n}" (func $f{n}))"#);
            let arguments: String = parameters
                .chars()
                .map(|p| if p == 'i' { "(call $narrow)" } else { "(call $wide)" })
                .collect();
            let call = match *result {
                "i" => format!("(call $keep (call $f{n} {arguments}))"),
                "I" => format!("(drop (call $f{n} {arguments}))"),
                _ => format!("(call $f{n} {arguments})"),
            };
            // Falls out of the block that its number branches to.
            cases = format!(
                "(block {cases} {} ) {call} (br $next)",
                if n == 0 { self.branch(count) } else { String::new() }
            );
        }
        format!(
            r#"(component
{imports_of_family}
(core module $room
    (memory (export "memory") 16)
    (global $at (mut i32) (i32.const 524288))
    ;; Room from the upper half, over and over; what is larger is not given.
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
        (local $place i32)
        (if (i32.gt_u (local.get 3) (i32.const 262144)) (then unreachable))
        (local.set $place (i32.and (i32.add (global.get $at) (i32.const 15)) (i32.const -16)))
        (if (i32.gt_u (i32.add (local.get $place) (local.get 3)) (i32.const 1048576))
            (then (local.set $place (i32.const 524288))))
        (global.set $at (i32.add (local.get $place) (local.get 3)))
        (local.get $place)))
(core instance $room (instantiate $room))
{lowered}
(core module $m
    (import "room" "memory" (memory 16))
    {imports}
    (global $at (mut i32) (i32.const 0))
    (global $end (mut i32) (i32.const 0))
    (global $kept (mut i32) (i32.const 0))
    (func $byte (result i32)
        (if (result i32) (i32.lt_u (global.get $at) (global.get $end))
            (then
                (i32.load8_u (global.get $at))
                (global.set $at (i32.add (global.get $at) (i32.const 1))))
            (else (i32.const 0))))
    (func $four (result i32)
        (i32.or
            (i32.or (call $byte) (i32.shl (call $byte) (i32.const 8)))
            (i32.or (i32.shl (call $byte) (i32.const 16)) (i32.shl (call $byte) (i32.const 24)))))
    (func $narrow (result i32)
        (local $kind i32)
        (local.set $kind (i32.rem_u (call $byte) (i32.const 6)))
        (if (i32.eq (local.get $kind) (i32.const 1))
            (then (return (i32.load (i32.add (i32.const 512)
                (i32.shl (i32.and (call $byte) (i32.const 15)) (i32.const 2)))))))
        (if (i32.eq (local.get $kind) (i32.const 2)) (then (return (call $four))))
        (if (i32.eq (local.get $kind) (i32.const 3))
            (then (return (i32.add (i32.const 1024) (i32.shl (call $byte) (i32.const 3))))))
        (if (i32.eq (local.get $kind) (i32.const 4))
            (then (return (i32.load (i32.add (i32.const 1024) (i32.shl (call $byte) (i32.const 2)))))))
        (call $byte))
    (func $wide (result i64)
        (if (i32.and (call $byte) (i32.const 1))
            (then (return (i64.or
                (i64.extend_i32_u (call $four)) (i64.shl (i64.extend_i32_u (call $four)) (i64.const 32))))))
        (i64.extend_i32_u (call $byte)))
    (func $keep (param i32)
        (i32.store (i32.add (i32.const 512) (i32.shl (i32.and (global.get $kept) (i32.const 15)) (i32.const 2)))
            (local.get 0))
        (global.set $kept (i32.add (global.get $kept) (i32.const 1))))
    (func (export "run") (param $orders i32) (param $length i32)
        (memory.copy (i32.const 1024) (local.get $orders) (local.get $length))
        (global.set $at (local.get $orders))
        (global.set $end (i32.add (local.get $orders) (local.get $length)))
        (loop $next
            (if (i32.ge_u (global.get $at) (global.get $end)) (then (return)))
            {cases})))
(core instance $m (instantiate $m
    (with "room" (instance (export "memory" (memory $room "memory"))))
    (with "f" (instance {given}))))
(func (export "run") (param "orders" (list u8))
    (canon lift (core func $m "run") (memory (core memory $room "memory")) (realloc (core func $room "realloc")))))"#,
            imports_of_family = self.imports,
        )
    }

    /// The innermost part: goes to the block of the function.
    fn branch(&self, count: usize) -> String {
        let targets: String = (0..count).map(|n| format!(" {n}")).collect();
        format!("(br_table{targets} (i32.rem_u (call $byte) (i32.const {count})))")
    }
}

/// All families.
pub(crate) const ALL: &[Family] = &[
    Family {
        name: "http",
        imports: HTTP,
        functions: &[
            Function("http", "[constructor]fields", "", "i"),
            Function("http", "[static]fields.from-list", "iii", ""),
            Function("http", "[method]fields.get", "iiii", ""),
            Function("http", "[method]fields.has", "iii", "i"),
            Function("http", "[method]fields.set", "iiiiii", ""),
            Function("http", "[method]fields.delete", "iiii", ""),
            Function("http", "[method]fields.append", "iiiiii", ""),
            Function("http", "[method]fields.entries", "ii", ""),
            Function("http", "[method]fields.clone", "i", "i"),
            Function("fields", "drop", "i", ""),
            Function("http", "[constructor]outgoing-request", "i", "i"),
            Function("http", "[method]outgoing-request.body", "ii", ""),
            Function("http", "[method]outgoing-request.set-method", "iiii", "i"),
            Function("http", "[method]outgoing-request.set-path-with-query", "iiii", "i"),
            Function("http", "[method]outgoing-request.set-scheme", "iiiii", "i"),
            Function("http", "[method]outgoing-request.set-authority", "iiii", "i"),
            Function("http", "[method]outgoing-request.headers", "i", "i"),
            Function("request", "drop", "i", ""),
            Function("http", "[constructor]request-options", "", "i"),
            Function("http", "[method]request-options.set-first-byte-timeout", "iiI", "i"),
            Function("options", "drop", "i", ""),
            Function("http", "[method]outgoing-body.write", "ii", ""),
            Function("http", "[static]outgoing-body.finish", "iiii", ""),
            Function("body", "drop", "i", ""),
            Function("handler", "handle", "iiii", ""),
            Function("http", "[method]future-incoming-response.subscribe", "i", "i"),
            Function("http", "[method]future-incoming-response.get", "ii", ""),
            Function("future", "drop", "i", ""),
            Function("http", "[method]incoming-response.status", "i", "i"),
            Function("http", "[method]incoming-response.headers", "i", "i"),
            Function("http", "[method]incoming-response.consume", "ii", ""),
            Function("http", "[method]incoming-body.stream", "ii", ""),
            Function("streams", "[method]output-stream.check-write", "ii", ""),
            Function("streams", "[method]output-stream.write", "iiii", ""),
            Function("streams", "[method]input-stream.read", "iIi", ""),
            Function("poll", "[method]pollable.block", "i", ""),
        ],
    },
    Family {
        name: "io",
        imports: IO,
        functions: &[
            Function("stdout", "get-stdout", "", "i"),
            Function("stderr", "get-stderr", "", "i"),
            Function("stdin", "get-stdin", "", "i"),
            Function("streams", "[method]output-stream.check-write", "ii", ""),
            Function("streams", "[method]output-stream.write", "iiii", ""),
            Function("streams", "[method]output-stream.blocking-write-and-flush", "iiii", ""),
            Function("streams", "[method]output-stream.flush", "ii", ""),
            Function("streams", "[method]output-stream.blocking-flush", "ii", ""),
            Function("streams", "[method]output-stream.subscribe", "i", "i"),
            Function("streams", "[method]output-stream.write-zeroes", "iIi", ""),
            Function("streams", "[method]output-stream.blocking-write-zeroes-and-flush", "iIi", ""),
            Function("streams", "[method]output-stream.splice", "iiIi", ""),
            Function("streams", "[method]output-stream.blocking-splice", "iiIi", ""),
            Function("streams", "[method]input-stream.read", "iIi", ""),
            Function("streams", "[method]input-stream.blocking-read", "iIi", ""),
            Function("streams", "[method]input-stream.skip", "iIi", ""),
            Function("streams", "[method]input-stream.subscribe", "i", "i"),
            Function("out", "drop", "i", ""),
            Function("in", "drop", "i", ""),
            Function("error", "[method]error.to-debug-string", "ii", ""),
            Function("poll", "poll", "iii", ""),
            Function("poll", "[method]pollable.block", "i", ""),
            Function("poll", "[method]pollable.ready", "i", "i"),
            Function("pollable", "drop", "i", ""),
            Function("clock", "now", "", "I"),
            Function("clock", "resolution", "", "I"),
            Function("clock", "subscribe-instant", "I", "i"),
            Function("clock", "subscribe-duration", "I", "i"),
            Function("wall", "now", "i", ""),
            Function("random", "get-random-bytes", "Ii", ""),
            Function("random", "get-random-u64", "", "I"),
            Function("insecure", "get-insecure-random-bytes", "Ii", ""),
            Function("seed", "insecure-seed", "i", ""),
        ],
    },
    Family {
        name: "surroundings",
        imports: SURROUNDINGS,
        functions: &[
            Function("context", "action", "i", ""),
            Function("context", "progress", "iii", ""),
            Function("context", "log", "iii", ""),
            Function("email", "send", "iiiiiiiiiiiiiiiii", ""),
            Function("environment", "get-environment", "i", ""),
            Function("environment", "get-arguments", "i", ""),
            Function("environment", "initial-cwd", "i", ""),
            Function("exit", "exit", "i", ""),
        ],
    },
];

const HTTP: &str = r#"
(import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $p (sub resource)))
    (export "[method]pollable.block" (func (param "self" (borrow $p))))))
(alias export $poll "pollable" (type $pollable))
(import "wasi:io/error@0.2.0" (instance $error (export "error" (type (sub resource)))))
(alias export $error "error" (type $io-error))
(import "wasi:io/streams@0.2.0" (instance $streams
    (alias outer 1 $io-error (type $e))
    (export "error" (type $error (eq $e)))
    (type $se (variant (case "last-operation-failed" (own $error)) (case "closed")))
    (export "stream-error" (type $stream-error (eq $se)))
    (export "output-stream" (type $out (sub resource)))
    (export "input-stream" (type $in (sub resource)))
    (export "[method]output-stream.check-write" (func
        (param "self" (borrow $out)) (result (result u64 (error $stream-error)))))
    (export "[method]output-stream.write" (func
        (param "self" (borrow $out)) (param "contents" (list u8)) (result (result (error $stream-error)))))
    (export "[method]input-stream.read" (func
        (param "self" (borrow $in)) (param "len" u64) (result (result (list u8) (error $stream-error)))))))
(alias export $streams "output-stream" (type $out))
(alias export $streams "input-stream" (type $in))
(import "wasi:http/types@0.2.0" (instance $http
    (alias outer 1 $out (type $out))
    (alias outer 1 $in (type $in))
    (alias outer 1 $pollable (type $pollable))
    (type $m (variant (case "get") (case "head") (case "post") (case "put") (case "delete") (case "connect")
        (case "options") (case "trace") (case "patch") (case "other" string)))
    (export "method" (type $method (eq $m)))
    (type $s (variant (case "HTTP") (case "HTTPS") (case "other" string)))
    (export "scheme" (type $scheme (eq $s)))
    (type $he (variant (case "invalid-syntax") (case "forbidden") (case "immutable")))
    (export "header-error" (type $header-error (eq $he)))
    (type $dns (record (field "rcode" (option string)) (field "info-code" (option u16))))
    (export "DNS-error-payload" (type $dns-error (eq $dns)))
    (type $tls (record (field "alert-id" (option u8)) (field "alert-message" (option string))))
    (export "TLS-alert-received-payload" (type $tls-alert (eq $tls)))
    (type $fs (record (field "field-name" (option string)) (field "field-size" (option u32))))
    (export "field-size-payload" (type $field-size (eq $fs)))
    (type $ec (variant
        (case "DNS-timeout") (case "DNS-error" $dns-error) (case "destination-not-found")
        (case "destination-unavailable") (case "destination-IP-prohibited") (case "destination-IP-unroutable")
        (case "connection-refused") (case "connection-terminated") (case "connection-timeout")
        (case "connection-read-timeout") (case "connection-write-timeout") (case "connection-limit-reached")
        (case "TLS-protocol-error") (case "TLS-certificate-error") (case "TLS-alert-received" $tls-alert)
        (case "HTTP-request-denied") (case "HTTP-request-length-required")
        (case "HTTP-request-body-size" (option u64)) (case "HTTP-request-method-invalid")
        (case "HTTP-request-URI-invalid") (case "HTTP-request-URI-too-long")
        (case "HTTP-request-header-section-size" (option u32))
        (case "HTTP-request-header-size" (option $field-size))
        (case "HTTP-request-trailer-section-size" (option u32)) (case "HTTP-request-trailer-size" $field-size)
        (case "HTTP-response-incomplete") (case "HTTP-response-header-section-size" (option u32))
        (case "HTTP-response-header-size" $field-size) (case "HTTP-response-body-size" (option u64))
        (case "HTTP-response-trailer-section-size" (option u32)) (case "HTTP-response-trailer-size" $field-size)
        (case "HTTP-response-transfer-coding" (option string))
        (case "HTTP-response-content-coding" (option string)) (case "HTTP-response-timeout")
        (case "HTTP-upgrade-failed") (case "HTTP-protocol-error") (case "loop-detected")
        (case "configuration-error") (case "internal-error" (option string))))
    (export "error-code" (type $error-code (eq $ec)))
    (export "fields" (type $fields (sub resource)))
    (export "outgoing-request" (type $request (sub resource)))
    (export "request-options" (type $options (sub resource)))
    (export "outgoing-body" (type $body (sub resource)))
    (export "future-incoming-response" (type $future (sub resource)))
    (export "incoming-response" (type $response (sub resource)))
    (export "incoming-body" (type $incoming (sub resource)))
    (export "[constructor]fields" (func (result (own $fields))))
    (export "[static]fields.from-list" (func
        (param "entries" (list (tuple string (list u8)))) (result (result (own $fields) (error $header-error)))))
    (export "[method]fields.get" (func
        (param "self" (borrow $fields)) (param "name" string) (result (list (list u8)))))
    (export "[method]fields.has" (func (param "self" (borrow $fields)) (param "name" string) (result bool)))
    (export "[method]fields.set" (func
        (param "self" (borrow $fields)) (param "name" string) (param "value" (list (list u8)))
        (result (result (error $header-error)))))
    (export "[method]fields.delete" (func
        (param "self" (borrow $fields)) (param "name" string) (result (result (error $header-error)))))
    (export "[method]fields.append" (func
        (param "self" (borrow $fields)) (param "name" string) (param "value" (list u8))
        (result (result (error $header-error)))))
    (export "[method]fields.entries" (func
        (param "self" (borrow $fields)) (result (list (tuple string (list u8))))))
    (export "[method]fields.clone" (func (param "self" (borrow $fields)) (result (own $fields))))
    (export "[constructor]outgoing-request" (func (param "headers" (own $fields)) (result (own $request))))
    (export "[method]outgoing-request.body" (func
        (param "self" (borrow $request)) (result (result (own $body)))))
    (export "[method]outgoing-request.set-method" (func
        (param "self" (borrow $request)) (param "method" $method) (result (result))))
    (export "[method]outgoing-request.set-path-with-query" (func
        (param "self" (borrow $request)) (param "path-with-query" (option string)) (result (result))))
    (export "[method]outgoing-request.set-scheme" (func
        (param "self" (borrow $request)) (param "scheme" (option $scheme)) (result (result))))
    (export "[method]outgoing-request.set-authority" (func
        (param "self" (borrow $request)) (param "authority" (option string)) (result (result))))
    (export "[method]outgoing-request.headers" (func (param "self" (borrow $request)) (result (own $fields))))
    (export "[constructor]request-options" (func (result (own $options))))
    (export "[method]request-options.set-first-byte-timeout" (func
        (param "self" (borrow $options)) (param "duration" (option u64)) (result (result))))
    (export "[method]outgoing-body.write" (func (param "self" (borrow $body)) (result (result (own $out)))))
    (export "[static]outgoing-body.finish" (func
        (param "this" (own $body)) (param "trailers" (option (own $fields)))
        (result (result (error $error-code)))))
    (export "[method]future-incoming-response.subscribe" (func
        (param "self" (borrow $future)) (result (own $pollable))))
    (export "[method]future-incoming-response.get" (func
        (param "self" (borrow $future))
        (result (option (result (result (own $response) (error $error-code)))))))
    (export "[method]incoming-response.status" (func (param "self" (borrow $response)) (result u16)))
    (export "[method]incoming-response.headers" (func (param "self" (borrow $response)) (result (own $fields))))
    (export "[method]incoming-response.consume" (func
        (param "self" (borrow $response)) (result (result (own $incoming)))))
    (export "[method]incoming-body.stream" (func
        (param "self" (borrow $incoming)) (result (result (own $in)))))))
(alias export $http "fields" (type $fields))
(alias export $http "outgoing-request" (type $request))
(alias export $http "request-options" (type $options))
(alias export $http "outgoing-body" (type $body))
(alias export $http "future-incoming-response" (type $future))
(alias export $http "error-code" (type $error-code))
(import "wasi:http/outgoing-handler@0.2.0" (instance $handler
    (alias outer 1 $request (type $r))
    (export "outgoing-request" (type $request (eq $r)))
    (alias outer 1 $options (type $o))
    (export "request-options" (type $options (eq $o)))
    (alias outer 1 $future (type $f))
    (export "future-incoming-response" (type $future (eq $f)))
    (alias outer 1 $error-code (type $ec))
    (export "error-code" (type $error-code (eq $ec)))
    (export "handle" (func
        (param "request" (own $request)) (param "options" (option (own $options)))
        (result (result (own $future) (error $error-code)))))))
"#;

const IO: &str = r#"
(import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $p (sub resource)))
    (export "[method]pollable.block" (func (param "self" (borrow $p))))
    (export "[method]pollable.ready" (func (param "self" (borrow $p)) (result bool)))
    (export "poll" (func (param "in" (list (borrow $p))) (result (list u32))))))
(alias export $poll "pollable" (type $pollable))
(import "wasi:io/error@0.2.0" (instance $error
    (export "error" (type $e (sub resource)))
    (export "[method]error.to-debug-string" (func (param "self" (borrow $e)) (result string)))))
(alias export $error "error" (type $io-error))
(import "wasi:io/streams@0.2.0" (instance $streams
    (alias outer 1 $io-error (type $e))
    (export "error" (type $error (eq $e)))
    (alias outer 1 $pollable (type $p))
    (export "pollable" (type $pollable (eq $p)))
    (type $se (variant (case "last-operation-failed" (own $error)) (case "closed")))
    (export "stream-error" (type $stream-error (eq $se)))
    (export "output-stream" (type $out (sub resource)))
    (export "input-stream" (type $in (sub resource)))
    (export "[method]output-stream.check-write" (func
        (param "self" (borrow $out)) (result (result u64 (error $stream-error)))))
    (export "[method]output-stream.write" (func
        (param "self" (borrow $out)) (param "contents" (list u8)) (result (result (error $stream-error)))))
    (export "[method]output-stream.blocking-write-and-flush" (func
        (param "self" (borrow $out)) (param "contents" (list u8)) (result (result (error $stream-error)))))
    (export "[method]output-stream.flush" (func (param "self" (borrow $out)) (result (result (error $stream-error)))))
    (export "[method]output-stream.blocking-flush" (func
        (param "self" (borrow $out)) (result (result (error $stream-error)))))
    (export "[method]output-stream.subscribe" (func (param "self" (borrow $out)) (result (own $pollable))))
    (export "[method]output-stream.write-zeroes" (func
        (param "self" (borrow $out)) (param "len" u64) (result (result (error $stream-error)))))
    (export "[method]output-stream.blocking-write-zeroes-and-flush" (func
        (param "self" (borrow $out)) (param "len" u64) (result (result (error $stream-error)))))
    (export "[method]output-stream.splice" (func
        (param "self" (borrow $out)) (param "src" (borrow $in)) (param "len" u64)
        (result (result u64 (error $stream-error)))))
    (export "[method]output-stream.blocking-splice" (func
        (param "self" (borrow $out)) (param "src" (borrow $in)) (param "len" u64)
        (result (result u64 (error $stream-error)))))
    (export "[method]input-stream.read" (func
        (param "self" (borrow $in)) (param "len" u64) (result (result (list u8) (error $stream-error)))))
    (export "[method]input-stream.blocking-read" (func
        (param "self" (borrow $in)) (param "len" u64) (result (result (list u8) (error $stream-error)))))
    (export "[method]input-stream.skip" (func
        (param "self" (borrow $in)) (param "len" u64) (result (result u64 (error $stream-error)))))
    (export "[method]input-stream.subscribe" (func (param "self" (borrow $in)) (result (own $pollable))))))
(alias export $streams "output-stream" (type $out))
(alias export $streams "input-stream" (type $in))
(import "wasi:cli/stdout@0.2.0" (instance $stdout
    (alias outer 1 $out (type $o))
    (export "output-stream" (type $out (eq $o)))
    (export "get-stdout" (func (result (own $out))))))
(import "wasi:cli/stderr@0.2.0" (instance $stderr
    (alias outer 1 $out (type $o))
    (export "output-stream" (type $out (eq $o)))
    (export "get-stderr" (func (result (own $out))))))
(import "wasi:cli/stdin@0.2.0" (instance $stdin
    (alias outer 1 $in (type $i))
    (export "input-stream" (type $in (eq $i)))
    (export "get-stdin" (func (result (own $in))))))
(import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
    (alias outer 1 $pollable (type $p))
    (export "pollable" (type $pollable (eq $p)))
    (export "now" (func (result u64)))
    (export "resolution" (func (result u64)))
    (export "subscribe-instant" (func (param "when" u64) (result (own $pollable))))
    (export "subscribe-duration" (func (param "when" u64) (result (own $pollable))))))
(import "wasi:clocks/wall-clock@0.2.0" (instance $wall
    (type $d (record (field "seconds" u64) (field "nanoseconds" u32)))
    (export "datetime" (type $datetime (eq $d)))
    (export "now" (func (result $datetime)))))
(import "wasi:random/random@0.2.0" (instance $random
    (export "get-random-bytes" (func (param "len" u64) (result (list u8))))
    (export "get-random-u64" (func (result u64)))))
(import "wasi:random/insecure@0.2.0" (instance $insecure
    (export "get-insecure-random-bytes" (func (param "len" u64) (result (list u8))))))
(import "wasi:random/insecure-seed@0.2.0" (instance $seed
    (export "insecure-seed" (func (result (tuple u64 u64))))))
"#;

const SURROUNDINGS: &str = r#"
(import "countersign:tool/context@0.1.0" (instance $context
    (type $ac (record
        (field "action-id" string) (field "run-id" (option string)) (field "step" (option string))
        (field "tenant" string) (field "actor" string)))
    (export "action-context" (type $action-context (eq $ac)))
    (type $l (enum "debug" "info" "warn" "error"))
    (export "level" (type $level (eq $l)))
    (export "action" (func (result $action-context)))
    (export "progress" (func (param "percent" u8) (param "text" string)))
    (export "log" (func (param "level" $level) (param "text" string)))))
(import "countersign:tool/email@0.1.0" (instance $email
    (type $mb (record (field "name" (option string)) (field "address" string)))
    (export "mailbox" (type $mailbox (eq $mb)))
    (type $at (record (field "name" string) (field "media-type" string) (field "content" (list u8))))
    (export "attachment" (type $attachment (eq $at)))
    (type $ms (record
        (field "to" (list $mailbox)) (field "cc" (list $mailbox)) (field "bcc" (list $mailbox))
        (field "subject" string) (field "text" (option string)) (field "html" (option string))
        (field "attachments" (list $attachment))))
    (export "message" (type $message (eq $ms)))
    (type $rc (record (field "message-id" string)))
    (export "receipt" (type $receipt (eq $rc)))
    (type $rf (variant
        (case "not-granted") (case "recipient-not-granted" string) (case "invalid" string)
        (case "too-large" u64) (case "rejected" string) (case "already-tried")))
    (export "refusal" (type $refusal (eq $rf)))
    (export "send" (func (param "message" $message) (result (result $receipt (error $refusal)))))))
(import "wasi:cli/environment@0.2.0" (instance $environment
    (export "get-environment" (func (result (list (tuple string string)))))
    (export "get-arguments" (func (result (list string))))
    (export "initial-cwd" (func (result (option string))))))
(import "wasi:cli/exit@0.2.0" (instance $exit (export "exit" (func (param "status" (result))))))
"#;
