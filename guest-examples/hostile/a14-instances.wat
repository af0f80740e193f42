;; 33 instances of one small module.
(component
  (core module $m)
  (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m))
  (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m))
  (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m))
  (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m))
  (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m))
  (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m))
  (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m))
  (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m))
  (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m))
  (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m))
  (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m)))
