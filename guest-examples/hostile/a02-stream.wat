;; A stream of WASI 0.3.
(component (type (stream u8)))
