;; Imports a function without a package.
(component (import "do-it" (func)))
