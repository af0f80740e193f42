;; Exceptions.
(component (core module (tag)))
