;; A destructor that drops the next resource, whose destructor drops the next.
(component
  (core module $table
    (table (export "t") 1 1 funcref))
  (core instance $table (instantiate $table))
  (core module $later
    (import "" "t" (table 1 1 funcref))
    (type $drop (func (param i32)))
    (func (export "dtor") (param i32) (call_indirect (type $drop) (local.get 0) (i32.const 0))))
  (core instance $later (instantiate $later (with "" (instance (export "t" (table $table "t"))))))
  (type $r (resource (rep i32) (dtor (core func $later "dtor"))))
  (core func $new (canon resource.new $r))
  (core func $drop (canon resource.drop $r))
  (core module $m
    (import "" "t" (table 1 1 funcref))
    (import "" "new" (func $new (param i32) (result i32)))
    (import "" "drop" (func $drop (param i32)))
    (elem (i32.const 0) $destroy)
    ;; Makes another one and drops it: a level deeper.
    (func $destroy (param i32) (call $drop (call $new (i32.const 1))))
    (func (export "run") (call $destroy (i32.const 0))))
  (core instance $i (instantiate $m
    (with "" (instance
      (export "t" (table $table "t"))
      (export "new" (func $new))
      (export "drop" (func $drop))))))
  (func (export "run") (canon lift (core func $i "run"))))
