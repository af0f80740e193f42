;; Calls the host at every depth of an endless recursion, so that at some depth the host has
;; to begin where the component's stack ends.
(component
  (import "wasi:random/random@0.2.0" (instance $random (export "get-random-u64" (func (result u64)))))
  (core func $ask (canon lower (func $random "get-random-u64")))
  (core module $m
    (import "" "ask" (func $ask (result i64)))
    (func $down (export "run") (drop (call $ask)) (call $down)))
  (core instance $i (instantiate $m (with "" (instance (export "ask" (func $ask))))))
  (func (export "run") (canon lift (core func $i "run"))))
