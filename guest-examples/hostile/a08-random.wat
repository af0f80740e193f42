;; Asks for 64 MiB of random bytes, over and over.
(component
  (import "wasi:random/random@0.2.0" (instance $random
    (export "get-random-bytes" (func (param "len" u64) (result (list u8))))))
  (core module $room
    (memory (export "memory") 1)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 8)))
  (core instance $room (instantiate $room))
  (core func $bytes (canon lower (func $random "get-random-bytes")
    (memory (core memory $room "memory")) (realloc (core func $room "realloc"))))
  (core module $m
    (import "" "bytes" (func $bytes (param i64 i32)))
    (func (export "run") (loop $l (call $bytes (i64.const 0x4000000) (i32.const 0)) (br $l))))
  (core instance $i (instantiate $m (with "" (instance (export "bytes" (func $bytes))))))
  (func (export "run") (canon lift (core func $i "run"))))
