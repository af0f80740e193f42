;; Returns, and loops for ever when it is told that its result was read.
(component
  (core module $m (func (export "run")) (func (export "after") (loop $l (br $l))))
  (core instance $i (instantiate $m))
  (func (export "run")
    (canon lift (core func $i "run") (post-return (core func $i "after")))))
