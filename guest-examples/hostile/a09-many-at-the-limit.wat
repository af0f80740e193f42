;; 512 header lists, as many as there may be, each with as much in it as one may hold, to the byte
;; (a name costs 32 bytes and its length, a value 40 and its length); returns if it gets them.
(component
  (import "wasi:http/types@0.2.0" (instance $http
    (type $error (variant (case "invalid-syntax") (case "forbidden") (case "immutable")))
    (export "header-error" (type $header-error (eq $error)))
    (export "fields" (type $fields (sub resource)))
    (export "request-options" (type $options (sub resource)))
    (export "[constructor]fields" (func (result (own $fields))))
    (export "[constructor]request-options" (func (result (own $options))))
    (export "[method]fields.append" (func
      (param "self" (borrow $fields)) (param "name" string) (param "value" (list u8))
      (result (result (error $header-error)))))
    (export "[static]fields.from-list" (func
      (param "entries" (list (tuple string (list u8))))
      (result (result (own $fields) (error $header-error)))))))
  (core module $room (memory (export "memory") 2))
  (core instance $room (instantiate $room))
  (core func $fields (canon lower (func $http "[constructor]fields")))
  (core func $options (canon lower (func $http "[constructor]request-options")))
  (core func $append (canon lower (func $http "[method]fields.append") (memory (core memory $room "memory"))))
  (core func $from-list (canon lower (func $http "[static]fields.from-list") (memory (core memory $room "memory"))))
  (core module $m
    (import "" "memory" (memory 1))
    (import "" "fields" (func $fields (result i32)))
    (import "" "options" (func $options (result i32)))
    (import "" "append" (func $append (param i32 i32 i32 i32 i32 i32)))
    (import "" "from-list" (func $from-list (param i32 i32 i32)))
    (func (export "run")
      (local $f i32) (local $n i32) (local $m i32)
      (memory.fill (i32.const 16) (i32.const 0x61) (i32.const 4096))
      (loop $lists
        (local.set $f (call $fields))
        (local.set $m (i32.const 0))
        (loop $values
          (call $append (local.get $f) (i32.const 16) (i32.const 1) (i32.const 16) (i32.const 1900) (i32.const 0))
          (local.set $m (i32.add (local.get $m) (i32.const 1)))
          (br_if $values (i32.lt_u (local.get $m) (i32.const 8))))
        (call $append (local.get $f) (i32.const 16) (i32.const 1) (i32.const 16) (i32.const 791) (i32.const 0))
        (local.set $n (i32.add (local.get $n) (i32.const 1)))
        (br_if $lists (i32.lt_u (local.get $n) (i32.const 512))))))
  (core instance $i (instantiate $m (with "" (instance
    (export "memory" (memory $room "memory"))
    (export "fields" (func $fields))
    (export "options" (func $options))
    (export "append" (func $append))
    (export "from-list" (func $from-list))))))
  (func (export "run") (canon lift (core func $i "run"))))
