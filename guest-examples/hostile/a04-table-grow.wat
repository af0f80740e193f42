;; Grows a table by all that fits in a number, and by one element too many; traps unless both are refused.
(component
  (core module $m
    (table $t 10 funcref)
    (func (export "run")
      (if (i32.ne (table.grow $t (ref.null func) (i32.const 0x7fffffff)) (i32.const -1)) (then unreachable))
      (if (i32.ne (table.grow $t (ref.null func) (i32.const 19991)) (i32.const -1)) (then unreachable))
      (if (i32.ne (table.grow $t (ref.null func) (i32.const 19990)) (i32.const 10)) (then unreachable))))
  (core instance $i (instantiate $m))
  (func (export "run") (canon lift (core func $i "run"))))
