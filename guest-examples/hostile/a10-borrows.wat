;; Three components: one makes a resource, one lends it, and the third keeps what it was lent.
(component
  (component $maker
    (type $r' (resource (rep i32)))
    (export $r "r" (type $r'))
    (core func $new (canon resource.new $r'))
    (core module $m
      (import "" "new" (func $new (param i32) (result i32)))
      (func (export "make") (result i32) (call $new (i32.const 1))))
    (core instance $i (instantiate $m (with "" (instance (export "new" (func $new))))))
    (func (export "make") (result (own $r)) (canon lift (core func $i "make"))))
  (component $keeper
    (import "r" (type $r (sub resource)))
    (core module $m (func (export "keep") (param i32)))
    (core instance $i (instantiate $m))
    (func (export "keep") (param "it" (borrow $r)) (canon lift (core func $i "keep"))))
  (component $lender
    (import "r" (type $r (sub resource)))
    (import "make" (func $make (result (own $r))))
    (import "keep" (func $keep (param "it" (borrow $r))))
    (core func $make (canon lower (func $make)))
    (core func $keep (canon lower (func $keep)))
    (core module $m
      (import "" "make" (func $make (result i32)))
      (import "" "keep" (func $keep (param i32)))
      (func (export "run")
        (local $it i32)
        (local.set $it (call $make))
        (loop $l (call $keep (local.get $it)) (br $l))))
    (core instance $i (instantiate $m
      (with "" (instance (export "make" (func $make)) (export "keep" (func $keep))))))
    (func (export "run") (canon lift (core func $i "run"))))
  (instance $maker (instantiate $maker))
  (instance $keeper (instantiate $keeper (with "r" (type $maker "r"))))
  (instance $lender (instantiate $lender
    (with "r" (type $maker "r"))
    (with "make" (func $maker "make"))
    (with "keep" (func $keeper "keep"))))
  (export "run" (func $lender "run")))
