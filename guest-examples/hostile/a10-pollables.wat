;; Makes timers and drops none.
(component
  (import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $p (sub resource)))
    (export "[method]pollable.block" (func (param "self" (borrow $p))))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
    (alias outer 1 $pollable (type $p))
    (export "pollable" (type $p2 (eq $p)))
    (export "now" (func (result u64)))
    (export "subscribe-duration" (func (param "when" u64) (result (own $p2))))))
  (core func $block (canon lower (func $poll "[method]pollable.block")))
  (core func $now (canon lower (func $clock "now")))
  (core func $subscribe (canon lower (func $clock "subscribe-duration")))
  (core module $m
    (import "" "block" (func $block (param i32)))
    (import "" "now" (func $now (result i64)))
    (import "" "subscribe" (func $subscribe (param i64) (result i32)))
    (func (export "run")
      (loop $l (drop (call $subscribe (i64.const 1000000))) (br $l))))
  (core instance $i (instantiate $m (with "" (instance
    (export "block" (func $block)) (export "now" (func $now)) (export "subscribe" (func $subscribe))))))
  (func (export "run") (canon lift (core func $i "run"))))
