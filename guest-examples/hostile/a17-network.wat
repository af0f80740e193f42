;; Asks for the network. Importing it is no offence: some toolchains always do.
(component
  (import "wasi:sockets/network@0.2.3" (instance $net
    (export "network" (type (sub resource)))))
  (alias export $net "network" (type $network))
  (import "wasi:sockets/instance-network@0.2.3" (instance $in
    (alias outer 1 $network (type $n))
    (export "network" (type $n2 (eq $n)))
    (export "instance-network" (func (result (own $n2))))))
  (core func $get (canon lower (func $in "instance-network")))
  (core module $m
    (import "" "get" (func $get (result i32)))
    (func (export "run") (drop (call $get))))
  (core instance $i (instantiate $m (with "" (instance (export "get" (func $get))))))
  (func (export "run") (canon lift (core func $i "run"))))
