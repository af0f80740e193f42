;; Fills 64 MiB over and over: one instruction that takes long.
(component
  (core module $m
    (memory 1024)
    (func (export "run")
      (loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 0x4000000)) (br $l))))
  (core instance $i (instantiate $m))
  (func (export "run") (canon lift (core func $i "run"))))
