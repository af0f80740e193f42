;; Loops for ever where the host asks it for room.
(component
  (import "wasi:random/random@0.2.0" (instance $random
    (export "get-random-bytes" (func (param "len" u64) (result (list u8))))))
  (core module $room
    (memory (export "memory") 1)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (loop $l (br $l)) unreachable))
  (core instance $room (instantiate $room))
  (core func $bytes (canon lower (func $random "get-random-bytes")
    (memory (core memory $room "memory")) (realloc (core func $room "realloc"))))
  (core module $m
    (import "" "bytes" (func $bytes (param i64 i32)))
    (func (export "run") (call $bytes (i64.const 8) (i32.const 0))))
  (core instance $i (instantiate $m (with "" (instance (export "bytes" (func $bytes))))))
  (func (export "run") (canon lift (core func $i "run"))))
