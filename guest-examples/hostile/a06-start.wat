;; Loops for ever before anybody calls it.
(component
  (core module $m (func $s (loop $l (br $l))) (start $s))
  (core instance (instantiate $m)))
