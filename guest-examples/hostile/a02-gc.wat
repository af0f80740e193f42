;; Types of the garbage collector.
(component (core module (type (struct))))
