;; An asynchronous export with a callback, through which the engine's own stack once overflowed.
(component
  (core module $m
    (func (export "f") (result i32) (i32.const 0))
    (func (export "c") (param i32 i32 i32) (result i32) (i32.const 0)))
  (core instance $i (instantiate $m))
  (func (export "run") async
    (canon lift (core func $i "f") async (callback (core func $i "c")))))
