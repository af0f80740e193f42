;; A memory that is too large before it grows: 64 MiB and a page.
(component (core module $m (memory 1025)) (core instance (instantiate $m)))
