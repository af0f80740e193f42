;; A call that takes its caller's place.
(component (core module (func $f (return_call $f))))
