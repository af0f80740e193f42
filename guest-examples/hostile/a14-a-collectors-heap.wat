;; A place for a reference to something of the host's. It can get none, but an instance with such a place
;; would take the one collector's heap that there is for everybody.
(component
  (core module $m (global (mut externref) (ref.null extern)))
  (core instance (instantiate $m)))
