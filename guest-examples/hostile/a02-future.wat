;; A future of WASI 0.3.
(component (type (future u8)))
