;; Prints 64 MiB, a thousand times what is kept; returns when it is done: printing too much
;; is no failure.
(component
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
  (core module $room (memory (export "memory") 2))
  (core instance $room (instantiate $room))
  (core func $get (canon lower (func $stdout "get-stdout")))
  (core func $check (canon lower (func $streams "[method]output-stream.check-write") (memory (core memory $room "memory"))))
  (core func $write (canon lower (func $streams "[method]output-stream.write") (memory (core memory $room "memory"))))
  (core module $m
    (import "" "memory" (memory 1))
    (import "" "get" (func $get (result i32)))
    (import "" "check" (func $check (param i32 i32)))
    (import "" "write" (func $write (param i32 i32 i32 i32)))
    (func (export "run")
      (local $out i32) (local $n i32)
      (memory.fill (i32.const 1024) (i32.const 0x78) (i32.const 65536))
      (i32.store8 (i32.const 66559) (i32.const 10))
      (local.set $out (call $get))
      (loop $l
        (call $check (local.get $out) (i32.const 16))
        (call $write (local.get $out) (i32.const 1024) (i32.const 65536) (i32.const 32))
        (if (i32.load8_u (i32.const 32)) (then unreachable))
        (local.set $n (i32.add (local.get $n) (i32.const 1)))
        (br_if $l (i32.lt_u (local.get $n) (i32.const 1024))))))
  (core instance $i (instantiate $m (with "" (instance
    (export "memory" (memory $room "memory"))
    (export "get" (func $get))
    (export "check" (func $check))
    (export "write" (func $write))))))
  (func (export "run") (canon lift (core func $i "run"))))
