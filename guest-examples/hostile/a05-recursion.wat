;; Calls itself for ever.
(component
  (core module $m
    (func $down (export "run") (call $down)))
  (core instance $i (instantiate $m))
  (func (export "run") (canon lift (core func $i "run"))))
