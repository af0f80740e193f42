;; Takes a page at a time and touches it until it is refused; traps unless that is at 64 MiB.
(component
  (core module $m
    (memory 1)
    (func (export "run")
      (local $before i32)
      (loop $more
        (local.set $before (memory.grow (i32.const 1)))
        (if (i32.ne (local.get $before) (i32.const -1))
          (then
            (i32.store8 (i32.shl (local.get $before) (i32.const 16)) (i32.const 1))
            (br $more))))
      (if (i32.ne (memory.size) (i32.const 1024)) (then unreachable))))
  (core instance $i (instantiate $m))
  (func (export "run") (canon lift (core func $i "run"))))
