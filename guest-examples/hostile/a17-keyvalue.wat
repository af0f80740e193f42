;; Imports a store.
(component (import "wasi:keyvalue/store@0.2.0" (instance)))
