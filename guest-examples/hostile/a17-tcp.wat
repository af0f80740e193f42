;; Makes a TCP socket.
(component
  (import "wasi:sockets/network@0.2.3" (instance $net
    (type $ec (enum
      "unknown" "access-denied" "not-supported" "invalid-argument" "out-of-memory"
      "timeout" "concurrency-conflict" "not-in-progress" "would-block" "invalid-state"
      "new-socket-limit" "address-not-bindable" "address-in-use" "remote-unreachable" "connection-refused"
      "connection-reset" "connection-aborted" "datagram-too-large" "name-unresolvable" "temporary-resolver-failure"
      "permanent-resolver-failure"))
    (export "error-code" (type $error-code (eq $ec)))
    (type $f (enum "ipv4" "ipv6"))
    (export "ip-address-family" (type $family (eq $f)))))
  (alias export $net "error-code" (type $error-code))
  (alias export $net "ip-address-family" (type $family))
  (import "wasi:sockets/tcp@0.2.3" (instance $tcp (export "tcp-socket" (type (sub resource)))))
  (alias export $tcp "tcp-socket" (type $socket))
  (import "wasi:sockets/tcp-create-socket@0.2.3" (instance $create
    (alias outer 1 $socket (type $s))
    (export "tcp-socket" (type $socket (eq $s)))
    (alias outer 1 $error-code (type $ec))
    (export "error-code" (type $error-code (eq $ec)))
    (alias outer 1 $family (type $f))
    (export "ip-address-family" (type $family (eq $f)))
    (export "create-tcp-socket" (func
      (param "address-family" $family) (result (result (own $socket) (error $error-code)))))))
  (core module $room (memory (export "memory") 1))
  (core instance $room (instantiate $room))
  (core func $get (canon lower (func $create "create-tcp-socket") (memory (core memory $room "memory"))))
  (core module $m
    (import "" "get" (func $get (param i32 i32)))
    (func (export "run") (call $get (i32.const 0) (i32.const 0))))
  (core instance $i (instantiate $m (with "" (instance (export "get" (func $get))))))
  (func (export "run") (canon lift (core func $i "run"))))
