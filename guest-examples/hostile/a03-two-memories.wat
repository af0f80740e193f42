;; Two modules with 40 MiB each: each is below the limit, both are not.
(component
  (core module $m (memory 640))
  (core instance (instantiate $m))
  (core instance (instantiate $m)))
