;; Imports what the host does not have.
(component (import "acme:secrets/vault@1.0.0" (instance)))
