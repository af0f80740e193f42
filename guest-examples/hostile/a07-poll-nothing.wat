;; Waits for the first of nothing.
(component
  (import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $p (sub resource)))
    (export "poll" (func (param "in" (list (borrow $p))) (result (list u32))))))
  (core module $room
    (memory (export "memory") 1)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 64)))
  (core instance $room (instantiate $room))
  (core func $poll (canon lower (func $poll "poll") (memory (core memory $room "memory")) (realloc (core func $room "realloc"))))
  (core module $m
    (import "" "poll" (func $poll (param i32 i32 i32)))
    (func (export "run") (call $poll (i32.const 0) (i32.const 0) (i32.const 8))))
  (core instance $i (instantiate $m (with "" (instance (export "poll" (func $poll))))))
  (func (export "run") (canon lift (core func $i "run"))))
