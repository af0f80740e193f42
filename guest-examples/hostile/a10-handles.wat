;; Makes resources of its own and drops none: they cost the host nothing, their handles do.
(component
  (type $r (resource (rep i32)))
  (core func $new (canon resource.new $r))
  (core module $m
    (import "" "new" (func $new (param i32) (result i32)))
    (func (export "run") (loop $l (drop (call $new (i32.const 1))) (br $l))))
  (core instance $i (instantiate $m (with "" (instance (export "new" (func $new))))))
  (func (export "run") (canon lift (core func $i "run"))))
