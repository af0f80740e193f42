;; Makes header lists and drops none.
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
  (core module $room (memory (export "memory") 1))
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
    (func (export "run") (loop $l (drop (call $fields)) (br $l))))
  (core instance $i (instantiate $m (with "" (instance
    (export "memory" (memory $room "memory"))
    (export "fields" (func $fields))
    (export "options" (func $options))
    (export "append" (func $append))
    (export "from-list" (func $from-list))))))
  (func (export "run") (canon lift (core func $i "run"))))
