;; Imports the next WASI.
(component (import "wasi:http/types@0.3.0" (instance)))
