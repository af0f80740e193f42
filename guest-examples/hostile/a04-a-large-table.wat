;; A table that is too large before it grows.
(component (core module (table 20001 funcref)))
